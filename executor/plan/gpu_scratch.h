#pragma once

// What a job takes of a GPU's memory beside its arena.
//
// A plan is made where there is no GPU, so what NVIDIA's libraries want is not asked for but
// bounded: by the limits that kernels/cuda/ sets them. Of our own kernels it is what they ask for.
// tests/gpu/families_test.cc holds both to it.

#include <cstdint>
#include <vector>

#include "executor/plan/graph.h"
#include "executor/plan/plan.h"

namespace trainyard::plan {

// The CUDA context, and the code and memory of cuBLASLt, cuDNN and our kernels. An estimate: it has
// not been measured on a GPU.
inline constexpr int64_t kGpuProcessBytes = int64_t{500} << 20;

// Scratch that the CUDA back end may ask for to run one op.
int64_t GpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op);

// Where the next micro-batch arrives while the GPU computes (executor/engine/upload_queue.h).
int64_t UploadQueueBytes(const Plan& plan);

}  // namespace trainyard::plan
