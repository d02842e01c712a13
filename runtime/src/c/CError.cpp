#include "CError.h"

namespace tilewright::c {
namespace {

struct LastError {
  Error error;
  tw_error view{sizeof(tw_error), TW_OK, "", "", "", ""};
};

LastError &lastError() {
  thread_local LastError last;
  return last;
}

} // namespace

int32_t codeOf(Stage stage) {
  switch (stage) {
  case Stage::Input:
    return TW_ERROR_INPUT;
  case Stage::Plan:
    return TW_ERROR_PLAN;
  case Stage::Emit:
    return TW_ERROR_EMIT;
  case Stage::Compile:
    return TW_ERROR_COMPILE;
  case Stage::Load:
    return TW_ERROR_LOAD;
  case Stage::Launch:
    return TW_ERROR_LAUNCH;
  case Stage::Cache:
    return TW_ERROR_CACHE;
  case Stage::Verify:
  case Stage::Output:
  case Stage::Communicate:
    break;
  }
  return TW_ERROR_OTHER;
}

int32_t keepError(Error error) noexcept {
  LastError &last = lastError();
  last.error = std::move(error);
  last.view = {sizeof(tw_error),           codeOf(last.error.stage), toString(last.error.stage),
               last.error.message.c_str(), last.error.hint.c_str(),  last.error.log.c_str()};
  return last.view.code;
}

int32_t keepException(const char *what) noexcept {
  LastError &last = lastError();
  try {
    last.error = {Stage::Launch, what, {}, {}};
  } catch (...) {
    last.error.message.clear(); // not even memory for the message
  }
  last.view = {sizeof(tw_error), TW_ERROR_OTHER, "other", last.error.message.c_str(), "", ""};
  if (last.error.message.empty()) last.view.message = "out of memory";
  return TW_ERROR_OTHER;
}

} // namespace tilewright::c

const tw_error *tw_last_error(void) { return &tilewright::c::lastError().view; }
