#include "CError.h"
#include "CHandles.h"
#include "CProblem.h"
#include "CTensors.h"
#include "SizedStruct.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

using namespace tilewright;

namespace {

/// What a caller's options mean on this machine.
Expected<Target> chooseTarget(Context &context, const tw_prepare_options &options) {
  if (options.device_type != 0 && options.device_type != TW_CPU && options.device_type != TW_CUDA)
    return fail(Stage::Input, fmt::format("tw_prepare_options.device_type: expected TW_CPU ({}), TW_CUDA ({}) or 0, "
                                          "found {}",
                                          static_cast<int>(TW_CPU), static_cast<int>(TW_CUDA), options.device_type));
  if (options.target) return Target::parse(options.target);
  if (options.device_type == TW_CPU) return context.hostTarget();
  Expected<Target> target = context.deviceTarget(options.device_id);
  return target || options.device_type == TW_CUDA ? target : context.hostTarget();
}

std::string describe(const Attention &attention) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const Kernel &kernel : attention.kernels()) {
    const PrepareReport &report = kernel.report();
    kernels.push_back({{"symbol", report.symbol},
                       {"role", toString(kernel.plan().role)},
                       {"schedule", kernel.plan().schedule.canonicalText()},
                       {"origin", kernel.fromMemory() ? std::string_view("memory") : toString(report.origin)},
                       {"compiler", report.compiler},
                       {"compile_ms", report.generateMs + report.compileMs},
                       {"path", report.path}});
  }
  const nlohmann::json all = {
      {"problem", attention.problem()}, {"target", attention.target()}, {"kernels", std::move(kernels)}};
  return all.dump();
}

Status prepare(tw_context *context, Expected<Problem> problem, const tw_prepare_options *options,
               tw_attention **attention) {
  if (!attention) return fail(Stage::Input, "attention: expected where to put the handle, found null");
  *attention = nullptr;
  if (!context) return fail(Stage::Input, "context: expected one that tw_context_create made, found null");
  if (!problem) return propagate(problem);
  tw_prepare_options how{};
  if (Status status = c::take("tw_prepare_options", options, how); !status) return status;
  Expected<ScheduleOverrides> overrides = c::overridesOf(how.schedule);
  if (!overrides) return propagate(overrides);
  Expected<Target> target = chooseTarget(*context->context, how);
  if (!target) return propagate(target);
  Expected<Attention> made = Attention::prepare(*context->context, *problem, *target, *overrides,
                                                {.device = how.device_id, .stream = how.stream});
  if (!made) return propagate(made);
  std::string description = describe(*made);
  *attention = new tw_attention{std::move(*made), target->isCpu() ? TW_CPU : TW_CUDA,
                                target->isCpu() ? 0 : how.device_id, std::move(description)};
  return {};
}

Status checkHandle(const tw_attention *attention, const tw_attention_args *args) {
  if (!attention) return fail(Stage::Input, "attention: expected one that tw_attention_prepare made, found null");
  if (!args) return fail(Stage::Input, "args: expected tensors, found null");
  return c::checkSize("tw_attention_args", args);
}

int launch(const tw_attention *attention, const tw_attention_args *args, void *stream, Direction direction) {
  return c::guarded([&]() -> Status {
    if (Status status = checkHandle(attention, args); !status) return status;
    tw_attention_args given{};
    std::memcpy(&given, args, args->struct_size);
    const Attention &kernels = attention->attention;
    if (direction == Direction::Backward && kernels.kernels(direction).empty())
      return kernels.backward(stream, {}); // says so, before tensors that nobody needs are found missing
    c::TableExtents extents;
    Expected<KernelArgs> kernelArgs = c::argumentsOf(*attention, given, direction, extents);
    if (!kernelArgs) return propagate(kernelArgs);
    return direction == Direction::Forward ? kernels.forward(stream, *kernelArgs)
                                           : kernels.backward(stream, *kernelArgs);
  });
}

} // namespace

int tw_attention_prepare(tw_context *context, const tw_problem *problem, const tw_prepare_options *options,
                         tw_attention **attention) {
  return c::guarded([&] { return prepare(context, c::problemOf(problem), options, attention); });
}

int tw_attention_prepare_json(tw_context *context, const char *problem, const tw_prepare_options *options,
                              tw_attention **attention) {
  return c::guarded([&] { return prepare(context, c::problemOf(problem), options, attention); });
}

void tw_attention_destroy(tw_attention *attention) { delete attention; }

const char *tw_attention_describe(const tw_attention *attention) {
  return attention ? attention->description.c_str() : "";
}

int tw_attention_workspace(const tw_attention *attention, const tw_attention_args *args, tw_workspace *workspace) {
  return c::guarded([&]() -> Status {
    if (Status status = checkHandle(attention, args); !status) return status;
    if (!workspace) return fail(Stage::Input, "workspace: expected where to put the sizes, found null");
    if (Status status = c::checkSize("tw_workspace", workspace); !status) return status;
    tw_attention_args given{};
    std::memcpy(&given, args, args->struct_size);
    Expected<KernelArgs> sizes = c::sizesOf(*attention, given);
    if (!sizes) return propagate(sizes);
    const tw_workspace found{workspace->struct_size, attention->attention.workspaceBytes(Direction::Forward, *sizes),
                             attention->attention.workspaceBytes(Direction::Backward, *sizes)};
    std::memcpy(workspace, &found, workspace->struct_size);
    return {};
  });
}

int tw_attention_forward(const tw_attention *attention, const tw_attention_args *args, void *stream) {
  return launch(attention, args, stream, Direction::Forward);
}

int tw_attention_backward(const tw_attention *attention, const tw_attention_args *args, void *stream) {
  return launch(attention, args, stream, Direction::Backward);
}
