// Whatever bytes a .npy file holds: an array or an error, never a crash, and never more memory than the file's size
// justifies.
#include "tilewright/tensor/Npy.h"
#include <cstdlib>

using namespace tilewright;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  auto array = readNpy({reinterpret_cast<const char *>(data), size}, "fuzz.npy");
  if (!array) {
    if (array.error().message.empty()) std::abort();
    return 0;
  }
  if (array->data.size() > static_cast<int64_t>(size)) std::abort();
  if (auto table = tableFromNpy(*array, "fuzz.npy"); table && table->shape() != array->shape) std::abort();
  for (bool uint16IsBF16 : {false, true})
    for (Layout layout : {Layout::BSHD, Layout::BHSD}) {
      auto copy = readNpy({reinterpret_cast<const char *>(data), size}, "fuzz.npy");
      auto tensor = tensorFromNpy(std::move(*copy), {layout, uint16IsBF16}, "fuzz.npy");
      if (tensor) (void)hasNonFinite(tensor->view());
    }
  return 0;
}
