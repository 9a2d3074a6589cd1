#pragma once

// The adapter of a model as the package peft reads it:
// https://huggingface.co/docs/peft/developer_guides/checkpoint

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "executor/plan/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// "base_model.model.": before the name of a model's tensor, that of peft's.
inline constexpr char kPeftPrefix[] = "base_model.model.";

// "model.layers.0.mlp.down_proj" of "model.layers.0.mlp.down_proj.weight".
std::string ModuleOf(absl::string_view name);

// The modules with parameters that are trained as they are, which peft takes whole; those that are
// no .weight or .bias of a module (a class token, say) are left out, as peft cannot hold them.
std::set<std::string> TrainedModules(const plan::Plan& plan);

// A head that shares its weight with an embedding, which peft would not train with it: the module
// of the head for the name of the embedding; "": this one has none, or the model does not share it.
std::string TiedHead(const v1::Model& model, absl::string_view embedding);

// adapter_config.json. `plan` has adapters.
std::string AdapterConfigToJson(const v1::JobSpec& spec, const plan::Plan& plan);

}  // namespace trainyard::engine
