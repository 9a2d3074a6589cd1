#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/tokenizer.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {

// What every checkpoint of a run shares.
struct CheckpointIdentity {
  std::string root;                        // URI of the folder that holds the step folders
  std::string tag;                         // tells attempts apart while they write: "a3"
  std::string config;                      // config.json
  std::vector<data::NamedText> tokenizer;  // its files; none when the data is no text
  std::string spec_digest;
  uint64_t seed = 0;
  int64_t batch_size = 0;
};

struct WrittenCheckpoint {
  int64_t step = 0;
  std::string uri;
  int64_t bytes = 0;  // of all files but the manifest
  std::string manifest_sha256;
  std::string weights_sha256;
  bool other_weights = false;  // one was there already, and it differs from what was to be written
};

// Writes one checkpoint, reads it back, and makes it visible. One of the same spec that is there
// already (an earlier attempt got that far) and verifies is kept instead: it may have been
// reported. A damaged one is replaced. Nothing half-written stays behind.
//   kFailedPrecondition  a checkpoint of another spec is in its place
//   kResourceExhausted, kPermissionDenied, …  what the store says
absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(ObjectStore& store,
                                                  const CheckpointIdentity& identity,
                                                  const Snapshot& snapshot, int64_t step);

}  // namespace trainyard::engine
