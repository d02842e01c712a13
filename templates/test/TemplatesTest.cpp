#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/Templates.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <fstream>
#include <iterator>

using namespace tilewright;

namespace {

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++found;
  return found;
}

} // namespace

TEST_CASE("every embedded text is its file, byte for byte") {
  REQUIRE(templateNames().size() >= 10);
  CHECK(std::is_sorted(templateNames().begin(), templateNames().end()));
  for (std::string_view name : templateNames()) {
    std::ifstream file(std::string(TEMPLATE_ROOT "/") + std::string(name), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    CHECK_MESSAGE(templateText(name) == bytes, name);
  }
  CHECK(templateText("sm80/NoSuchFile.cuh").empty());
}

TEST_CASE("assembly holds every file once, after what it includes, and no directive that needs a search path") {
  std::string_view names[] = {"sm80/Softmax.cuh", "sm80/Store.cuh", "common/TileWalk.cuh", "sm80/Softmax.cuh"};
  std::string text = assembleTemplates(names);
  CHECK(count(text, "#include \"") == 0);
  CHECK(count(text, "#pragma once") == 0);
  CHECK(count(text, "struct BF16 {") == 1);
  CHECK(count(text, "void onlineSoftmax(") == 1);
  CHECK(text.find("struct BF16 {") < text.find("struct SharedTile {"));
  CHECK(text.find("struct Accumulator {") < text.find("void onlineSoftmax("));
}

TEST_CASE("all templates together resolve") {
  std::string text = assembleTemplates(templateNames());
  CHECK(count(text, "#error") == 0);
  CHECK(count(text, "#include \"") == 0);
}

TEST_CASE("a missing name is reported where the compiler will show it") {
  std::string_view names[] = {"sm80/NoSuchFile.cuh"};
  CHECK(assembleTemplates(names) == "#error \"no template file named sm80/NoSuchFile.cuh\"\n");
}
