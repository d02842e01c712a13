#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/train/Sampler.h"
#include "tilewright/train/SequenceOrder.h"
#include "tilewright/train/TrainOptions.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fstream>
#include <set>

using namespace tilewright;
using namespace tilewright::train;

namespace {

const TemporaryFolder &folder() {
  static const TemporaryFolder own;
  return own;
}

std::string write(const std::string &name, const std::string &bytes) {
  std::ofstream(folder().path + "/" + name, std::ios::binary) << bytes;
  return folder().path + "/" + name;
}

std::string refusal(const std::string &path, TokenFormat format, int64_t vocabulary) {
  auto file = TokenFile::open(path, format, vocabulary);
  if (!file) return file.error().text();
  Status status = file->verify();
  return status ? "" : status.error().text();
}

} // namespace

TEST_CASE("text is bytes, tokens are little-endian uint16") {
  auto text = TokenFile::open(write("text", "a\xff\n"), TokenFormat::Text, 256);
  REQUIRE(text);
  std::vector<int32_t> tokens(3);
  REQUIRE(text->read(0, tokens));
  CHECK(tokens == std::vector<int32_t>{'a', 255, '\n'});
  auto numbers = TokenFile::open(write("n.bin", std::string("\x01\x00\x0f\x27", 4)), TokenFormat::Uint16, 10000);
  REQUIRE(numbers);
  CHECK(numbers->tokens() == 2);
  tokens.resize(1);
  REQUIRE(numbers->read(1, tokens));
  CHECK(tokens[0] == 9999);
  CHECK((tokenFormat("auto", "x.bin").value() == TokenFormat::Uint16));
  CHECK((tokenFormat("auto", "x.txt").value() == TokenFormat::Text));
  CHECK_FALSE(tokenFormat("int32", "x"));
}

TEST_CASE("bad files are refused with what is wrong and where") {
  CHECK(refusal(folder().path + "/none", TokenFormat::Text, 256).find("No such file") != std::string::npos);
  CHECK(refusal(folder().path, TokenFormat::Text, 256).find("expected a file") != std::string::npos);
  CHECK(refusal(write("empty", ""), TokenFormat::Text, 256).find("empty") != std::string::npos);
  CHECK(refusal(write("odd", "abc"), TokenFormat::Uint16, 10000).find("3 bytes") != std::string::npos);
  std::string many(5'000'000, '\0');
  many[3'000'002] = '\x10';
  many[3'000'003] = '\x27'; // 10000
  const std::string text = refusal(write("token", many), TokenFormat::Uint16, 10000);
  for (const char *part : {"token 1500001", "byte 3000002", "is 10000", "vocabulary of 10000"})
    CHECK(text.find(part) != std::string::npos);
  CHECK(refusal(write("token", many), TokenFormat::Uint16, 10001).empty());
  auto file = TokenFile::open(write("shrinks", "abcdef"), TokenFormat::Text, 256);
  REQUIRE(file);
  write("shrinks", "abc");
  std::vector<int32_t> tokens(4);
  Status status = file->read(1, tokens);
  REQUIRE_FALSE(status);
  CHECK(status.error().text().find("6 bytes when training started") != std::string::npos);
}

TEST_CASE("each epoch visits every window once, in an order of its own that the seed decides") {
  for (int64_t tokens : {5, 9, 10, 100, 1025, 5000}) {
    const SequenceOrder order(1000, 1000 + tokens, 4, 7), other(1000, 1000 + tokens, 4, 8);
    CHECK(order.windows() == (tokens - 1) / 4);
    std::vector<int64_t> epochs[2];
    std::set<int64_t> seen;
    bool differs = false;
    for (int64_t n = 0; n < 2 * order.windows(); ++n) {
      epochs[n / order.windows()].push_back(order.begin(n));
      if (n < order.windows()) seen.insert(order.begin(n));
      CHECK((order.begin(n) - 1000) % 4 == 0);
      CHECK(order.begin(n) + 5 <= 1000 + tokens);
      differs |= order.begin(n) != other.begin(n);
    }
    CHECK(static_cast<int64_t>(seen.size()) == order.windows());
    if (order.windows() < 10) continue;
    CHECK(differs);
    CHECK(epochs[0] != epochs[1]);
  }
  CHECK(SequenceOrder(0, 4, 4, 1).windows() == 0);
}

TEST_CASE("the learning rate rises to its highest, then falls to its lowest") {
  TrainOptions o;
  o.learningRate = 1;
  o.minimumRate = 0.1;
  o.warmup = 10;
  o.steps = 110;
  CHECK(o.rateAt(1) == doctest::Approx(0.1));
  CHECK(o.rateAt(10) == doctest::Approx(1));
  CHECK(o.rateAt(60) == doctest::Approx(0.55));
  CHECK(o.rateAt(110) == doctest::Approx(0.1));
  for (int64_t step = 11; step < 110; ++step)
    CHECK(o.rateAt(step + 1) < o.rateAt(step));
  o.warmup = 0;
  o.steps = 1;
  CHECK(o.rateAt(1) == 0.1);
}

TEST_CASE("options out of range are refused by name") {
  TrainOptions o;
  o.model.vocabulary = 256;
  CHECK(o.validate());
  o.learningRate = NAN;
  CHECK(o.validate().error().text().find("learning-rate") != std::string::npos);
  o = {};
  o.batch = 0;
  CHECK(o.validate().error().text().find("batch") != std::string::npos);
  o = {};
  o.model.vocabulary = 255;
  CHECK(o.validate().error().text().find("bytes") != std::string::npos);
}

TEST_CASE("models go through JSON, and odd JSON is refused") {
  ModelConfig config = *ModelConfig::preset("medium");
  config.ropeBase = 5e5;
  CHECK((ModelConfig::fromJson(config.json()).value() == config));
  CHECK_FALSE(ModelConfig::fromJson("nonsense"));
  CHECK_FALSE(ModelConfig::fromJson("{}"));
  std::string text = config.json();
  CHECK_FALSE(ModelConfig::fromJson(text.substr(0, text.size() - 1) + ",\"more\":1}"));
  text.replace(text.find("\"heads\":16"), 10, "\"heads\":\"x\"");
  CHECK_FALSE(ModelConfig::fromJson(text));
}

TEST_CASE("the next token is chosen by its probability among the likeliest") {
  const std::vector<float> logits = {0, std::log(3.0f), -INFINITY, std::log(4.0f)};
  SampleOptions o;
  o.temperature = 0;
  CHECK(chooseToken(logits, o, 5).value() == 3);
  o.temperature = 1;
  o.topK = 0;
  std::vector<int> counts(4);
  constexpr int kDraws = 1 << 13;
  for (uint64_t i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(chooseToken(logits, o, i << 51).value())]; // evenly over [0, 1)
  CHECK(counts[0] == doctest::Approx(kDraws / 8).epsilon(0.02));
  CHECK(counts[1] == doctest::Approx(kDraws * 3 / 8).epsilon(0.02));
  CHECK(counts[2] == 0);
  o.topK = 2;
  for (uint64_t i = 0; i < 100; ++i)
    CHECK(chooseToken(logits, o, i << 57).value() != 0);
  CHECK_FALSE(chooseToken(std::vector<float>{NAN, NAN}, o, 1));
}
