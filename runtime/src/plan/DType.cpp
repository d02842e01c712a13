#include "tilewright/plan/DType.h"
#include <fmt/format.h>

namespace tilewright {

std::string_view toString(DType dtype) {
  switch (dtype) {
  case DType::F32:
    return "fp32";
  case DType::F16:
    return "fp16";
  case DType::BF16:
    return "bf16";
  }
  return "unknown dtype";
}

std::string_view toString(Layout layout) { return layout == Layout::BSHD ? "bshd" : "bhsd"; }

Expected<DType> parseDType(std::string_view text) {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16})
    if (text == toString(dtype)) return dtype;
  return fail(Stage::Input, fmt::format("dtype: expected bf16, fp16 or fp32, found \"{}\"", text));
}

Expected<Layout> parseLayout(std::string_view text) {
  for (Layout layout : {Layout::BSHD, Layout::BHSD})
    if (text == toString(layout)) return layout;
  return fail(Stage::Input, fmt::format("layout: expected bshd (batch, sequence, heads, dim) or bhsd (batch, heads, "
                                        "sequence, dim), found \"{}\"",
                                        text));
}

} // namespace tilewright
