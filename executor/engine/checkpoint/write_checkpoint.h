#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/checkpoint/run_state.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "storage/base/arithmetic.h"
#include "storage/objects/object_store.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// What every checkpoint of a run shares.
struct CheckpointIdentity {
  std::string root;                        // URI of the folder that holds the step folders
  std::string tag;                         // tells attempts apart while they write: "a3"
  std::string config;                      // config.json
  std::string adapter_config;              // adapter_config.json, of a run that adapts
  std::vector<data::NamedText> tokenizer;  // its files; none when the data is no text
  std::string spec_digest;
  v1::JobSpec spec;       // resolved
  Arithmetic arithmetic;  // that the run computes with
};

// What a checkpoint holds besides its tensors.
struct CheckpointContent {
  int64_t step = 0;
  RunState run;
  std::map<std::string, double> metrics;  // of the held-out split, if evaluated; finite
};

struct WrittenCheckpoint {
  int64_t step = 0;
  std::string uri;
  int64_t bytes = 0;  // of all files but the manifest
  std::string manifest_sha256;
  std::string weights_sha256;
  std::map<std::string, double> metrics;
  bool other_weights = false;  // one was there already, with other weights than those to be written
};

// Writes one checkpoint, reads it back, and makes it visible. If one of the same spec and state is
// there already (an earlier attempt got that far) and verifies, it is kept instead: it may have
// been reported. One that is damaged is replaced, and one of another state, which is from before a
// rollback. Nothing half-written stays behind. `await_right` is called last, just before the
// checkpoint is made visible; if it fails, the checkpoint is given up.
//   kFailedPrecondition  a checkpoint of another spec is in its place
//   kOutOfRange  with the fault kNumeric: the model holds a value that is not finite
//   kResourceExhausted, kPermissionDenied, …  what the store says
absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(ObjectStore& store,
                                                  const CheckpointIdentity& identity,
                                                  const CheckpointContent& content,
                                                  const Snapshot& snapshot,
                                                  absl::FunctionRef<absl::Status()> await_right);

// Writes the same files to `folder`, for the next attempt: without digests, and also of a model
// that holds a value that is not finite.
absl::Status PackCheckpoint(StagedFolder& folder, const CheckpointIdentity& identity,
                            const CheckpointContent& content, const Snapshot& snapshot);

}  // namespace trainyard::engine
