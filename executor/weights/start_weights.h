#pragma once

// The weights that a job begins with: the folder of spec.fine_tune.from, matched with the job's
// plan.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/plan/graph/plan.h"
#include "executor/weights/model_folder.h"
#include "executor/weights/names.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::weights {

struct StartWeights {
  ModelFolder folder;
  Assignment assignment;

  // Elements [first, first + count) of the folder's tensor `found`, as fp32. kDataLoss when the
  // file became shorter.
  absl::Status Read(const std::string& found, int64_t first, int64_t count, float* to) const;
};

// `spec` must come from ResolveSpec and name a folder, `plan` be its plan. Reads the headers, and
// the beginning of tied tensors. If the folder is found but does not fit, the message begins with
// the field and says what would help.
//   kNotFound, kPermissionDenied  this machine does not see the folder
//   kInvalidArgument              it does not fit
absl::StatusOr<StartWeights> OpenStartWeights(const v1::JobSpec& spec, const plan::Plan& plan);

// Whether the data must have the same tokens as the folder: the data is text, the folder is a
// checkpoint of ours, and its token embedding is not drawn anew.
bool KeepsTokens(const StartWeights& weights, const v1::JobSpec& spec, const plan::Plan& plan);

// Checks, if KeepsTokens, that the data's `tokenizer` (null: not known, not checked) is the
// folder's. kInvalidArgument if not.
absl::Status CheckTokenizer(const StartWeights& weights, const v1::JobSpec& spec,
                            const plan::Plan& plan, const data::Tokenizer* tokenizer);

// Checks that tensors which the folder holds twice are the same in their first `most` elements.
// kInvalidArgument if not.
absl::Status CheckTies(const StartWeights& weights, int64_t most);

}  // namespace trainyard::weights
