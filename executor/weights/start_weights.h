#pragma once

// The weights that a job begins with: the folder of spec.fine_tune.from, held against its plan.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/tokenizer.h"
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

// `spec` must come from ResolveSpec and name a folder, `plan` be its plan. Reads headers, and of
// tied tensors the beginning. Where the folder is seen and wrong the message begins with the field
// and says what would do.
//   kNotFound, kPermissionDenied  this machine does not see the folder
//   kInvalidArgument              it does not fit
absl::StatusOr<StartWeights> OpenStartWeights(const v1::JobSpec& spec, const plan::Plan& plan);

// Whether the data's tokens must be those of the folder: a checkpoint of ours that was trained on
// text, and whose token embedding is not drawn anew.
bool KeepsTokens(const StartWeights& weights, const v1::JobSpec& spec, const plan::Plan& plan);

// That they are, where KeepsTokens says so and `tokenizer`, which may be null, is known.
// kInvalidArgument.
absl::Status CheckTokenizer(const StartWeights& weights, const v1::JobSpec& spec,
                            const plan::Plan& plan, const data::Tokenizer* tokenizer);

// That what the folder holds twice is the same, in its first `most` elements. kInvalidArgument.
absl::Status CheckTies(const StartWeights& weights, int64_t most);

}  // namespace trainyard::weights
