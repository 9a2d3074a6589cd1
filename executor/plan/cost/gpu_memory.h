#pragma once

// What a job takes of a GPU's memory beside its arena and the scratch of its ops.
//
// A plan is made where there is no GPU, so that scratch (ops/op.h: GpuScratchBytes) is not asked
// for but bounded, by the limits that kernels/scratch/cuda.h sets. tests/gpu/families_test.cc holds
// the kernels to it.

#include <cstdint>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// The CUDA context, and the code and memory of cuBLASLt, cuDNN and our kernels: 545 MiB of a small
// job on an H100 with driver 580, and something to spare (tests/gpu/RESULTS.md).
inline constexpr int64_t kGpuProcessBytes = int64_t{600} << 20;

// Where the next micro-batch arrives while the GPU computes (executor/engine/upload_queue.h).
int64_t UploadQueueBytes(const Plan& plan);

}  // namespace trainyard::plan
