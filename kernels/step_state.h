#pragma once

#include <cstdint>

#include "kernels/buffer.h"

namespace trainyard::kernels {

// What changes from step to step and micro-batch to micro-batch, in device memory, so that a
// recorded launch (a CUDA graph) need not change. The trainer writes it; kernels only read it.
struct StepState {
  uint64_t seed = 0;
  int64_t step = 0;          // optimizer steps done before this one, from 0
  int64_t first_sample = 0;  // of the micro-batch, counted within the global batch
  float learning_rate = 0;
  float loss_scale = 1;  // gradients are those of the loss times this
  int64_t updates = 0;  // steps before this one that changed the weights: `step` less those skipped
};

// What an op's operand `state` points to; null where that is absent.
inline const StepState* StepStateOf(const Buffer& state) {
  return static_cast<const StepState*>(state.data);
}

}  // namespace trainyard::kernels
