// How calls of the C interface end: a code, and this thread's last error.
#pragma once

#include "tilewright.h"
#include "tilewright/Error.h"
#include <exception>
#include <new>

namespace tilewright::c {

int32_t codeOf(Stage stage);

/// Keeps the error as this thread's last one; its code.
int32_t keepError(Error error) noexcept;
/// For what libraries throw, which no C caller could catch.
int32_t keepException(const char *what) noexcept;

inline int32_t outcome(Status status) noexcept { return status ? TW_OK : keepError(std::move(status.error())); }

/// Runs a call, which gives a Status; what it throws for want of memory or threads becomes an error.
template <class Call> int32_t guarded(Call call) noexcept {
  try {
    return outcome(call());
  } catch (const std::exception &error) {
    return keepException(error.what());
  } catch (...) {
    return keepException("unknown error");
  }
}

} // namespace tilewright::c
