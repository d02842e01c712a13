// The trainer's layers as kernels: one entry for each combination of types that parameters, gradients and activations
// have. All take blocks of kLayerThreads.
#pragma once
#include "train/CrossEntropy.cuh"
#include "train/Embedding.cuh"
#include "train/Gate.cuh"
#include "train/RowNorm.cuh"
#include "train/Rotary.cuh"

#define TW_LAYER(name, Args, ...)                                                                                      \
  extern "C" __global__ void __launch_bounds__(tw::kLayerThreads) name(const __grid_constant__ tw::Args args) {        \
    __VA_ARGS__(args);                                                                                                 \
  }
#define TW_LAYER_OF_TYPE(name, Args, function)                                                                         \
  TW_LAYER(name##_f32, Args, function<tw::F32>)                                                                        \
  TW_LAYER(name##_bf16, Args, function<tw::BF16>)
#define TW_LAYER_OF_TYPES(name, Args, function)                                                                        \
  TW_LAYER(name##_f32_f32, Args, function<tw::F32, tw::F32>)                                                           \
  TW_LAYER(name##_f32_bf16, Args, function<tw::F32, tw::BF16>)                                                         \
  TW_LAYER(name##_bf16_f32, Args, function<tw::BF16, tw::F32>)                                                         \
  TW_LAYER(name##_bf16_bf16, Args, function<tw::BF16, tw::BF16>)

TW_LAYER_OF_TYPES(tw_train_convert, ConvertRowsArgs, tw::convertRows)
TW_LAYER_OF_TYPES(tw_train_norm, RowNormArgs, tw::rowNorm)
TW_LAYER_OF_TYPES(tw_train_norm_gradient, RowNormGradientArgs, tw::rowNormGradient)
TW_LAYER_OF_TYPE(tw_train_norm_weight, NormWeightArgs, tw::normWeight)
TW_LAYER_OF_TYPE(tw_train_norm_weight_sum, NormWeightSumArgs, tw::normWeightSum)
TW_LAYER_OF_TYPE(tw_train_rotary, RotaryArgs, tw::rotary)
TW_LAYER_OF_TYPE(tw_train_swiglu, GateArgs, tw::swiglu)
TW_LAYER_OF_TYPE(tw_train_swiglu_gradient, GateGradientArgs, tw::swigluGradient)
TW_LAYER_OF_TYPE(tw_train_cross_entropy, CrossEntropyArgs, tw::crossEntropy)
TW_LAYER(tw_train_loss, LossArgs, tw::addLosses)
TW_LAYER_OF_TYPES(tw_train_embedding, EmbeddingArgs, tw::embedding)
TW_LAYER_OF_TYPES(tw_train_embedding_gradient, EmbeddingGradientArgs, tw::embeddingGradient)
