#pragma once

// How the ops of a forward graph, all of fp32 so far, get the types that they compute in.

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "executor/plan/graph/graph.h"

namespace trainyard::plan {

struct Precision {
  ElementType type = ElementType::kBF16;  // of products
  TensorId logits = kNone;
  std::vector<TensorId> logits_of_shards = {};  // in place of them
  ElementType of_logits = ElementType::kF32;
};

// What the rules of ops retype operands with, while ops go by in order (passes/precision.h).
class Typing {
 public:
  // `copies` maps parameters to their copies in precision.type; what is missing is added. All three
  // must outlive it.
  Typing(const Precision& precision, Graph& graph, absl::flat_hash_map<TensorId, TensorId>& copies);

  // The operand in the type of products, or in fp32: itself, the copy of a weight, or a cast, which
  // is appended to the graph once. kNone stays kNone.
  void ReadNarrow(TensorId& id) { Read(id, precision_.type); }
  void ReadWide(TensorId& id) { Read(id, ElementType::kF32); }

  void Write(TensorId id, ElementType type) { graph_.tensors[id].type = type; }
  void WriteNarrow(TensorId id) { Write(id, precision_.type); }
  // What changes no values but one by one leaves the type that it reads.
  void WriteAs(TensorId id, TensorId x) { Write(id, TypeOf(x)); }
  // The result of a product, which may be the logits.
  void WriteProduct(TensorId id) {
    const auto& shards = precision_.logits_of_shards;
    const bool logits =
        id == precision_.logits || std::find(shards.begin(), shards.end(), id) != shards.end();
    Write(id, logits ? precision_.of_logits : precision_.type);
  }

  ElementType TypeOf(TensorId id) const { return graph_[id].type; }
  // Whether a residual stream passes through it: a sum of two tensors reads it, or what reaches one
  // through ops that keep the type.
  bool InResidualStream(TensorId id) const { return streams_.contains(id); }
  // Whether an op reads it that does not read everything in the type of products.
  bool IsReadWide(TensorId id) const { return wide_reads_.contains(id); }

 private:
  void Read(TensorId& id, ElementType type);

  const Precision& precision_;
  Graph& graph_;
  absl::flat_hash_map<TensorId, TensorId>& copies_;  // parameter -> its copy
  absl::flat_hash_map<TensorId, TensorId> casts_;    // activation or input -> its other type
  absl::flat_hash_set<TensorId> streams_;
  absl::flat_hash_set<TensorId> wide_reads_;
};

}  // namespace trainyard::plan
