#pragma once

// How the ranks of a gang share out a job: some share the shards of the same logical ranks.

#include <algorithm>
#include <cstdint>

#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// `data` groups of `tensor` ranks. Each group hosts some of the logical ranks, and each of its
// ranks some of their shards. Neighbours are of one group.
struct Mesh {
  int64_t data = 1, tensor = 1;

  int64_t ranks() const { return data * tensor; }
  int64_t group_of(int64_t rank) const { return rank / tensor; }
  int64_t place_in_group(int64_t rank) const { return rank % tensor; }
};

// Of a gang of spec.resources.max_slots ranks.
inline Mesh MeshOf(const v1::JobSpec& spec) {
  const int64_t tensor = std::max(1, spec.parallel().layout().tensor());
  return {.data = std::max<int64_t>(1, spec.resources().max_slots() / tensor), .tensor = tensor};
}

// Whether a logical rank makes its share of the batch as one micro-batch: what it has made is
// handed out at once.
inline bool HasOneMicroBatch(const v1::JobSpec& spec) {
  const v1::Parallel::Shard shard = spec.parallel().shard();
  return shard == v1::Parallel::GRADIENTS || shard == v1::Parallel::PARAMETERS;
}

// Whether each of `ranks` ranks keeps its share of the parameters alone.
inline bool ShardsParameters(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 1 && spec.parallel().shard() == v1::Parallel::PARAMETERS;
}

// Whether each of `ranks` ranks, or groups of them, keeps its share of the gradients' sums alone.
inline bool ShardsGradients(const v1::JobSpec& spec, int64_t ranks) {
  return ranks > 1 && HasOneMicroBatch(spec);
}

}  // namespace trainyard::plan
