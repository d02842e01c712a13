#include "InterruptGuard.h"

namespace tilewright::tool {
namespace {

std::atomic<bool> interruptRequested = false;

} // namespace

InterruptGuard::InterruptGuard() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interruptRequested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before[0]);
  sigaction(SIGTERM, &action, &before[1]);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &before[0], nullptr);
  sigaction(SIGTERM, &before[1], nullptr);
}

const std::atomic<bool> &InterruptGuard::requested() { return interruptRequested; }

} // namespace tilewright::tool
