#pragma once

// Which tensor of a folder becomes which part of a model's parameters. Pure.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/graph/stored_shards.h"
#include "executor/weights/model_folder.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::weights {

// What is read into parameters of the plan's group (Plan::of_group), or into a buffer.
struct ReadPart {
  plan::StoredInShards tensor;          // its name in our checkpoints, its shape, its places
  plan::TensorId buffer = plan::kNone;  // kNone: it is of parameters
  std::string found;                    // its name in the folder
};

// A tensor of the folder that repeats another one: the model has one tensor for both.
struct Tie {
  std::string found;
  std::string same_as;  // a ReadPart's `found`
};

struct Assignment {
  std::vector<ReadPart> read;      // in the order of the plan, the same on every layout
  std::vector<std::string> drawn;  // stored names of what is drawn anew
  // The tensors that `drawn` are parts of, of those that this rank hosts each once; also the
  // matrices of low-rank adaptation.
  std::vector<plan::TensorId> drawn_whose;
  std::vector<Tie> ties;
};

// Whether `fine_tune.reinitialize` matches the parameter that checkpoints call `name`.
bool IsReinitialized(const v1::FineTune& fine_tune, const std::string& name);

// Finds the tensor of `tensors` that each parameter and buffer of the plan is read from. All names
// may lack the prefix of the family's base class, and the weight and bias of BERT's norms may be
// called gamma and beta. The masks and counters that old files hold, and the second copy of a tied
// head, are passed over. kInvalidArgument names the tensors that are missing, unknown, or of
// another shape or type, and the patterns that would help; or a pattern that matches nothing.
absl::StatusOr<Assignment> AssignNames(const v1::FineTune& fine_tune, const std::string& family,
                                       const plan::Plan& plan,
                                       const std::map<std::string, FolderTensor>& tensors);

}  // namespace trainyard::weights
