// The peers' child process without PyTorch, and Pythons that misbehave.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "Peers.h"
#include "Embedded.h"
#include "PeerProcess.h"
#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

using namespace tilewright;
using namespace tilewright::bench;

namespace {

/// A program that stands in for Python: a shell script.
class FakePython {
public:
  explicit FakePython(const std::string &body) {
    char name[] = "/tmp/tilewright-fake-python-XXXXXX";
    close(mkstemp(name));
    path = name;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0700);
  }
  ~FakePython() { unlink(path.c_str()); }
  std::string path;
};

BenchCase someCase(const std::string &mask = "causal") {
  return benchCases({.dims = "64", .seqs = "512", .masks = mask})->front();
}

SeriesOptions quick() { return {.repeats = 3, .warmups = 1, .pauseSeconds = 0}; }

std::atomic<bool> never = false;

/// Answers like the real program: a line for hello and open, figures for series, a failure for fa2.
const char *const kObedient = R"(
while read -r line; do
  case "$line" in
    *'"hello"'*) echo '{"ok":true,"torch":"9.9","cudnn":"1.2.3"}' ;;
    *'"open"'*) echo "$line" >>"$0.seen"; echo '{"ok":true}' ;;
    *'"fa2"'*) echo '{"ok":false,"why":"no such kernel"}' ;;
    *'"series"'*) echo '{"ok":true,"ms":0.5,"fastest":0.4,"slowest":0.6,"queued":true,"begin":1,"end":2}' ;;
    *) echo '{"ok":true}' ;;
  esac
done)";

} // namespace

TEST_CASE("the embedded program says what is missing instead of failing") {
  REQUIRE_FALSE(embeddedFile("peers.py").empty());
  FakePython torchless("exec /usr/bin/env python3 -I -S \"$2\""); // -S: no site packages, so no PyTorch
  auto process = PeerProcess::start(torchless.path);
  REQUIRE(process.has_value());
  auto reply = (*process)->ask({{"op", "hello"}}, 60);
  REQUIRE_MESSAGE(reply.has_value(), reply.error().text());
  CHECK((*reply)["ok"] == false);
  CHECK((*reply)["why"].get<std::string>().find("No module named 'torch'") != std::string::npos);
  CHECK((*reply)["why"].get<std::string>().starts_with("PyTorch cannot be imported by "));
  // It stays up, also after requests that make no sense.
  for (const nlohmann::json &request :
       {nlohmann::json{{"op", "dance"}}, nlohmann::json{{"no", 1}}, nlohmann::json::array()}) {
    auto answer = (*process)->ask(request, 60);
    REQUIRE_MESSAGE(answer.has_value(), answer.error().text());
    CHECK((*answer)["ok"] == false);
  }
  auto closed = (*process)->ask({{"op", "close"}}, 60);
  REQUIRE(closed.has_value());
  CHECK((*closed)["ok"] == true);
}

TEST_CASE("without PyTorch every peer says why") {
  FakePython torchless("exec /usr/bin/env python3 -I -S \"$2\"");
  auto peers = Peers::create("auto", torchless.path, never);
  REQUIRE(peers.has_value());
  CHECK(peers->names() == std::vector<std::string>{"cudnn", "fa3_estimate", "fa2", "flex"});
  CHECK(peers->origin().find("torch") != std::string::npos);
  const auto contestants = peers->measure(someCase(), quick(), nullptr);
  REQUIRE(contestants.size() == 4);
  for (const Contestant &c : contestants) {
    CHECK_FALSE(c.series.has_value());
    CHECK_FALSE(c.why.empty());
  }
}

TEST_CASE("figures, refusals of one peer and the estimate") {
  FakePython python(kObedient);
  auto peers = Peers::create("cudnn,fa2", python.path, never);
  REQUIRE(peers.has_value());
  CHECK(peers->origin() == "PyTorch 9.9, cuDNN 1.2.3");
  const auto contestants = peers->measure(someCase("window:100"), quick(), nullptr);
  REQUIRE(contestants.size() == 3);
  CHECK(contestants[0].series.value().ms == 0.5);
  CHECK(contestants[0].series.value().slowestMs == 0.6);
  CHECK_FALSE(contestants[1].series.has_value()); // no ratio for windows
  CHECK(contestants[2].why == "no such kernel");
  const auto table = peers->measure(someCase(), quick(), nullptr);
  CHECK(table[1].estimated);
  CHECK(table[1].series.value().ms == doctest::Approx(0.5 * 262.7 / 228.8));

  std::ifstream seen(python.path + ".seen");
  std::string line;
  REQUIRE(std::getline(seen, line));
  const nlohmann::json open = nlohmann::json::parse(line);
  CHECK(open["mask"] == "window");
  CHECK(open["window"] == 100);
  CHECK(open["batch"] == 32);
  CHECK(open["heads_kv"] == 32);
  CHECK(open["backward"] == false);
  REQUIRE(std::getline(seen, line));
  CHECK(nlohmann::json::parse(line)["mask"] == "causal");
  unlink((python.path + ".seen").c_str());
}

TEST_CASE("a child that ends, babbles or hangs is an error with its last words") {
  struct Bad {
    const char *body, *message;
  };
  for (const Bad &bad :
       {Bad{"echo 'Segmentation fault, sort of' >&2; exit 3", "Segmentation fault, sort of"},
        Bad{"read line; echo 'hello there'; cat >/dev/null", "no reply"},
        Bad{"read line; echo '[1]'; cat >/dev/null", "no reply"},
        Bad{"read line; echo '{\"ok\": 7}'; cat >/dev/null", "no reply"}, Bad{"cat >/dev/null", "within 0.3 s"}}) {
    CAPTURE(bad.body);
    FakePython python(bad.body);
    auto process = PeerProcess::start(python.path);
    REQUIRE(process.has_value());
    auto reply = (*process)->ask({{"op", "hello"}}, 0.3);
    REQUIRE_FALSE(reply.has_value());
    CHECK_MESSAGE(reply.error().message.find(bad.message) != std::string::npos, reply.error().message);
    CHECK_FALSE((*process)->alive());
    CHECK_FALSE((*process)->ask({{"op", "hello"}}, 0.3).has_value());
  }
}

TEST_CASE("a child that dies in a series is started again, but not for ever") {
  FakePython python(R"(
while read -r line; do
  case "$line" in
    *'"hello"'*) echo '{"ok":true,"torch":"9.9","cudnn":"1.2.3"}' ;;
    *'"cudnn"'*) echo 'device lost' >&2; exit 1 ;;
    *'"series"'*) echo '{"ok":true,"ms":0.5}' ;;
    *) echo '{"ok":true}' ;;
  esac
done)");
  auto peers = Peers::create("cudnn,fa2", python.path, never);
  REQUIRE(peers.has_value());
  for (int cell = 0; cell < 3; ++cell) {
    const auto contestants = peers->measure(someCase(), quick(), nullptr);
    CHECK(contestants[0].why.find("device lost") != std::string::npos);
    CHECK(contestants[1].why == "needs cuDNN's figures");
    CHECK(contestants[2].series.has_value());
  }
  const auto contestants = peers->measure(someCase(), quick(), nullptr);
  CHECK_FALSE(contestants[2].series.has_value());
}

TEST_CASE("an interrupt ends the waiting") {
  FakePython python("cat >/dev/null");
  auto process = PeerProcess::start(python.path);
  REQUIRE(process.has_value());
  std::atomic<bool> interrupted = true;
  auto reply = (*process)->ask({{"op", "hello"}}, 3600, &interrupted);
  REQUIRE_FALSE(reply.has_value());
  CHECK(reply.error().message.find("interrupted") != std::string::npos);
}

TEST_CASE("choices of peers") {
  auto none = Peers::create("none", "/nonexistent", never);
  REQUIRE(none.has_value());
  CHECK(none->names().empty());
  CHECK(none->measure(someCase(), quick(), nullptr).empty());
  for (const char *bad : {"", "fa4", "cudnn,", "cudnn,cudnn"}) {
    CAPTURE(bad);
    auto peers = Peers::parseChoice(bad);
    REQUIRE_FALSE(peers.has_value());
    CHECK(peers.error().message.find("--peers") != std::string::npos);
  }
  auto missing = Peers::create("fa2", "/nonexistent/python3", never);
  REQUIRE(missing.has_value()); // a missing peer is no reason not to measure
  CHECK(missing->origin().find("/nonexistent/python3") != std::string::npos);
}
