#include "executor/engine/checkpoint/adapter.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"

namespace trainyard::engine {
namespace {

using Json = nlohmann::ordered_json;

// Whole numbers are written as integers: peft's alpha is one.
Json NumberToJson(double value) {
  if (std::floor(value) == value && std::abs(value) < 0x1p53) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

std::string ModuleOf(absl::string_view name) {
  return std::string(name.substr(0, name.rfind('.')));
}

std::set<std::string> TrainedModules(const plan::Plan& plan) {
  absl::flat_hash_set<plan::TensorId> adapters;
  for (const plan::Adapter& adapter : plan.adapters) adapters.insert({adapter.a, adapter.b});
  std::set<std::string> modules;
  for (size_t i = 0; i < plan.trained; ++i) {
    if (adapters.contains(plan.parameters[i])) continue;
    for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[plan.parameters[i]])) {
      if (absl::EndsWith(stored.name, ".weight") || absl::EndsWith(stored.name, ".bias")) {
        modules.insert(ModuleOf(stored.name));
      }
    }
  }
  return modules;
}

std::optional<TiedHead> TiedHeadOf(const v1::Model& model) {
  if (model.has_gpt() && model.gpt().tie_embeddings()) {
    const char* const wte = "transformer.wte.weight";
    return TiedHead{wte, "lm_head", {{"weight", wte}}};
  }
  if (model.has_llama() && model.llama().tie_embeddings()) {
    const char* const tokens = "model.embed_tokens.weight";
    return TiedHead{tokens, "lm_head", {{"weight", tokens}}};
  }
  if (model.has_bert()) {
    const char* const tokens = "bert.embeddings.word_embeddings.weight";
    return TiedHead{
        tokens, "cls.predictions.decoder", {{"weight", tokens}, {"bias", "cls.predictions.bias"}}};
  }
  return std::nullopt;
}

std::string AdapterConfigToJson(const v1::JobSpec& spec, const plan::Plan& plan) {
  const v1::Lora& lora = spec.fine_tune().lora();
  const bool causal = spec.model().has_gpt() || spec.model().has_llama();
  Json targets = Json::array();
  bool in_out = false;
  for (const plan::Adapter& adapter : plan.adapters) {
    targets.push_back(ModuleOf(adapter.stored.name));
    in_out |= adapter.in_out;
  }
  std::set<std::string> modules = TrainedModules(plan);
  const std::optional<TiedHead> head = TiedHeadOf(spec.model());
  if (head && modules.contains(ModuleOf(head->embedding))) modules.insert(head->module);
  const std::string& from = spec.fine_tune().from();
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", causal ? Json("CAUSAL_LM") : Json(nullptr)},
                     {"base_model_name_or_path", from.empty() ? Json(nullptr) : Json(from)},
                     {"inference_mode", true},
                     {"r", lora.rank()},
                     {"lora_alpha", NumberToJson(lora.alpha())},
                     {"lora_dropout", lora.dropout()},
                     {"target_modules", targets},
                     {"fan_in_fan_out", in_out},
                     {"bias", "none"},
                     {"modules_to_save", modules.empty() ? Json(nullptr) : Json(modules)},
                     {"init_lora_weights", true}};
  return json.dump(2) + "\n";
}

}  // namespace trainyard::engine
