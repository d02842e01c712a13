// The launch part of `tilewright bench startup`: what Kernel::launch costs above cuLaunchKernel.
#pragma once

#include "tilewright/Context.h"

namespace tilewright::tool {

/// Host time of one launch in microseconds: medians over rounds that take the three ways in turn, with the same kernel,
/// arguments and stream.
struct LaunchFigures {
  double driverUs = 0; ///< cuLaunchKernel alone, through the driver's table.
  double launchUs = 0; ///< Kernel::launch where the device's primary context is current, as in hosts built on the CUDA
                       ///< runtime.
  double elsewhereUs = 0; ///< Kernel::launch where no context is current: it makes its own current and gives it back.
  double aboveUs = 0;     ///< Median over the rounds of launchUs - driverUs.
};

/// Measures with the default forward kernel of a problem of one tile, so that the device never falls behind.
Expected<LaunchFigures> measureLaunch(Context &context, const Target &target);

} // namespace tilewright::tool
