#include "StandardAttention.h"

namespace tilewright::tool {

Expected<StandardAttention> StandardAttention::open() {
  Expected<OpenBlas> blas = OpenBlas::open();
  if (!blas) return propagate(blas);
  StandardAttention attention;
  attention.blas = std::move(*blas);
  return attention;
}

int64_t StandardAttention::scoreBytes(const StandardProblem &problem, Threading threading, int threads) {
  return problem.seq * problem.seq * 4 * (threading == Threading::Heads ? threads : 1);
}

void StandardAttention::head(const StandardProblem &p, int64_t head, float *scores, ThreadPool *pool) const {
  constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
  int n = static_cast<int>(p.seq), d = static_cast<int>(p.dim);
  int64_t offset = head * p.seq * p.dim;
  blas.sgemm(kRowMajor, kNoTrans, kTrans, n, n, d, p.scale, p.q + offset, d, p.k + offset, d, 0, scores, n);
  auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      softmaxRow(scores + r * p.seq, p.causal ? r + 1 : p.seq, p.seq);
  };
  if (pool)
    pool->run(p.seq, 64, [&](ChunkQueue &chunks) {
      for (int64_t begin, end; chunks.take(begin, end);)
        rows(begin, end);
    });
  else
    rows(0, p.seq);
  blas.sgemm(kRowMajor, kNoTrans, kNoTrans, n, d, n, 1, scores, n, p.v + offset, d, 0, p.o + offset, d);
}

void StandardAttention::run(const StandardProblem &problem, Threading threading, ThreadPool &pool) {
  size_t needed = static_cast<size_t>(scoreBytes(problem, threading, pool.threads()) / 4);
  if (memory.size() < needed) memory.resize(needed);
  if (threading == Threading::Inside) {
    blas.setThreads(pool.threads());
    for (int64_t h = 0; h < problem.heads; ++h)
      head(problem, h, memory.data(), &pool);
    return;
  }
  blas.setThreads(1);
  std::atomic<int64_t> participants{0};
  pool.run(problem.heads, 1, [&](ChunkQueue &chunks) {
    float *own = memory.data() + participants.fetch_add(1) * problem.seq * problem.seq;
    for (int64_t begin, end; chunks.take(begin, end);)
      for (int64_t h = begin; h < end; ++h)
        head(problem, h, own, nullptr);
  });
}

} // namespace tilewright::tool
