#pragma once

// A model as data: tensors with static shapes and typed ops over them. No device, no memory.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "executor/plan/graph/ops.h"

namespace trainyard::plan {

using ElementType = kernels::DType;
using kernels::SizeOf;

enum class TensorKind {
  kParameter,
  kWeightCopy,  // of a parameter, in 16 bits; outlives a step
  kGradient,    // of a parameter
  kOptimizerState,
  kAverage,  // moving average of a parameter
  kBuffer,   // of a model, but no gradient trains it: running statistics; saved with the parameters
  kPendingBuffer,  // what a buffer becomes if the step is taken
  kInput,          // written by the loader each micro-batch
  kActivation,     // lives within one micro-batch
  kScalar,         // norms, step state: lives for the whole run
  kSum,            // of losses and targets, of one logical rank and then of the step
  kPartialSum,     // of losses or gradients of some logical ranks
  kAlias,          // a run of other tensors (Plan::aliases)
  kReceived,       // an activation that another rank makes (Tensor::made_by)
};

// A run of rows of a parameter that a checkpoint holds under a name of its own.
struct Part {
  std::string name;
  int64_t rows = 0;
};

// Places [first, end) along a dimension.
struct Run {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
  friend bool operator==(const Run&, const Run&) = default;
};

// What a shard of a parameter is: those rows (places along the first dimension) of a parameter of
// tensor 1, and of them those columns; the runs lie one behind the other.
struct ShardOf {
  std::string whole;
  std::vector<int64_t> dims;  // of the whole
  std::vector<Run> rows, cols;
  int64_t number = 0, count = 1;  // which of how many shards of the whole it is

  // Where several ranks share the shards of a logical rank: which of them hosts this one. The first
  // rank has the last shards, and so as much as any other: where a whole does not divide, the last
  // are longer by one.
  int64_t HostOf(int64_t ranks) const { return (count - 1 - number) * ranks / count; }
};

inline constexpr int64_t kEveryRank = -1;

struct Tensor {
  std::string name;  // parameters and buffers: the name in a checkpoint
  ElementType type = ElementType::kF32;
  std::vector<int64_t> dims;
  TensorKind kind = TensorKind::kActivation;
  // Parameters: standard deviation of the normal they start from; 0: they start at `init_value`, as
  // buffers do.
  double init_std = 0;
  double init_value = 0;

  // Parameters only: what a checkpoint holds in place of the whole, in order; rows add up to
  // dims[0]. Of a shard they are the parts of the whole.
  std::vector<Part> parts = {};

  // Parameters only; null: it is no shard. Apart, since most tensors have none, and a model that is
  // cut into many shards has very many tensors.
  std::shared_ptr<const ShardOf> shard = nullptr;

  // Parameters only: which piece of a pipeline has it (passes/stages.h).
  int64_t piece = 0;

  // What one of the ranks makes that share a logical rank, and others of them read: its number
  // among them. kEveryRank: who reads it makes it.
  int64_t made_by = kEveryRank;

  // Activations only (passes/align_rows.h): elements from the start of one row, dims.back() of
  // them, to the next; 0: they lie densely. What lies between belongs to the tensor, and is no
  // value of it. Only ops that kernels/ops/ lets have such rows touch such a tensor.
  int64_t row_stride = 0;

  int64_t elements() const;  // without what lies between
  int64_t stride_of_rows() const { return row_stride == 0 ? dims.back() : row_stride; }
  int64_t bytes() const;
};

// What a checkpoint holds of a parameter: its parts, or the parameter as its only one. Of a shard:
// what the shard has something of, whole, and at no place (graph/stored_shards.h).
struct StoredTensor {
  std::string name;
  std::vector<int64_t> dims;
  int64_t offset = 0;  // bytes from the start of the parameter

  int64_t elements() const;
};
std::vector<StoredTensor> Stored(const Tensor& parameter);

// Two trained matrices, A [rank, in] and B [out, rank], whose product is added to a frozen weight:
// a low-rank adaptation (v1::Lora).
struct Adapter {
  TensorId weight = kNone;  // the parameter
  StoredTensor stored;      // what is adapted of it, as a checkpoint holds it
  bool in_out = false;      // it is [in, out], else [out, in]
  TensorId a = kNone, b = kNone;
  double scale = 1;  // of B A: alpha / rank

  // Where the rows of `stored` begin in the parameter; 0 for one that is [in, out].
  int64_t first_row(const Tensor& parameter) const;
};

// Ops of a list from number `first` to number `last`, both included; none if `last` is before
// `first`.
struct OpRange {
  int64_t first = 0;
  int64_t last = -1;
  bool empty() const { return last < first; }
};

struct Graph {
  std::vector<Tensor> tensors;  // a TensorId is an index here
  std::vector<Op> ops;          // in the order of execution

  TensorId Add(Tensor tensor);
  const Tensor& operator[](TensorId id) const;
};

// Puts by[id] in the place of each `id` that `ops` read or write and `by` names.
void Retarget(const absl::flat_hash_map<TensorId, TensorId>& by, std::vector<Op>& ops);

}  // namespace trainyard::plan
