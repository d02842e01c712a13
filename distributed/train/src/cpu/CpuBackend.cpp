#include "CpuBackend.h"
#include <chrono>
#include <cstring>
#include <fmt/format.h>

namespace tilewright::train {

Expected<std::unique_ptr<Backend>> cpuBackend(std::shared_ptr<Context> context, ThreadPool &pool) {
  Expected<OpenBlas> blas = OpenBlas::open();
  if (!blas) return propagate(blas);
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(std::move(*blas), std::move(context), pool));
}

CpuBackend::CpuBackend(OpenBlas blas, std::shared_ptr<Context> context, ThreadPool &pool)
    : blas(std::move(blas)), context(std::move(context)), pool(pool), loops(RowLoops::get()) {
  this->blas.setThreads(pool.threads());
}

std::string CpuBackend::description() const {
  return fmt::format("{}, {} thread{}", blas.description, pool.threads(), pool.threads() == 1 ? "" : "s");
}

double CpuBackend::peakFlops() {
  if (peak >= 0) return peak;
  // No data sheet says what OpenBLAS reaches here: a product that fits the caches does.
  constexpr int n = 768;
  peak = 0;
  Expected<float *> memory = scratch(3 * n * n, 2);
  if (!memory) return peak;
  const Matrix a = Matrix::of(*memory, n, n), b = Matrix::of(*memory + n * n, n, n),
               c = Matrix::of(*memory + 2 * n * n, n, n);
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!matmul(a, false, b, true, c, false)) return peak;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    peak = std::max(peak, 2.0 * n * n * n / seconds);
  }
  return peak;
}

Expected<void *> CpuBackend::allocate(int64_t bytes, std::string_view what) {
  Expected<AlignedBuffer> buffer = AlignedBuffer::zeros(bytes, what);
  if (!buffer) return propagate(buffer);
  buffers.push_back(std::move(*buffer));
  return static_cast<void *>(buffers.back().data());
}

Status CpuBackend::fromHost(void *to, const void *from, int64_t bytes) {
  if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status CpuBackend::toHost(void *to, const void *from, int64_t bytes) { return fromHost(to, from, bytes); }

Status CpuBackend::clear(void *data, int64_t bytes) {
  if (bytes) std::memset(data, 0, static_cast<size_t>(bytes));
  return {};
}

Expected<float *> CpuBackend::scratch(int64_t elements, int place) {
  AlignedBuffer &buffer = places[place];
  if (buffer.size() < elements * 4) {
    Expected<AlignedBuffer> larger = AlignedBuffer::zeros(elements * 4, "scratch memory of the layers");
    if (!larger) return propagate(larger);
    buffer = std::move(*larger);
  }
  return buffer.as<float>();
}

} // namespace tilewright::train
