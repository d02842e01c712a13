// Opens the fake CUDA libraries in a test. FAKE_CUDA_PATH is the library's file, defined by the build.
#pragma once

#include "FakeCuda.h"
#include <dlfcn.h>

inline FakeCuda &fakeCuda() {
  static FakeCuda *controls = [] {
    void *library = dlopen(FAKE_CUDA_PATH, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<FakeCudaControls>(dlsym(library, "fakeCuda"))();
  }();
  return *controls;
}

/// Pretends something for the length of a scope.
template <class Member, class Value> struct Pretend {
  Pretend(Member &member, Value value) : member(member), before(member) { member = value; }
  ~Pretend() { member = before; }
  Member &member;
  Value before;
};
