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

// The name that peft gives a tensor is this prefix and the name that the model gives it.
inline constexpr char kPeftPrefix[] = "base_model.model.";

// "model.layers.0.mlp.down_proj" of "model.layers.0.mlp.down_proj.weight".
std::string ModuleOf(absl::string_view name);

// The modules with parameters that are trained directly, without adapters: peft stores such modules
// whole. Parameters that are no .weight or .bias of a module (a class token, say) are left out, as
// peft cannot store them.
std::set<std::string> TrainedModules(const plan::Plan& plan);

// An output head of transformers' that shares its weight with an embedding. peft does not know
// that: when the embedding is trained, the head has to be stored as well.
struct TiedHead {
  std::string embedding;                       // the shared weight, as checkpoints call it
  std::string module;                          // the head
  std::map<std::string, std::string> tensors;  // "weight" in the head: its name in checkpoints
};
// Nullopt: the model has none.
std::optional<TiedHead> TiedHeadOf(const v1::Model& model);

// adapter_config.json. `plan` has adapters.
std::string AdapterConfigToJson(const v1::JobSpec& spec, const plan::Plan& plan);

}  // namespace trainyard::engine
