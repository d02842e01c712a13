// Errors in an expression's text, shown with the text and a caret under the offending column.
#pragma once

#include "tilewright/Error.h"
#include <string_view>

namespace tilewright::expr {

/// "mask: MESSAGE at column 8\n  k <= q + \n          ^". Columns count from 1 in the message, `position` from 0.
tl::unexpected<Error> failAt(std::string_view what, std::string_view text, size_t position, std::string_view message,
                             std::string hint = {});

} // namespace tilewright::expr
