#include "tilewright/cuda/Stream.h"

namespace tilewright::cuda {

Expected<Stream> Stream::create(std::shared_ptr<const Device> device) {
  Stream made;
  made.device = std::move(device);
  CurrentContext current(made.device->api(), made.device->context(), made.device->handle());
  int code =
      current.code() == kSuccess ? made.device->api().streamCreate(&made.stream, kStreamNonBlocking) : current.code();
  if (Status status = made.device->driver().check(code, Stage::Launch, "create a stream"); !status) {
    made.stream = nullptr;
    return propagate(status);
  }
  return made;
}

Stream::~Stream() {
  if (!stream) return;
  CurrentContext current(device->api(), device->context(), device->handle());
  device->api().streamDestroy(stream);
}

Status Stream::synchronize() const {
  CurrentContext current(device->api(), device->context(), device->handle());
  int code = current.code() == kSuccess ? device->api().streamSynchronize(stream) : current.code();
  return device->driver().check(code, Stage::Launch, "finish the work on a stream");
}

Expected<Event> Event::create(std::shared_ptr<const Device> device) {
  Event made;
  made.device = std::move(device);
  CurrentContext current(made.device->api(), made.device->context(), made.device->handle());
  int code = current.code() == kSuccess ? made.device->api().eventCreate(&made.event, 0) : current.code();
  if (Status status = made.device->driver().check(code, Stage::Launch, "create an event"); !status) {
    made.event = nullptr;
    return propagate(status);
  }
  return made;
}

Event::~Event() {
  if (!event) return;
  CurrentContext current(device->api(), device->context(), device->handle());
  device->api().eventDestroy(event);
}

Status Event::record(void *stream) {
  CurrentContext current(device->api(), device->context(), device->handle());
  int code = current.code() == kSuccess ? device->api().eventRecord(event, stream) : current.code();
  return device->driver().check(code, Stage::Launch, "record an event");
}

Status Event::synchronize() const {
  CurrentContext current(device->api(), device->context(), device->handle());
  int code = current.code() == kSuccess ? device->api().eventSynchronize(event) : current.code();
  return device->driver().check(code, Stage::Launch, "wait for an event");
}

Expected<bool> Event::isReached() const {
  CurrentContext current(device->api(), device->context(), device->handle());
  const int code = current.code() == kSuccess ? device->api().eventQuery(event) : current.code();
  if (code == kNotReady) return false;
  if (Status status = device->driver().check(code, Stage::Launch, "look at an event"); !status)
    return propagate(status);
  return true;
}

Status Event::holdBack(void *stream) const {
  CurrentContext current(device->api(), device->context(), device->handle());
  const int code = current.code() == kSuccess ? device->api().streamWaitEvent(stream, event, 0) : current.code();
  return device->driver().check(code, Stage::Launch, "let a stream wait for an event");
}

Expected<double> Event::millisecondsSince(const Event &start) const {
  float milliseconds = 0;
  int code = device->api().eventElapsedTime(&milliseconds, start.event, event);
  if (Status status = device->driver().check(code, Stage::Launch, "measure the time between events"); !status)
    return propagate(status);
  return milliseconds;
}

} // namespace tilewright::cuda
