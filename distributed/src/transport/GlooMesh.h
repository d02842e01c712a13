// A Gloo context with a connection to every other rank, made without Gloo's own rendezvous.
#pragma once

#include "GlooGroup.h"

namespace tilewright::dist {

class GlooGroup::Mesh : public gloo::Context {
public:
  static Expected<std::unique_ptr<Mesh>> make(const JobEnvironment &job);

  /// Where each other rank finds this one, for the rendezvous.
  std::string addresses() const;
  /// From everyone's addresses().
  Status connect(const std::vector<std::string> &all);

  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(void *data, size_t bytes) {
    return createUnboundBuffer(data, bytes);
  }
  void close() { closeConnections(); }

private:
  using gloo::Context::Context;
};

} // namespace tilewright::dist
