#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/plan/DType.h"
#include "tilewright/Error.h"
#include <doctest/doctest.h>

using namespace tilewright;

TEST_CASE("element types and layouts parse from their own names") {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    auto parsed = parseDType(toString(dtype));
    REQUIRE(parsed);
    CHECK((*parsed == dtype));
  }
  for (Layout layout : {Layout::BSHD, Layout::BHSD}) {
    auto parsed = parseLayout(toString(layout));
    REQUIRE(parsed);
    CHECK((*parsed == layout));
  }
  CHECK(sizeInBytes(DType::F32) == 4);
  CHECK(sizeInBytes(DType::F16) == 2);
  CHECK(sizeInBytes(DType::BF16) == 2);
}

TEST_CASE("unknown names are refused with the accepted ones") {
  auto dtype = parseDType("float64");
  REQUIRE_FALSE(dtype);
  CHECK(dtype.error().message == "dtype: expected bf16, fp16 or fp32, found \"float64\"");
  CHECK_FALSE(parseDType("BF16"));
  CHECK_FALSE(parseDType(""));
  auto layout = parseLayout("sbhd");
  REQUIRE_FALSE(layout);
  CHECK(layout.error().message.find("bshd") != std::string::npos);
  CHECK(layout.error().message.find("\"sbhd\"") != std::string::npos);
}

TEST_CASE("an error's text names the stage, the message and the hint, but not the log") {
  Error error{Stage::Compile, "x failed", "do y", "a very long log"};
  CHECK(error.text() == "compile: x failed\n  hint: do y");
  error.hint.clear();
  CHECK(error.text() == "compile: x failed");
}
