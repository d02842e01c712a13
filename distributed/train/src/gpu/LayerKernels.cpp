#include "LayerKernels.h"
#include "tilewright/Templates.h"

namespace tilewright::train {

const CudaSource &layerKernels() {
  static const CudaSource source = [] {
    const std::string_view names[] = {"train/Layers.cuh"};
    CudaSource made{"tw_train", assembleTemplates(names), {"tw_train_loss"}, kLayerThreads};
    const std::string types[] = {"_f32", "_bf16"};
    for (const char *name : {"norm_weight", "norm_weight_sum", "rotary", "swiglu", "swiglu_gradient", "cross_entropy"})
      for (const std::string &type : types)
        made.symbols.push_back(std::string("tw_train_") + name + type);
    for (const char *name : {"convert", "norm", "norm_gradient", "embedding", "embedding_gradient"})
      for (const std::string &first : types)
        for (const std::string &second : types)
          made.symbols.push_back(std::string("tw_train_") + name + first + second);
    return made;
  }();
  return source;
}

} // namespace tilewright::train
