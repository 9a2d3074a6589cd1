#pragma once

// What an op says of itself, whichever it is: by the rules of its kind (rules.h).

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

// What an op is called in tables: "matmul", "attention_backward".
const char* OpName(const Op& op);

// Floating-point operations of the matrix products of one op (matmul 2mnk, convolution
// 2 x outputs x window x channels, attention; half of it when causal). Element-wise work is not
// counted, as is the custom when utilisation is quoted.
double Flops(const Op& op);

// Scratch that a back end may take to run one op; the CPU's for as many threads as scratch is
// counted for (rules.h: kThreads).
int64_t CpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op);
int64_t GpuScratchBytes(const std::vector<Tensor>& tensors, const Op& op);

// Pairs (operand read, operand written) of an op that may share their memory: kernels/ops/ says so.
// An operand shares with one other at most, the first that can.
std::vector<std::pair<TensorId, TensorId>> InPlacePairs(const Op& op);

// The op that computes the same activations a second time.
Op RecomputedOp(const Op& op);

}  // namespace trainyard::plan
