#include "tilewright/cuda/Graph.h"

namespace tilewright::cuda {

Expected<Graph> Graph::capture(std::shared_ptr<const Device> device, const Stream &stream,
                               const std::function<Status()> &enqueue, CaptureMode mode) {
  const DriverApi &api = device->api();
  if (!api.streamBeginCapture || !api.streamEndCapture || !api.graphInstantiate || !api.graphGetNodes ||
      !api.graphDestroy || !api.graphLaunch || !api.graphExecDestroy)
    return fail(Stage::Launch, "the driver has no CUDA graphs", "update the driver to one for CUDA 12");
  CurrentContext current(api, device->context(), device->handle());
  auto check = [&](int code, const char *what) { return device->driver().check(code, Stage::Launch, what); };
  if (Status status = check(current.code(), "make a context current"); !status) return propagate(status);
  if (Status status = check(api.streamBeginCapture(stream.handle(), static_cast<int>(mode)), "begin a capture");
      !status)
    return propagate(status);
  Status enqueued = enqueue();
  void *graph = nullptr;
  Status ended = check(api.streamEndCapture(stream.handle(), &graph), "end a capture");
  if (!enqueued || !ended) {
    if (graph) api.graphDestroy(graph);
    return propagate(enqueued ? ended : enqueued);
  }
  Graph made;
  made.device = device;
  Status status = check(api.graphGetNodes(graph, nullptr, &made.nodeCount), "count a graph's nodes");
  if (status) status = check(api.graphInstantiate(&made.executable, graph, 0), "instantiate a graph");
  api.graphDestroy(graph);
  if (!status) return propagate(status);
  return made;
}

Graph::~Graph() {
  if (!executable) return;
  CurrentContext current(device->api(), device->context(), device->handle());
  device->api().graphExecDestroy(executable);
}

Status Graph::launch(const Stream &stream) const {
  CurrentContext current(device->api(), device->context(), device->handle());
  const int code = current.code() == kSuccess ? device->api().graphLaunch(executable, stream.handle()) : current.code();
  return code == kSuccess ? Status() : device->driver().check(code, Stage::Launch, "launch a graph");
}

} // namespace tilewright::cuda
