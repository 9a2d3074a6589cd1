#pragma once

// The adapter of a model as the package peft reads it:
// https://huggingface.co/docs/peft/developer_guides/checkpoint

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// "base_model.model.": before the name of a model's tensor, that of peft's.
inline constexpr char kPeftPrefix[] = "base_model.model.";

// "model.layers.0.mlp.down_proj" of "model.layers.0.mlp.down_proj.weight".
std::string ModuleOf(absl::string_view name);

// The modules with parameters that are trained as they are, which peft takes whole; those that are
// no .weight or .bias of a module (a class token, say) are left out, as peft cannot hold them.
std::set<std::string> TrainedModules(const plan::Plan& plan);

// A head of transformers' that shares its weight with an embedding: peft would not train it with
// that.
struct TiedHead {
  std::string embedding;                       // the weight, as checkpoints call it
  std::string module;                          // the head
  std::map<std::string, std::string> tensors;  // "weight": what checkpoints have it as
};
// Nullopt: the model has none.
std::optional<TiedHead> TiedHeadOf(const v1::Model& model);

// adapter_config.json. `plan` has adapters.
std::string AdapterConfigToJson(const v1::JobSpec& spec, const plan::Plan& plan);

}  // namespace trainyard::engine
