// The command that makes the program a tuning worker: `tilewright tune-worker CACHE`, requests on its standard input.
#pragma once

#include <string_view>

namespace tilewright::tune {

inline constexpr std::string_view kWorkerCommand = "tune-worker";

} // namespace tilewright::tune
