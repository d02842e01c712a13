// Errors are values. Every function that can fail returns Expected<T> or Status; nothing throws, prints or exits
// across the library's border. An Error is written for the person who gets it: what was asked, where, what was
// expected, what was found, and what to do next.
#pragma once

#include "tilewright/Export.h"
#include <string>
#include <tl/expected.hpp>

namespace tilewright TILEWRIGHT_PUBLIC {

/// Where in a kernel's life something went wrong.
enum class Stage { Input, Plan, Emit, Compile, Load, Launch, Cache, Verify, Output, Communicate };

const char *toString(Stage stage);

struct Error {
  Stage stage = Stage::Input;
  std::string message; ///< One sentence: what, where, expected, found.
  std::string hint;    ///< What to do about it; empty when nothing useful can be said.
  std::string log;     ///< The full log of the tool that failed (NVRTC, ptxas, the driver); empty when there is none.

  /// "input: q.npy: expected float32 or float16, found float64\n  hint: ..." (the log is not part of it).
  std::string text() const;
};

template <class T> using Expected = tl::expected<T, Error>;
using Status = Expected<void>;

/// `return fail(Stage::Plan, fmt::format(...), "hint")` from any function returning Expected or Status.
inline tl::unexpected<Error> fail(Stage stage, std::string message, std::string hint = {}, std::string log = {}) {
  return tl::unexpected<Error>(Error{stage, std::move(message), std::move(hint), std::move(log)});
}

/// Passes an Error of one Expected on from a function that returns another.
template <class T> tl::unexpected<Error> propagate(Expected<T> &failed) {
  return tl::unexpected<Error>(std::move(failed.error()));
}

} // namespace tilewright
