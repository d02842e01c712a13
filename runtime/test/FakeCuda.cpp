// A stand-in for libcuda and libnvrtc that keeps count; see FakeCuda.h. Handles are small numbers or pointers that
// nothing dereferences, device memory is host memory.
#include "FakeCuda.h"
#include "tilewright/KernelArgs.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

FakeCuda state;
thread_local std::vector<void *> contexts;
thread_local int captureMode = 0;

void *handle(uintptr_t number) { return reinterpret_cast<void *>(number); }
constexpr uintptr_t kContext = 0x100, kLibrary = 0x200, kKernel = 0x300, kFunction = 0x400, kStream = 0x500,
                    kOtherKernel = 0x700;
int ok() { return state.gone ? 4 : 0; }
void countStrict() {
  if (captureMode != 2) ++state.strictCalls;
}

std::mutex namesMutex;
std::set<std::string> names; ///< Of kernels that run; their addresses are handles.

struct Program {
  std::string source, name, log, code;
};

} // namespace

extern "C" {

FakeCuda *fakeCuda() { return &state; }

int cuDriverGetVersion(int *version) { return *version = state.driverVersion, 0; }
int cuInit(unsigned) { return state.initCode; }
int cuGetErrorName(int code, const char **name) {
  *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char **text) { return *text = "a text", 0; }
int cuDeviceGetCount(int *count) { return *count = state.devices, 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ok(); }
int cuDeviceGetName(char *name, int size, int) { return std::strncpy(name, "Fake GPU", size), ok(); }
int cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
  case 16:
    *value = 132;
    break;
  case 75:
    *value = state.major;
    break;
  case 76:
    *value = state.minor;
    break;
  case 97:
    *value = state.sharedOptIn;
    break;
  default:
    *value = 1;
    break;
  }
  return ok();
}
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = size_t{1} << 37, ok(); }

int cuDevicePrimaryCtxRetain(void **context, int device) {
  ++state.contexts;
  return *context = handle(kContext + device), ok();
}
int cuDevicePrimaryCtxRelease_v2(int) { return --state.contexts, ok(); }
int cuCtxGetCurrent(void **context) { return *context = contexts.empty() ? nullptr : contexts.back(), ok(); }
int cuCtxGetDevice(int *device) {
  if (contexts.empty()) return 201;
  return *device = static_cast<int>(reinterpret_cast<uintptr_t>(contexts.back()) & 0xf), ok();
}
int cuCtxPushCurrent_v2(void *context) { return ++state.pushes, contexts.push_back(context), ok(); }
int cuCtxPopCurrent_v2(void **context) {
  if (contexts.empty()) return 201;
  ++state.pops;
  *context = contexts.back();
  contexts.pop_back();
  return ok();
}
int cuCtxSynchronize() { return contexts.empty() ? 201 : ok(); }

int cuLibraryLoadData(void **library, const void *, int *, void **, unsigned, int *, void **, unsigned) {
  countStrict();
  if (state.failLoads > 0) return --state.failLoads, 200;
  ++state.loads;
  return *library = handle(kLibrary), ok();
}
int cuLibraryUnload(void *) { return countStrict(), ++state.unloads, ok(); }
int cuLibraryGetKernel(void **kernel, void *, const char *name) {
  if (state.execute) {
    std::lock_guard lock(namesMutex);
    return *kernel = const_cast<std::string *>(&*names.insert(name).first), ok();
  }
  // Kernels of the benchmark and of training take other parameters than KernelArgs.
  for (const char *other : {"tw_bench_", "tw_step_", "tw_train_"})
    if (std::strncmp(name, other, std::strlen(other)) == 0) return *kernel = handle(kOtherKernel), ok();
  return *kernel = handle(kKernel), ok();
}
int cuKernelGetFunction(void **function, void *kernel) {
  if (contexts.empty()) return 201;
  return *function = kernel == handle(kKernel) ? handle(kFunction) : kernel, ok();
}
int cuKernelGetAttribute(int *value, int attribute, void *, int) {
  return *value = attribute == 0 ? state.maxThreads.load() : 168, ok();
}
int cuKernelSetAttribute(int attribute, int value, void *, int) {
  if (attribute == 8) state.sharedAttribute = value;
  return ok();
}
int cuFuncLoad(void *) { return contexts.empty() ? 201 : ok(); }
int cuLaunchKernel(void *function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned shared, void *stream, void **parameters, void **) {
  if (contexts.empty()) return 201;
  if (function == handle(kOtherKernel)) return ok();
  if (function != handle(kFunction) && function != handle(kKernel)) {
    if (state.execute) state.execute(static_cast<std::string *>(function)->c_str(), x, threads, parameters);
    return ++state.launches, ok();
  }
  if (++state.launches == 1 || state.devices == 1) // The record is for tests of one thread.
    state.lastLaunch = {function, stream, x,
                        threads,  shared, static_cast<const tilewright::KernelArgs *>(parameters[0])->batch};
  return ok();
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
  return *free = static_cast<size_t>(state.freeBytes - state.allocated), *total = size_t{1} << 37, ok();
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  countStrict();
  if (static_cast<int64_t>(bytes) > state.freeBytes - state.allocated) return 2;
  auto *memory = static_cast<size_t *>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
  *memory = bytes;
  state.allocated += static_cast<int64_t>(bytes);
  return *address = reinterpret_cast<uint64_t>(memory) + 256, ok();
}
int cuMemFree_v2(uint64_t address) {
  countStrict();
  auto *memory = reinterpret_cast<size_t *>(address - 256);
  state.allocated -= static_cast<int64_t>(*memory);
  return std::free(memory), ok();
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *) {
  return std::memcpy((void *)to, from, n), ok();
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *) { return std::memcpy(to, (void *)from, n), ok(); }
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void *) {
  return std::memset((void *)to, value, n), ok();
}

int cuStreamCreate(void **stream, unsigned) { return *stream = handle(kStream), ok(); }
int cuStreamDestroy_v2(void *) { return ok(); }
int cuStreamSynchronize(void *) { return ok(); }
int cuStreamWaitEvent(void *, void *, unsigned) { return ++state.streamWaits, ok(); }
int cuStreamIsCapturing(void *stream, int *status) { return *status = stream == state.capturingStream, ok(); }
int cuStreamGetId(void *stream, unsigned long long *id) {
  return *id = reinterpret_cast<uintptr_t>(stream), contexts.empty() ? 201 : ok();
}
int cuTensorMapEncodeTiled(void *map, int, unsigned rank, void *address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *, int, int, int, int) {
  if (contexts.empty()) return 201;
  for (unsigned axis = 0; axis + 1 < rank; ++axis)
    if (strides[axis] == 0 || strides[axis] % 16) return 1;
  if (rank == 5) {
    std::copy_n(extents, 5, state.widestMap.extents);
    std::copy_n(strides, 4, state.widestMap.strides);
    std::copy_n(box, 5, state.widestMap.box);
  }
  return std::memcpy(map, &address, sizeof address), ok();
}
int cuThreadExchangeStreamCaptureMode(int *mode) { return std::swap(*mode, captureMode), ok(); }
int cuEventCreate(void **event, unsigned) { return *event = handle(0x600), ok(); }
int cuEventDestroy_v2(void *) { return ok(); }
int cuEventRecord(void *, void *) { return ok(); }
int cuEventSynchronize(void *) { return ok(); }
int cuEventQuery(void *) { return state.busy ? 600 : ok(); }
int cuEventElapsedTime(float *milliseconds, void *, void *) { return *milliseconds = 1.5f, ok(); }

const char *nvrtcGetErrorString(int) { return "NVRTC_ERROR_FAKE"; }
int nvrtcVersion(int *major, int *minor) { return *major = state.nvrtcMajor, *minor = state.nvrtcMinor, 0; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 2, 0; }
int nvrtcGetSupportedArchs(int *list) { return list[0] = 80, list[1] = 90, 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int, const char *const *,
                       const char *const *) {
  return *program = new Program{source, name, {}, {}}, 0;
}
int nvrtcDestroyProgram(void **program) {
  delete static_cast<Program *>(*program);
  return *program = nullptr, 0;
}
int nvrtcCompileProgram(void *opaque, int count, const char *const *options) {
  auto *program = static_cast<Program *>(opaque);
  ++state.compiles;
  std::this_thread::sleep_for(std::chrono::milliseconds(state.compileMilliseconds));
  std::string symbol = program->name.substr(0, program->name.size() - 3);
  program->log = "ptxas info    : Compiling entry function '" + symbol +
                 "' for 'sm_90a'\n    0 bytes stack frame, 0 "
                 "bytes spill stores, 0 bytes spill loads\nptxas info    : Used 168 registers, used 1 barriers\n";
  program->log += state.extraLog;
  program->code = "CUBIN of " + program->source;
  for (int i = 0; i < count; ++i)
    program->code += std::string(" ") + options[i];
  return state.compileCode;
}
int nvrtcGetCUBINSize(void *program, size_t *bytes) { return *bytes = static_cast<Program *>(program)->code.size(), 0; }
int nvrtcGetCUBIN(void *opaque, char *out) {
  auto *program = static_cast<Program *>(opaque);
  return std::memcpy(out, program->code.data(), program->code.size()), 0;
}
int nvrtcGetPTXSize(void *program, size_t *bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(void *program, char *out) { return nvrtcGetCUBIN(program, out); }
int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
  return *bytes = static_cast<Program *>(program)->log.size() + 1, 0;
}
int nvrtcGetProgramLog(void *opaque, char *out) {
  auto *program = static_cast<Program *>(opaque);
  return std::memcpy(out, program->log.c_str(), program->log.size() + 1), 0;
}
}
