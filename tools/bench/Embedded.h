// Files of this folder that the tool carries inside itself.
#pragma once

#include <string_view>

namespace tilewright::bench {

/// Contents of "peers.py", "fa3.json", "page.css", "tune.css"; empty for any other name.
std::string_view embeddedFile(std::string_view name);

} // namespace tilewright::bench
