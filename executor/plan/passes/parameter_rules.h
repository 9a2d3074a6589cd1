#pragma once

// How the optimizer treats each parameter: what spec.optimizer and its groups say.

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "executor/plan/graph/graph.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

enum class Method { kSgd, kAdamW, kLamb, kMuon };

struct ParameterRule {
  Method method = Method::kAdamW;
  bool frozen = false;  // then nothing else counts
  // Of Muon's: whether it lies as [in, out], as GPT-2's do, or the output comes first.
  bool input_first = false;
  double weight_decay = 0;
  double learning_rate_scale = 1;

  friend bool operator==(const ParameterRule&, const ParameterRule&) = default;
};

// A rule for each of `parameters`, by the names that checkpoints have for them. `forward` holds the
// forward ops that end in `logits`: their use says which matrices are Muon's. `fixed` are frozen,
// whatever groups say. kInvalidArgument names the group that matches nothing, with names that are
// near; that parts what is one tensor here; or that all is frozen.
absl::StatusOr<std::vector<ParameterRule>> RulesOf(const v1::JobSpec& spec, const Graph& forward,
                                                   const std::vector<TensorId>& parameters,
                                                   TensorId logits,
                                                   const absl::flat_hash_set<TensorId>& fixed = {});

// Whether rows of `tables` that a step does not touch stay as they are, so that their gradient is
// kept by row: where lazy_tables asks for it, and of one logical rank where a sweep would give the
// same. kInvalidArgument: some are frozen and some are not, or tables that are kept by row are
// treated differently, or decay by SGD.
absl::StatusOr<bool> HasRowSparseGradient(const v1::Optimizer& optimizer, int64_t logical_ranks,
                                          const Graph& graph, const std::vector<TensorId>& tables,
                                          const std::vector<ParameterRule>& rules);

// Whether a step is a function of a whole tensor that a checkpoint stores, and not of each element
// alone: Muon's, and LAMB's where it scales by norms.
bool StepsWholeTensors(const v1::Optimizer& optimizer, const ParameterRule& rule);

// What a parameter's optimizer state is called: "exp_avg", "exp_avg_sq"; "momentum_buffer".
std::vector<std::string> StateNames(const v1::Optimizer& optimizer, const ParameterRule& rule);

}  // namespace trainyard::plan
