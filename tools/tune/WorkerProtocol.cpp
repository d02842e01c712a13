#include "WorkerProtocol.h"
#include "tilewright/Context.h"
#include "tilewright/tensor/Npy.h"
#include <cerrno>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

namespace tilewright::tune {

namespace {

using Kind = WorkerRequest::Kind;
constexpr std::pair<Kind, const char *> kKinds[] = {
    {Kind::Compile, "compile"}, {Kind::Open, "open"}, {Kind::Measure, "measure"}};

} // namespace

nlohmann::json toJson(const WorkerRequest &r) {
  const char *name = "";
  for (const auto &[kind, text] : kKinds)
    if (kind == r.kind) name = text;
  return {{"op", name},
          {"problem", r.problem},
          {"plan", r.measure.plan},
          {"check", r.measure.check},
          {"spills_too", r.measure.spillsToo},
          {"stop_above_ms", r.measure.stopAboveMs},
          {"budget_ms", r.measure.budgetMs},
          {"tables", r.tables},
          {"cold", r.coldCaches},
          {"device", r.device}};
}

Expected<WorkerRequest> workerRequestFromJson(const nlohmann::json &json) {
  WorkerRequest request;
  try {
    for (const auto &[kind, text] : kKinds)
      if (json.at("op") == text) request.kind = kind;
    Expected<Problem> problem = problemFromJson(json.at("problem"));
    if (!problem) return propagate(problem);
    request.problem = std::move(*problem);
    Expected<KernelPlan> plan = kernelPlanFromJson(json.at("plan"));
    if (!plan) return propagate(plan);
    request.measure.plan = std::move(*plan);
    json.at("check").get_to(request.measure.check);
    json.at("spills_too").get_to(request.measure.spillsToo);
    json.at("stop_above_ms").get_to(request.measure.stopAboveMs);
    json.at("budget_ms").get_to(request.measure.budgetMs);
    json.at("tables").get_to(request.tables);
    json.at("cold").get_to(request.coldCaches);
    json.at("device").get_to(request.device);
  } catch (const nlohmann::json::exception &error) {
    return fail(Stage::Communicate, fmt::format("not a request: {}", error.what()));
  }
  return request;
}

nlohmann::json toJson(const Expected<Measurement> &reply) {
  if (!reply) return {{"error", reply.error().text()}};
  return {{"outcome", toString(reply->outcome)}, {"detail", reply->detail},         {"ms", reply->ms},
          {"fastest_ms", reply->fastestMs},      {"slowest_ms", reply->slowestMs},  {"clock_mhz", reply->clockMhz},
          {"repeats", reply->repeats},           {"device_lost", reply->deviceLost}};
}

Expected<Measurement> replyFromJson(const nlohmann::json &json) {
  Measurement reply;
  try {
    if (json.contains("error")) return fail(Stage::Verify, json.at("error").get<std::string>());
    Expected<TuningOutcome> outcome = parseTuningOutcome(json.at("outcome").get<std::string>());
    if (!outcome) return propagate(outcome);
    reply.outcome = *outcome;
    json.at("detail").get_to(reply.detail);
    json.at("ms").get_to(reply.ms);
    json.at("fastest_ms").get_to(reply.fastestMs);
    json.at("slowest_ms").get_to(reply.slowestMs);
    json.at("clock_mhz").get_to(reply.clockMhz);
    json.at("repeats").get_to(reply.repeats);
    json.at("device_lost").get_to(reply.deviceLost);
  } catch (const nlohmann::json::exception &error) {
    return fail(Stage::Communicate, fmt::format("not a reply: {}", error.what()));
  }
  return reply;
}

namespace {

/// Lines from a file descriptor.
class LineReader {
public:
  explicit LineReader(int file) : file(file) {}

  std::optional<std::string> next() {
    for (;;) {
      if (const size_t newline = pending.find('\n'); newline != std::string::npos) {
        std::string line = pending.substr(0, newline);
        pending.erase(0, newline + 1);
        return line;
      }
      char buffer[1 << 14];
      const ssize_t count = read(file, buffer, sizeof(buffer));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return std::nullopt;
      pending.append(buffer, static_cast<size_t>(count));
    }
  }

private:
  int file;
  std::string pending;
};

bool writeLine(int file, std::string line) {
  line += '\n';
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = write(file, line.data() + sent, line.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

Measurement compileOnly(Context &context, const MeasureRequest &request) {
  Measurement measurement;
  if (Status status = request.plan.validate(); !status) {
    measurement.outcome = TuningOutcome::Invalid;
    measurement.detail = status.error().message;
    return measurement;
  }
  for (const KernelPlan &plan : withFollower(request.plan)) {
    auto compiled = context.compile(plan);
    if (!compiled) {
      measurement.outcome = TuningOutcome::CompileFailed;
      measurement.detail = compiled.error().message;
      return measurement;
    }
    const auto &problems = compiled->report.compile.problems;
    if (problems.empty() || request.spillsToo) continue;
    measurement.outcome = TuningOutcome::Spills;
    measurement.detail = fmt::format("{}", fmt::join(problems, "; "));
  }
  return measurement;
}

/// One session at a time: tensors of two problems might not fit beside each other.
class Worker {
public:
  explicit Worker(Context &context) : context(context) {}

  Expected<Measurement> answer(const WorkerRequest &request) {
    if (request.kind == WorkerRequest::Kind::Compile) return compileOnly(context, request.measure);
    const std::string name = nlohmann::json(request.problem).dump() + (request.coldCaches ? " cold" : " warm");
    if (!session || name != sessionName) {
      session.reset();
      MeasureSession::Options options{
          request.problem, request.measure.plan.target, {}, request.coldCaches, request.device};
      for (const std::string &path : request.tables) {
        Expected<Table> table = readTable(path);
        if (!table) return propagate(table);
        options.tables.push_back(std::move(*table));
      }
      Expected<std::unique_ptr<MeasureSession>> made = MeasureSession::make(context, std::move(options));
      if (!made) return propagate(made);
      session = std::move(*made);
      sessionName = name;
    }
    return request.kind == Kind::Open ? Measurement() : session->measure(request.measure);
  }

private:
  Context &context;
  std::unique_ptr<MeasureSession> session;
  std::string sessionName;
};

} // namespace

void serveRequests(Context &context, int input, int output) {
  LineReader lines(input);
  Worker worker(context);
  while (std::optional<std::string> line = lines.next()) {
    Expected<WorkerRequest> request = workerRequestFromJson(nlohmann::json::parse(*line, nullptr, false));
    Expected<Measurement> reply = request ? Expected<Measurement>() : propagate(request);
    try {
      if (request) reply = worker.answer(*request);
    } catch (const std::exception &error) { // out of memory, say
      reply = fail(Stage::Verify, error.what());
    }
    const bool lost = reply && reply->deviceLost;
    if (!writeLine(output, toJson(reply).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) || lost)
      return;
    context.dropUnused();
  }
}

} // namespace tilewright::tune
