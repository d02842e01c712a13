// What the C interface's opaque handles hold.
#pragma once

#include "tilewright.h"
#include "tilewright/Attention.h"

struct tw_context {
  std::shared_ptr<tilewright::Context> context;
};

struct tw_attention {
  tilewright::Attention attention;
  int32_t deviceType = TW_CPU, deviceId = 0;
  std::string description; ///< tw_attention_describe()
};
