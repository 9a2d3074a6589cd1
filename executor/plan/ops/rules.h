#pragma once

// What an op owes to a plan, in one place: executor/plan/ops/NAME.h says it of the ops that
// kernels/ops/NAME.h declares, by specialising Rules. An op that has no Rules does not compile, nor
// does one that says nothing of its scratch.

#include <cstdint>
#include <utility>
#include <vector>

#include "executor/plan/graph/graph.h"
#include "executor/plan/ops/gradient.h"
#include "executor/plan/ops/typing.h"
#include "kernels/scratch/sizes.h"
#include "storage/base/status.h"

namespace trainyard::plan {

using kernels::scratch::kFloat;
using kernels::scratch::kMiB;
using Tensors = std::vector<Tensor>;

// Scratch that grows with the CPU's threads is counted for so many (cost/cost.h: WorkspaceLimit).
inline constexpr int64_t kThreads = 8;

// Bytes of scratch that a back end may take to run an op. Of our own kernels the CPU's is exact for
// kThreads threads; what oneDNN, cuBLASLt and cuDNN take is bounded.
struct Scratch {
  int64_t cpu = 0;
  int64_t gpu = 0;
};

// Pairs (operand read, operand written) that may share their memory: kernels/ops/ says so. An
// operand shares with one other at most, the first that can.
using InPlace = std::vector<std::pair<TensorId, TensorId>>;

// Undefined: every op says what it owes.
//   static Scratch ScratchOf(const O&, const Tensors&);
// An op of a forward graph (ForwardOp) also says how precision types its operands (ops/typing.h),
// and emits its gradient from dy, that of its result (ops/gradient.h):
//   static void Retype(O&, Typing&);
//   static void Differentiate(const O&, TensorId dy, Gradient&);
template <typename O>
struct Rules;

// What is so of most ops; an op for which it is not declares the same name.
struct AnyOp {
  // Its name in tables.
  template <typename O>
  static const char* Name(const O&) {
    return O::kName;
  }
  // Floating-point operations of its matrix products (cost/cost.h: Flops).
  template <typename O>
  static double Flops(const O&) {
    return 0;
  }
  template <typename O>
  static InPlace InPlacePairs(const O&) {
    return {};
  }
  // The op that computes the same activations a second time.
  template <typename O>
  static O Recomputed(O op) {
    return op;
  }
};

struct ForwardOp : AnyOp {
  static constexpr bool kInForwardGraphs = true;
  // Whether all that it reads is of the type that products compute in.
  static constexpr bool kReadsNarrow = false;
  // Whether y has the type of x and can be part of the residual stream that x comes from.
  static constexpr bool kKeepsResidualStream = false;
  template <typename O>
  static TensorId ResultOf(const O& op) {
    return op.y;
  }
};

// What is in no forward graph: backward passes, losses, which make their gradients themselves, and
// the end of a step.
struct BackwardOp : AnyOp {
  static constexpr bool kInForwardGraphs = false;
  static constexpr bool kReadsNarrow = false;
};

struct NoScratch {
  template <typename O>
  static Scratch ScratchOf(const O&, const Tensors&) {
    return {};
  }
};

}  // namespace trainyard::plan
