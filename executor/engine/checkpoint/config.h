#pragma once

// config.json of a checkpoint.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

struct ModelConfig {
  v1::JobSpec spec;  // resolved
  plan::DataFacts facts;
};

// config.json with the keys of transformers' configuration where it knows the model (gpt, llama,
// bert, vit; resnet and mobilenet with an ImageNet stem), so that from_pretrained of the class that
// `architectures` names loads the folder, and with `config` in a section `trainyard`.
std::string ConfigToJson(const ModelConfig& config, const plan::Plan& plan);

// kDataLoss: not one that ConfigToJson wrote.
absl::StatusOr<ModelConfig> ConfigFromJson(absl::string_view json);

// Whether two data sets look alike: same kind, sizes, classes, vocabulary.
bool SameFacts(const plan::DataFacts& a, const plan::DataFacts& b);
std::string FactsToText(const plan::DataFacts& facts);

}  // namespace trainyard::engine
