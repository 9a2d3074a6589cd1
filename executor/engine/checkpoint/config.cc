#include "executor/engine/checkpoint/config.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

const char* FamilyName(const v1::Model& model) {
  switch (model.family_case()) {
    case v1::Model::kMlp:
      return "mlp";
    case v1::Model::kConvnet:
      return "convnet";
    case v1::Model::kGpt:
      return "gpt";
    case v1::Model::kResnet:
      return "resnet";
    case v1::Model::kLlama:
      return "llama";
    case v1::Model::kBert:
      return "bert";
    case v1::Model::kDlrm:
      return "dlrm";
    case v1::Model::kLayers:
      return "layers";
    case v1::Model::FAMILY_NOT_SET:
      return "";
  }
  return "";
}

const char* ActivationName(v1::Activation activation) {
  switch (activation) {
    case v1::GELU:
      return "gelu";
    case v1::RELU:
      return "relu";
    default:
      return "gelu_new";  // transformers' name of the tanh approximation
  }
}

// The keys of GPT2Config whose defaults could differ from ours.
void AddGpt2Keys(const v1::Gpt& gpt, int64_t vocab, Json& json) {
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = vocab;
  json["n_positions"] = gpt.context();
  json["n_embd"] = gpt.width();
  json["n_layer"] = gpt.layers();
  json["n_head"] = gpt.heads();
  json["n_inner"] = gpt.has_mlp_width() ? Json(gpt.mlp_width()) : Json(nullptr);
  json["activation_function"] = ActivationName(gpt.activation());
  json["resid_pdrop"] = gpt.dropout();
  json["embd_pdrop"] = gpt.dropout();
  json["attn_pdrop"] = 0.0;  // attention weights are never dropped here
  json["layer_norm_epsilon"] = 1e-5;
  json["initializer_range"] = 0.02;
  json["tie_word_embeddings"] = !gpt.has_tie_embeddings() || gpt.tie_embeddings();
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = "float32";
}

// The keys of LlamaConfig.
void AddLlamaKeys(const v1::Llama& llama, int64_t vocab, Json& json) {
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = vocab;
  json["hidden_size"] = llama.width();
  json["intermediate_size"] = llama.mlp_width();
  json["num_hidden_layers"] = llama.layers();
  json["num_attention_heads"] = llama.heads();
  json["num_key_value_heads"] = llama.kv_heads();
  json["max_position_embeddings"] = llama.context();
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = llama.epsilon();
  json["rope_theta"] = llama.rope_theta();
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = 0.02;
  json["tie_word_embeddings"] = llama.tie_embeddings();
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
}

// The keys of ResNetConfig. A CIFAR stem has none: transformers knows the other one only.
void AddResnetKeys(const v1::Resnet& resnet, const plan::DataFacts& facts, Json& json) {
  const plan::ResnetLayout layout = *plan::LayoutOfResnet(resnet.depth());
  Json widths = Json::array();
  for (int stage = 0; stage < 4; ++stage) {
    widths.push_back((resnet.width() * (layout.bottleneck ? 4 : 1)) << stage);
  }
  json["architectures"] = {"ResNetForImageClassification"};
  json["model_type"] = "resnet";
  json["num_channels"] = facts.channels;
  json["embedding_size"] = resnet.width();
  json["hidden_sizes"] = widths;
  json["depths"] = layout.blocks;
  json["layer_type"] = layout.bottleneck ? "bottleneck" : "basic";
  json["hidden_act"] = "relu";
  json["downsample_in_first_stage"] = false;
  json["downsample_in_bottleneck"] = false;
  json["num_labels"] = facts.classes;
  json["torch_dtype"] = "float32";
}

Json FactsToJson(const plan::DataFacts& f) {
  return {{"kind", plan::NameOf(f.kind)},
          {"height", f.height},
          {"width", f.width},
          {"channels", f.channels},
          {"classes", f.classes},
          {"vocab", f.vocab},
          {"dense", f.dense},
          {"categorical", f.categorical},
          {"buckets", f.buckets},
          {"train_size", f.train_size},
          {"validation_size", f.validation_size}};
}

plan::DataFacts FactsFromJson(const Json& json) {
  plan::DataFacts f;
  for (const auto kind : {plan::DataFacts::Kind::kTokens, plan::DataFacts::Kind::kClicks}) {
    if (json.at("kind") == plan::NameOf(kind)) f.kind = kind;
  }
  f.height = json.at("height").get<int64_t>();
  f.width = json.at("width").get<int64_t>();
  f.channels = json.at("channels").get<int64_t>();
  f.classes = json.at("classes").get<int64_t>();
  f.vocab = json.at("vocab").get<int64_t>();
  f.dense = json.value("dense", int64_t{0});  // absent in checkpoints from before dlrm
  f.categorical = json.value("categorical", int64_t{0});
  f.buckets = json.value("buckets", int64_t{0});
  f.train_size = json.at("train_size").get<int64_t>();
  f.validation_size = json.at("validation_size").get<int64_t>();
  return f;
}

// The rows of the token embedding: the data's vocabulary, or what the spec padded it to.
int64_t VocabularyRows(const plan::Plan& plan) {
  for (plan::TensorId id : plan.parameters) {
    const std::string& name = plan.tensors[id].name;
    if (name == "transformer.wte.weight" || name == "model.embed_tokens.weight") {
      return plan.tensors[id].dims[0];
    }
  }
  return 0;
}

}  // namespace

std::string ConfigToJson(const ModelConfig& config, const plan::Plan& plan) {
  Json json = Json::object();
  if (config.spec.model().has_gpt()) {
    AddGpt2Keys(config.spec.model().gpt(), VocabularyRows(plan), json);
  } else if (config.spec.model().has_llama()) {
    AddLlamaKeys(config.spec.model().llama(), VocabularyRows(plan), json);
  } else if (config.spec.model().resnet().stem() == v1::Resnet::IMAGENET) {
    AddResnetKeys(config.spec.model().resnet(), config.facts, json);
  } else {
    json["model_type"] = std::string("trainyard-") + FamilyName(config.spec.model());
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string spec;
  TY_CHECK(google::protobuf::util::MessageToJsonString(config.spec, &spec, options).ok(), "spec");
  json["trainyard"] = {{"format", kFormat},
                       {"family", FamilyName(config.spec.model())},
                       {"spec", Json::parse(spec)},
                       {"data", FactsToJson(config.facts)}};
  return json.dump(2) + "\n";
}

absl::StatusOr<ModelConfig> ConfigFromJson(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    const Json& ours = json.at("trainyard");
    if (ours.at("format") != kFormat) {
      return absl::DataLossError(absl::StrCat("trainyard.format is ", ours.at("format").dump(),
                                              "; this program reads ", kFormat));
    }
    ModelConfig config;
    const auto parsed =
        google::protobuf::util::JsonStringToMessage(ours.at("spec").dump(), &config.spec);
    if (!parsed.ok())
      return absl::DataLossError(absl::StrCat("trainyard.spec: ", parsed.ToString()));
    config.facts = FactsFromJson(ours.at("data"));
    return config;
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(e.what());
  }
}

bool SameFacts(const plan::DataFacts& a, const plan::DataFacts& b) {
  return FactsToJson(a) == FactsToJson(b);
}

std::string FactsToText(const plan::DataFacts& facts) { return FactsToJson(facts).dump(); }

}  // namespace trainyard::engine
