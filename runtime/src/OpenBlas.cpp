#include "tilewright/OpenBlas.h"
#include "tilewright/cuda/DynamicLibrary.h"

namespace tilewright {

Expected<OpenBlas> OpenBlas::open() {
  cuda::LibrarySearch search;
  search.what = "OpenBLAS";
  search.names = {"libopenblas.so.0", "libopenblas.so"};
  search.hint = "Debian: apt-get install libopenblas0-pthread";
  Expected<cuda::DynamicLibrary> library = cuda::DynamicLibrary::open(search);
  if (!library) return propagate(library);
  OpenBlas blas;
  blas.sgemm = reinterpret_cast<Sgemm>(library->symbol("cblas_sgemm"));
  blas.setThreads = reinterpret_cast<void (*)(int)>(library->symbol("openblas_set_num_threads"));
  auto config = reinterpret_cast<const char *(*)()>(library->symbol("openblas_get_config"));
  if (!blas.sgemm || !blas.setThreads || !config)
    return fail(Stage::Load, library->path() + " has no cblas_sgemm or openblas_set_num_threads", search.hint);
  blas.description = config();
  return blas;
}

} // namespace tilewright
