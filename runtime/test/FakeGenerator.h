// A CodeGenerator without a compiler. Its CUDA source is a trivial kernel; its CPU objects are text, and run as code
// that writes each block's number into lse.
#pragma once

#include "tilewright/CodeGenerator.h"
#include <atomic>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <thread>

class FakeHostCode : public tilewright::HostCode {
public:
  explicit FakeHostCode(std::atomic<int> &alive) : alive(alive) { ++alive; }
  ~FakeHostCode() override { --alive; }
  void run(const tilewright::KernelArgs &args, int64_t begin, int64_t end, void *scratch) const override {
    std::memset(scratch, 0x5a, 1000); // Sanitizers see threads that share scratch memory.
    for (int64_t block = begin; block < end; ++block)
      args.lse[block] += static_cast<float>(block);
  }

private:
  std::atomic<int> &alive;
};

class FakeGenerator : public tilewright::CodeGenerator {
public:
  std::atomic<int> generated{0}, linked{0}, alive{0};
  std::atomic<int> milliseconds{0}; ///< That generate() takes.
  std::atomic<bool> fails{false}, refusesObjects{false};

  tilewright::Expected<tilewright::GeneratedCode> generate(const tilewright::KernelPlan &plan) override {
    ++generated;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    if (fails) return tilewright::fail(tilewright::Stage::Emit, "the generator refuses");
    tilewright::GeneratedCode code;
    code.symbol = plan.symbol();
    if (plan.target.isCpu()) {
      std::string object = "object of " + plan.canonicalText();
      code.object.assign(object.begin(), object.end());
      code.scratchBytes = 1000;
    } else {
      code.cudaSource = fmt::format("extern \"C\" __global__ void {}(int *p) {{ *p = 1; }}\n", code.symbol);
    }
    return code;
  }

  tilewright::Expected<std::unique_ptr<tilewright::HostCode>> loadHostCode(std::span<const char> object,
                                                                           const std::string &) override {
    ++linked;
    if (refusesObjects.exchange(false) || !std::string_view(object.data(), object.size()).starts_with("object of "))
      return tilewright::fail(tilewright::Stage::Load, "not an object");
    return std::make_unique<FakeHostCode>(alive);
  }
};
