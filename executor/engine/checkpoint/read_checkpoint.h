#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/checkpoint/config.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/checkpoint/run_state.h"
#include "executor/weights/safetensors.h"
#include "storage/base/arithmetic.h"
#include "storage/objects/object_store.h"

namespace trainyard::engine {

// Returns the manifest of the checkpoint `uri` after reading every file and finding it as the
// manifest says. A `manifest_sha256` that is not empty must be the digest of the manifest itself.
//   kNotFound  there is no such folder or no manifest in it
//   kDataLoss  it is damaged: which file, what was found, what was expected
absl::StatusOr<Manifest> ReadVerifiedManifest(ObjectStore& store, const std::string& uri,
                                              const std::string& manifest_sha256);

// Reads state.json of the checkpoint `uri` without verifying the checkpoint.
//   kNotFound  it is not there
//   kDataLoss  it is malformed
absl::StatusOr<StateFile> ReadState(ObjectStore& store, const std::string& uri);

// A checkpoint that was verified, open for reading.
struct Checkpoint {
  std::string uri;
  int64_t step = 0;
  std::string weights_sha256;
  std::string manifest_sha256;
  std::map<std::string, double> metrics;  // of the held-out split, if evaluated
  Arithmetic arithmetic;                  // that its last step was computed with; empty: unknown
  RunState run;
  ModelConfig config;
  data::NamedText tokenizer;  // for data::ReadTokenizer; without a name when there is none
  weights::SafetensorsFile model;
  weights::SafetensorsFile optimizer;
  // Moving averages of the parameters, if there are some.
  std::optional<weights::SafetensorsFile> ema;
  // Of low-rank adaptation: the adapters, and what they adapt before they were merged into it.
  std::optional<weights::SafetensorsFile> adapter, base;

  static absl::StatusOr<Checkpoint> Open(ObjectStore& store, const std::string& uri,
                                         const std::string& manifest_sha256);

  // What PackCheckpoint wrote, which has no digests to verify.
  static absl::StatusOr<Checkpoint> OpenPacked(ObjectStore& store, const std::string& uri);

 private:
  // The checkpoint that `manifest` describes.
  static absl::StatusOr<Checkpoint> Open(ObjectStore& store, const std::string& uri,
                                         const Manifest& manifest);
};

// Steps of the checkpoints in `root`, ascending; none when it does not exist.
absl::StatusOr<std::vector<int64_t>> ListSteps(ObjectStore& store, const std::string& root);

// The step of the best checkpoint in `root` by spec.checkpoint.best, as the state of the newest one
// there says. kNotFound: the spec has no checkpoint.best, or nothing was evaluated yet.
absl::StatusOr<int64_t> BestStep(ObjectStore& store, const std::string& root);

}  // namespace trainyard::engine
