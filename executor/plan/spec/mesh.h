#pragma once

// How the ranks of a gang share out a job: some share the shards of the same logical ranks.

#include <algorithm>
#include <cstdint>

#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// `data` groups of `pipeline` stages of `tensor` ranks. Each group hosts some of the logical ranks,
// each of its stages some of their layers, in `chunks` chunks, and each rank of a stage some of the
// shards of these. Neighbours are of one stage, neighbouring stages of one group.
struct Mesh {
  int64_t data = 1, pipeline = 1, tensor = 1, chunks = 1;

  int64_t in_group() const { return pipeline * tensor; }
  int64_t ranks() const { return data * in_group(); }
  int64_t group_of(int64_t rank) const { return rank / in_group(); }
  int64_t place_in_group(int64_t rank) const { return rank % in_group(); }
};

// The ranks that share each logical rank.
inline int64_t RanksInGroup(const v1::Parallel& parallel) {
  return int64_t{std::max(1, parallel.layout().pipeline())} *
         std::max(1, parallel.layout().tensor());
}

// Of a model that can be cut across ranks: gpt, llama, bert or vit.
inline int64_t LayersOf(const v1::Model& model) {
  return model.has_gpt()     ? model.gpt().layers()
         : model.has_llama() ? model.llama().layers()
         : model.has_bert()  ? model.bert().layers()
                             : model.vit().layers();
}

// Whether ranks may have parts of a logical rank, on some layout: the norm of the gradient is then
// added up so that it does not matter which (passes/norm_of_shards.h).
inline bool HasNormOfShards(const v1::Parallel& parallel) {
  return parallel.tensor() > 1 || parallel.pipeline() > 1;
}

// Of a gang of spec.resources.max_slots ranks.
inline Mesh MeshOf(const v1::JobSpec& spec) {
  const v1::Layout& layout = spec.parallel().layout();
  return {
      .data = std::max<int64_t>(1, spec.resources().max_slots() / RanksInGroup(spec.parallel())),
      .pipeline = std::max(1, layout.pipeline()),
      .tensor = std::max(1, layout.tensor()),
      .chunks = std::max(1, layout.chunks())};
}

// Whether a logical rank makes its share of the batch as one micro-batch: what it has made is
// handed out at once.
inline bool HasOneMicroBatch(const v1::JobSpec& spec) {
  const v1::Parallel::Shard shard = spec.parallel().shard();
  return shard == v1::Parallel::GRADIENTS || shard == v1::Parallel::PARAMETERS;
}

// What several ranks share out of what they keep: the default of parallel.shard, too, which is not
// written down.
inline v1::Parallel::Shard StateSharedOut(const v1::JobSpec& spec) {
  const v1::Parallel& parallel = spec.parallel();
  if (parallel.shard() != v1::Parallel::SHARD_UNSPECIFIED) return parallel.shard();
  const bool keep_all =
      spec.optimizer().has_muon() || parallel.second_owner() || HasNormOfShards(parallel);
  return keep_all ? v1::Parallel::NONE : v1::Parallel::OPTIMIZER;
}

// How many ranks at least own each share of what is sharded, if there are as many.
inline int64_t OwnersIn(const v1::JobSpec& spec) { return spec.parallel().second_owner() ? 2 : 1; }

// Whether each of `ranks` ranks keeps its share of the parameters alone.
inline bool ShardsParameters(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 1 && spec.parallel().shard() == v1::Parallel::PARAMETERS;
}

// Whether each of `ranks` ranks, or groups of them, keeps its share of the gradients' sums alone.
inline bool ShardsGradients(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 1 && HasOneMicroBatch(spec);
}

}  // namespace trainyard::plan
