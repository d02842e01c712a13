#include "tilewright/Error.h"

namespace tilewright {

const char *toString(Stage stage) {
  switch (stage) {
  case Stage::Input:
    return "input";
  case Stage::Plan:
    return "plan";
  case Stage::Emit:
    return "emit";
  case Stage::Compile:
    return "compile";
  case Stage::Load:
    return "load";
  case Stage::Launch:
    return "launch";
  case Stage::Cache:
    return "cache";
  case Stage::Verify:
    return "verify";
  case Stage::Output:
    return "output";
  case Stage::Communicate:
    return "communicate";
  }
  return "unknown stage";
}

std::string Error::text() const {
  std::string text = std::string(toString(stage)) + ": " + message;
  if (!hint.empty()) text += "\n  hint: " + hint;
  return text;
}

} // namespace tilewright
