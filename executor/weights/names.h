#pragma once

// Which tensor of a folder becomes which part of a model's parameters. Pure.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/plan.h"
#include "executor/weights/model_folder.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::weights {

// What is read into a parameter or buffer of the plan.
struct ReadPart {
  plan::TensorId id = plan::kNone;
  plan::StoredTensor stored;  // its name in our checkpoints, its shape, its place in the parameter
  std::string found;          // its name in the folder
};

// Two tensors of the folder that the model has once.
struct Tie {
  std::string found;
  std::string same_as;  // a ReadPart's `found`
};

struct Assignment {
  std::vector<ReadPart> read;      // in the order of the plan, parts of one tensor together
  std::vector<std::string> drawn;  // stored names of what is drawn anew
  // The tensors that they are parts of, each once; also the matrices of low-rank adaptation.
  std::vector<plan::TensorId> drawn_whose;
  std::vector<Tie> ties;
};

// Whether `fine_tune.reinitialize` takes the parameter that checkpoints call `name`.
bool IsReinitialized(const v1::FineTune& fine_tune, const std::string& name);

// Besides the same names `tensors` may have: all names without the prefix of the family's base
// class; the masks and counters that old files hold; gamma and beta for the weight and bias of
// BERT's norms; the second copy of a tied head. kInvalidArgument, naming the tensors and the
// patterns that would do: what is missing, has another shape or type, or is unknown; patterns that
// match nothing.
absl::StatusOr<Assignment> AssignNames(const v1::FineTune& fine_tune, const std::string& family,
                                       const plan::Plan& plan,
                                       const std::map<std::string, FolderTensor>& tensors);

}  // namespace trainyard::weights
