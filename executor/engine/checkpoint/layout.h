#pragma once

// A checkpoint is a folder {root}/step-00001000:
//   config.json                        what the model is: transformers' keys for gpt, llama and
//                                      resnet, and a section `trainyard` with the spec and the
//                                      facts of the data
//   model.safetensors                  parameters and buffers, under transformers' names
//   ema.safetensors                    with training.ema_decay: the same with moving averages in
//                                      place of the trained parameters
//   vocabulary.json                    how ids map to text, when the data is text
//   tokenizer.json, tokenizer_config.json  the same for BPE, as transformers reads it
//   trainer_state/optimizer.safetensors  "exp_avg.{parameter}", …
//   trainer_state/state.json           steps done, seed, digest of the spec, position in the data
//   manifest.json                      bytes and SHA-256 of all of these, written last
// The folder is staged and renamed: who sees it sees all of it. Two runs of the same spec write the
// same bytes, manifest included.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "executor/plan/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kEmaFile[] = "ema.safetensors";
inline constexpr char kOptimizerFile[] = "trainer_state/optimizer.safetensors";
inline constexpr char kStateFile[] = "trainer_state/state.json";
inline constexpr char kManifestFile[] = "manifest.json";

std::string StepFolder(int64_t step);                            // "step-00001000"
std::optional<int64_t> ParseStepFolder(absl::string_view name);  // nullopt: some other name

// Digest of all that decides the weights after a step. Left out is what may differ between two
// attempts: resources, evaluation, checkpoints, retries, logging and prefetching.
std::string SpecDigest(const v1::JobSpec& spec);

// What differs between two specs, field by field, of what SpecDigest covers; "" when nothing does.
std::string SpecDifference(const v1::JobSpec& before, const v1::JobSpec& after);

// Which of `present` (steps of the checkpoints in a root) to remove now that `newest` is there: all
// but the `keep` newest up to `newest`. What lies past `newest` belongs to an earlier attempt that
// got further and will be met again. `damaged` ones do not count as kept, and go.
std::vector<int64_t> StepsToRemove(std::vector<int64_t> present, int64_t newest, int64_t keep,
                                   const std::vector<int64_t>& damaged);

}  // namespace trainyard::engine
