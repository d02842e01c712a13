// Spelling of a schedule's enumerations in text and JSON.
#pragma once

#include "tilewright/plan/Schedule.h"

namespace tilewright {

std::string_view nameOf(Order order); ///< "plain", "longest_first"
Expected<Order> parseOrder(std::string_view text);
std::string_view nameOf(Overlap overlap); ///< "none", "intra", "ping_pong", "both"
Expected<Overlap> parseOverlap(std::string_view text);

} // namespace tilewright
