#include "executor/engine/checkpoint/config.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "executor/plan/spec/resnet_layout.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kConfigFormat = 1;

const char* ActivationName(v1::Activation activation) {
  switch (activation) {
    case v1::GELU:
      return "gelu";
    case v1::RELU:
      return "relu";
    case v1::RELU6:
      return "relu6";
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

// The keys of ResNetConfig. A CIFAR stem has none: transformers knows the ImageNet stem only.
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

// What the configurations of the encoders have in common.
template <typename Family>
void AddEncoderKeys(const Family& family, Json& json) {
  json["hidden_size"] = family.width();
  json["intermediate_size"] = family.mlp_width();
  json["num_hidden_layers"] = family.layers();
  json["num_attention_heads"] = family.heads();
  json["hidden_act"] = ActivationName(family.activation());
  json["hidden_dropout_prob"] = family.dropout();
  json["attention_probs_dropout_prob"] = 0.0;  // attention weights are never dropped here
  json["layer_norm_eps"] = family.epsilon();
  json["initializer_range"] = 0.02;
  json["torch_dtype"] = "float32";
}

// The keys of BertConfig. No row of the token embedding is for padding alone.
void AddBertKeys(const v1::Bert& bert, int64_t vocab, const plan::DataFacts& facts, Json& json) {
  json["architectures"] = {"BertForMaskedLM"};
  json["model_type"] = "bert";
  json["vocab_size"] = vocab;
  json["max_position_embeddings"] = bert.context();
  json["type_vocab_size"] = bert.token_types();
  json["tie_word_embeddings"] = true;
  json["pad_token_id"] = nullptr;
  json["mask_token_id"] = bert.has_mask_token() ? bert.mask_token() : facts.vocab;
  AddEncoderKeys(bert, json);
}

// The keys of ViTConfig.
void AddVitKeys(const v1::Vit& vit, const plan::DataFacts& facts, Json& json) {
  json["architectures"] = {"ViTForImageClassification"};
  json["model_type"] = "vit";
  if (facts.height == facts.width) {
    json["image_size"] = facts.height;
  } else {
    json["image_size"] = {facts.height, facts.width};
  }
  json["patch_size"] = vit.patch();
  json["num_channels"] = facts.channels;
  json["num_labels"] = facts.classes;
  json["qkv_bias"] = true;
  AddEncoderKeys(vit, json);
}

// The keys of MobileNetV2Config. A CIFAR stem has none.
void AddMobilenetKeys(const v1::Mobilenet& mobilenet, const plan::DataFacts& facts, Json& json) {
  json["architectures"] = {"MobileNetV2ForImageClassification"};
  json["model_type"] = "mobilenet_v2";
  json["num_channels"] = facts.channels;
  json["image_size"] = facts.height;
  json["depth_multiplier"] = mobilenet.width();
  json["depth_divisible_by"] = 8;
  json["min_depth"] = 8;
  json["expand_ratio"] = 6.0;
  json["output_stride"] = 32;
  json["first_layer_is_expansion"] = true;
  json["finegrained_output"] = true;
  json["hidden_act"] = "relu6";
  json["tf_padding"] = false;
  json["classifier_dropout_prob"] = mobilenet.dropout();
  json["layer_norm_eps"] = 1e-5;  // of its batch norms
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
  for (const auto kind : {plan::DataFacts::Kind::kTokens, plan::DataFacts::Kind::kDocuments,
                          plan::DataFacts::Kind::kClicks}) {
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
  for (const plan::TensorId id : plan.of_group) {
    const plan::Tensor& tensor = plan.tensors[id];
    const std::string& name = tensor.shard ? tensor.shard->whole : tensor.name;
    if (name == "transformer.wte.weight" || name == "model.embed_tokens.weight" ||
        name == "bert.embeddings.word_embeddings.weight") {
      return tensor.shard ? tensor.shard->dims[0] : tensor.dims[0];
    }
  }
  return 0;
}

}  // namespace

std::string ConfigToJson(const ModelConfig& config, const plan::Plan& plan) {
  const v1::Model& model = config.spec.model();
  Json json = Json::object();
  if (model.has_gpt()) {
    AddGpt2Keys(model.gpt(), VocabularyRows(plan), json);
  } else if (model.has_llama()) {
    AddLlamaKeys(model.llama(), VocabularyRows(plan), json);
  } else if (model.has_bert()) {
    AddBertKeys(model.bert(), VocabularyRows(plan), config.facts, json);
  } else if (model.has_vit()) {
    AddVitKeys(model.vit(), config.facts, json);
  } else if (model.resnet().stem() == v1::Resnet::IMAGENET) {
    AddResnetKeys(model.resnet(), config.facts, json);
  } else if (model.mobilenet().stem() == v1::Resnet::IMAGENET) {
    AddMobilenetKeys(model.mobilenet(), config.facts, json);
  } else {
    json["model_type"] = "trainyard-" + plan::FamilyOf(model);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string spec;
  TY_CHECK(google::protobuf::util::MessageToJsonString(config.spec, &spec, options).ok(), "spec");
  json["trainyard"] = {{"format", kConfigFormat},
                       {"family", plan::FamilyOf(model)},
                       {"spec", Json::parse(spec)},
                       {"data", FactsToJson(config.facts)}};
  return json.dump(2) + "\n";
}

absl::StatusOr<ModelConfig> ConfigFromJson(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    const Json& ours = json.at("trainyard");
    if (ours.at("format") != kConfigFormat) {
      return absl::DataLossError(absl::StrCat("trainyard.format is ", ours.at("format").dump(),
                                              "; this program reads ", kConfigFormat));
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
