// What a tuning process and its workers say to each other: one JSON object a line, a reply for each request.
//
// Requests name a problem and the plan of one candidate. "compile" puts its code into the cache that both share; "open"
// makes the problem's tensors and reference, "measure" checks and times a candidate on them. Replies are Measurements;
// {"error": TEXT} says that the problem itself cannot be measured here (no memory for its tensors, say), whatever the
// candidate.
#pragma once

#include "MeasureSession.h"
#include <nlohmann/json.hpp>

namespace tilewright::tune {

struct WorkerRequest {
  enum class Kind { Compile, Open, Measure } kind = Kind::Measure;
  Problem problem; ///< As the user stated it; the plan has the direction of its own role.
  MeasureRequest measure;
  std::vector<std::string> tables; ///< Files, in the order of Problem::tables.
  bool coldCaches = true;
  int device = 0;
};

nlohmann::json toJson(const WorkerRequest &request);
Expected<WorkerRequest> workerRequestFromJson(const nlohmann::json &json);

/// A reply: a measurement, or an Error about the problem.
nlohmann::json toJson(const Expected<Measurement> &reply);
Expected<Measurement> replyFromJson(const nlohmann::json &json);

/// The worker's whole life: answers requests from `input` on `output` (file descriptors) until the input ends or the
/// device is lost. `context` keeps the kernels it prepares.
void serveRequests(Context &context, int input, int output);

} // namespace tilewright::tune
