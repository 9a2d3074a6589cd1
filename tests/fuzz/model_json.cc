// config.json and the index of shards: what the index accepts stays in its folder, and what is said
// of a configuration is said without an accident, whatever the model.

#include "executor/weights/model_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "executor/plan/build.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/configuration.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

struct Model {
  v1::JobSpec spec;
  plan::Plan plan;
};

Model ModelOf(int family) {
  v1::JobSpec spec;
  plan::DataFacts facts{.height = 32, .width = 32, .channels = 3, .classes = 3};
  const auto blocks = [](auto& f) {
    f.set_layers(1);
    f.set_heads(2);
    f.set_width(8);
  };
  v1::Model& model = *spec.mutable_model();
  if (family < 3) {
    spec.mutable_data()->mutable_text()->set_path("/t");
    facts = {.kind = plan::DataFacts::Kind::kTokens, .vocab = 11};
    if (family == 0) blocks(*model.mutable_gpt()), model.mutable_gpt()->set_context(4);
    if (family == 1) blocks(*model.mutable_llama()), model.mutable_llama()->set_context(4);
    if (family == 2) {
      blocks(*model.mutable_bert()), model.mutable_bert()->set_context(4);
      facts.kind = plan::DataFacts::Kind::kDocuments;
    }
  } else {
    spec.mutable_data()->mutable_idx()->set_train_images("/i");
    spec.mutable_data()->mutable_idx()->set_train_labels("/l");
    if (family == 3) blocks(*model.mutable_vit()), model.mutable_vit()->set_patch(8);
    if (family == 4) {
      model.mutable_resnet()->set_depth(18);
      model.mutable_resnet()->set_width(2);
      model.mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
    }
    if (family == 5) {
      model.mutable_mobilenet()->set_width(0.05);
      model.mutable_mobilenet()->set_stem(v1::Resnet::IMAGENET);
    }
  }
  spec.mutable_training()->set_steps(1);
  spec.mutable_training()->set_batch_size(2);
  spec.mutable_optimizer()->mutable_adamw();
  spec = plan::ResolveSpec(spec).value();
  plan::Plan plan = plan::BuildPlan(spec, facts).value();
  return {std::move(spec), std::move(plan)};
}

void Use(const std::string& text) {
  static const auto& kModels = *new std::vector<Model>{ModelOf(0), ModelOf(1), ModelOf(2),
                                                       ModelOf(3), ModelOf(4), ModelOf(5)};
  for (const Model& model : kModels) {
    const absl::Status status = CheckConfiguration("c", text, model.spec, model.plan);
    TY_CHECK(status.ok() || absl::IsInvalidArgument(status), status.message());
  }
}

}  // namespace
}  // namespace trainyard::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard::weights;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto index = ParseShardIndex(text);
  if (index.ok()) {
    for (const auto& [tensor, file] : *index) {
      TY_CHECK(file.find('/') == std::string::npos && file[0] != '.', file);
    }
  }
  Use(text);
  // As a patch (RFC 7396) with the model_type of each family.
  const auto json = ParseModelJson(text);
  if (!json.ok()) return 0;
  for (const char* type : {"gpt2", "llama", "bert", "vit", "resnet", "mobilenet_v2"}) {
    nlohmann::json typed = *json;
    typed["model_type"] = type;
    Use(typed.dump());
  }
  return 0;
}
