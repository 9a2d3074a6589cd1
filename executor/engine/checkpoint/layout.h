#pragma once

// A checkpoint is a folder {root}/step-00001000:
//   config.json                        what the model is: transformers' keys where it knows the
//                                      model, and a section `trainyard` with the spec and the facts
//                                      of the data
//   model.safetensors                  parameters and buffers, under transformers' names
//   ema.safetensors                    with training.ema_decay: the same with moving averages in
//                                      place of the trained parameters
//   adapter/adapter_config.json        with fine_tune.lora, as peft reads it. In a folder of its
//                                      own: beside config.json it would make from_pretrained take
//                                      the model for an adapter of another
//   adapter/adapter_model.safetensors  with it: the matrices A and B, and modules that are trained
//                                      directly. model.safetensors and ema.safetensors have A and B
//                                      merged in
//   vocabulary.json                    how ids map to text, when the data is text
//   tokenizer.json, tokenizer_config.json  the same for BPE, as transformers reads it
//   trainer_state/optimizer.safetensors  "exp_avg.{parameter}", …
//   trainer_state/base.safetensors     with fine_tune.lora: the weights that are adapted, before
//                                      merging, and "ema.{adapter's matrix}"
//   trainer_state/state.json           steps done, seed, digest of the spec, position in the data,
//                                      what early stopping and best checkpoints have seen, the
//                                      scale of the loss with fp16, the digest of the weights that
//                                      a run with fine_tune.from began with
//   manifest.json                      bytes and SHA-256 of all of these, written last
// The folder is staged and renamed: who sees it sees all of it. Two runs of the same spec write the
// same bytes, manifest included.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kEmaFile[] = "ema.safetensors";
inline constexpr char kAdapterConfigFile[] = "adapter/adapter_config.json";
inline constexpr char kAdapterFile[] = "adapter/adapter_model.safetensors";
inline constexpr char kBaseFile[] = "trainer_state/base.safetensors";
inline constexpr char kOptimizerFile[] = "trainer_state/optimizer.safetensors";
inline constexpr char kStateFile[] = "trainer_state/state.json";
inline constexpr char kManifestFile[] = "manifest.json";

std::string StepFolder(int64_t step);                            // "step-00001000"
std::optional<int64_t> ParseStepFolder(absl::string_view name);  // nullopt: some other name

// Digest of all that decides the weights after a step. Left out is what may differ between two
// attempts: resources, evaluation, checkpoints, retries, logging, how the data is prefetched, what
// is recomputed, and what becomes of a run whose loss is not finite.
std::string SpecDigest(const v1::JobSpec& spec);

// What differs between two specs, field by field, of what SpecDigest covers; "" when nothing does.
std::string SpecDifference(const v1::JobSpec& before, const v1::JobSpec& after);

}  // namespace trainyard::engine
