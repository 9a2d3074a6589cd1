#pragma once

// The weights of another model, where a run begins with them (spec.fine_tune.from).

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/engine/session.h"
#include "storage/objects/object_store.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

struct LoadedWeights {
  std::string sha256;   // over all that was read, as fp32, in the order of the plan
  std::string summary;  // "began with the weights of /m/gpt2: 148 tensors, 2 drawn anew: 'a', 'b'"
};

// Checks what can be known before the session exists: that the folder fits the plan, and its
// tokenizer the data. Faults (fault.h): kSpec, or kData if the folder cannot be read.
absl::Status CheckStart(const v1::JobSpec& spec, const plan::Plan& plan,
                        const data::Dataset& dataset);

// Fills every parameter and buffer of the session's plan: from the folder, or, where the spec says
// so, as InitializeModel does. Piece by piece: no second copy of the weights is held. Faults: as of
// CheckStart, and kData for a value that is NaN or infinite, two copies of one tensor that differ,
// or a checkpoint that is not what its manifest says.
absl::StatusOr<LoadedWeights> LoadWeights(Session& session, const v1::JobSpec& spec);

// Checks that a run which begins again (`attempt` above 1) because there is no checkpoint begins
// with the same weights: the first attempt leaves their digest in `root`. kFailedPrecondition, with
// the fault kData, if they differ.
absl::Status KeepStart(ObjectStore& store, const std::string& root, int64_t attempt,
                       const std::string& spec_digest, const LoadedWeights& loaded);

// The same check against the digest `before`; "" is not known and passes.
absl::Status CheckSameStart(const std::string& before, const LoadedWeights& loaded);

}  // namespace trainyard::engine
