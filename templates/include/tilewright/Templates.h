// The CUDA device code that emitted kernels are made of, embedded in the binary. Every file below templates/ with the
// ending .cuh is one entry; its name is its path there: "sm80/Mma.cuh". Immutable after start-up, safe from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewright {

/// Text of one template file, or an empty view when there is none of that name.
std::string_view templateText(std::string_view name);

/// Names of all template files, sorted.
std::span<const std::string_view> templateNames();

/// The texts of `names` and of everything they include, each once, every file after the ones it includes, with
/// `#include "..."` and `#pragma once` lines removed: what NVRTC compiles without any header search. A name that does
/// not exist contributes nothing but an #error line that says so, so that the compile log names it.
std::string assembleTemplates(std::span<const std::string_view> names);

} // namespace tilewright
