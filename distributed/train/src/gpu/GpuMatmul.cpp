#include "gpu/GpuMatmul.h"
#include <algorithm>
#include <fmt/format.h>

namespace tilewright::train {
namespace {

/// What NVIDIA recommends for Hopper; older GPUs want less.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

int cudaType(ElementType type) { return type == ElementType::F32 ? kCudaF32 : kCudaBF16; }

/// The largest power of two up to 256 that divides the address.
uint32_t alignmentOf(const void *data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

std::string shapeText(const Matrix &a, bool transposeA, const Matrix &c) {
  return fmt::format("multiply matrices ({} x {} over {})", c.rows, c.columns, transposeA ? a.rows : a.columns);
}

} // namespace

Expected<std::unique_ptr<GpuMatmul>> GpuMatmul::create(std::shared_ptr<const cuda::Device> device,
                                                       const Environment &environment, ElementType operands,
                                                       bool tf32) {
  auto library = CublasLt::open(environment, device->driver().version() / 1000);
  if (!library) return propagate(library);
  std::unique_ptr<GpuMatmul> made(new GpuMatmul(device, *library, operands, tf32));
  auto workspace = cuda::DeviceMemory::allocate(device, kWorkspaceBytes);
  if (!workspace) return propagate(workspace);
  made->workspace = std::move(*workspace);
  cuda::CurrentContext current(device->api(), device->context(), device->handle());
  const int code = (*library)->api().create(&made->handle);
  if (Status status = (*library)->check(code, Stage::Load, "start on device " + device->info().name); !status)
    return propagate(status);
  return made;
}

GpuMatmul::~GpuMatmul() {
  cuda::CurrentContext current(device->api(), device->context(), device->handle());
  for (auto &[shape, product] : products)
    forget(product);
  if (handle) library->api().destroy(handle);
}

void GpuMatmul::forget(Product &product) {
  for (void *layout : {product.a, product.b, product.c})
    if (layout) library->api().layoutDestroy(layout);
  if (product.desc) library->api().descDestroy(product.desc);
}

/// cuBLASLt counts by columns: what lies there as a matrix by rows is its transpose, so c^T = op(b)^T op(a)^T is asked
/// for, with b first.
Status GpuMatmul::describe(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c,
                           Product &product) {
  const CublasLtApi &api = library->api();
  int code = api.descCreate(&product.desc, tf32 ? kComputeTF32 : kComputeF32, kCudaF32);
  const int32_t first = transposeB, second = transposeA; // CUBLAS_OP_N, CUBLAS_OP_T
  if (code == 0) code = api.descSet(product.desc, kDescTransposeA, &first, sizeof(first));
  if (code == 0) code = api.descSet(product.desc, kDescTransposeB, &second, sizeof(second));
  auto layout = [&](void *&made, const Matrix &m) {
    if (code == 0)
      code = api.layoutCreate(&made, cudaType(m.type), static_cast<uint64_t>(m.columns), static_cast<uint64_t>(m.rows),
                              m.stride);
  };
  layout(product.a, b);
  layout(product.b, a);
  layout(product.c, c);
  if (Status status = library->check(code, Stage::Launch, shapeText(a, transposeA, c)); !status) return status;
  return choose(a, b, c, product);
}

Status GpuMatmul::choose(const Matrix &a, const Matrix &b, const Matrix &c, Product &product) {
  const CublasLtApi &api = library->api();
  void *preference = nullptr;
  int code = api.preferenceCreate(&preference);
  auto prefer = [&](int attribute, auto value) {
    if (code == 0) code = api.preferenceSet(preference, attribute, &value, sizeof(value));
  };
  prefer(kPreferWorkspaceBytes, static_cast<uint64_t>(kWorkspaceBytes));
  prefer(kPreferReductions, static_cast<uint32_t>(kReductionInComputeType));
  prefer(kPreferAlignmentA, alignmentOf(b.data));
  prefer(kPreferAlignmentB, alignmentOf(a.data));
  prefer(kPreferAlignmentC, alignmentOf(c.data));
  prefer(kPreferAlignmentD, alignmentOf(c.data));
  CublasLtHeuristic best{};
  int found = 0;
  if (code == 0)
    code =
        api.heuristic(handle, product.desc, product.a, product.b, product.c, product.c, preference, 1, &best, &found);
  if (preference) api.preferenceDestroy(preference);
  if (code == 0 && found > 0) code = best.state;
  if (Status status = library->check(code, Stage::Launch, "find an algorithm for a matrix product"); !status)
    return status;
  if (found == 0)
    return fail(Stage::Launch, fmt::format("{} has no algorithm for a product of {} rows and {} columns",
                                           library->versionText(), c.rows, c.columns));
  product.algorithm = best.algorithm;
  return {};
}

Status GpuMatmul::run(const Matrix &a, bool transposeA, const Matrix &b, bool transposeB, const Matrix &c, bool add,
                      void *stream) {
  if (!c.rows || !c.columns) return {};
  cuda::CurrentContext current(device->api(), device->context(), device->handle());
  const Shape shape{c.rows,
                    c.columns,
                    transposeA ? a.rows : a.columns,
                    a.stride,
                    b.stride,
                    c.stride,
                    transposeA,
                    transposeB,
                    c.type,
                    alignmentOf(a.data),
                    alignmentOf(b.data),
                    alignmentOf(c.data)};
  auto known = products.find(shape);
  if (known == products.end()) {
    Product made;
    if (Status status = describe(a, transposeA, b, transposeB, c, made); !status) {
      forget(made);
      return status;
    }
    known = products.emplace(shape, made).first;
  }
  const Product &product = known->second;
  const float one = 1, beta = add ? 1.0f : 0.0f;
  const int code =
      library->api().matmul(handle, product.desc, &one, b.data, product.a, a.data, product.b, &beta, c.data, product.c,
                            c.data, product.c, &product.algorithm, workspace.data(), kWorkspaceBytes, stream);
  if (code == 0) return {};
  return library->check(code, Stage::Launch, shapeText(a, transposeA, c));
}

} // namespace tilewright::train
