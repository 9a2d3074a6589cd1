#include "executor/weights/configuration.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "executor/plan/spec/checks.h"
#include "executor/plan/spec/resnet_layout.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/model_json.h"
#include "executor/weights/names.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

using Json = nlohmann::json;

constexpr char kOurSection[] = "trainyard";

// transformers' model_type of each family that it knows.
constexpr std::pair<const char*, const char*> kModelTypes[] = {
    {"bert", "bert"},     {"gpt", "gpt2"}, {"llama", "llama"}, {"mobilenet", "mobilenet_v2"},
    {"resnet", "resnet"}, {"vit", "vit"}};

constexpr std::pair<const char*, v1::Activation> kActivations[] = {
    {"gelu", v1::GELU},           {"gelu_python", v1::GELU},
    {"gelu_new", v1::GELU_TANH},  {"gelu_pytorch_tanh", v1::GELU_TANH},
    {"gelu_fast", v1::GELU_TANH}, {"relu", v1::RELU},
    {"relu6", v1::RELU6}};

// `value` as messages show it: a long one is cut and escaped.
std::string TextOf(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : absl::StrCat(absl::Utf8SafeCEscape(text.substr(0, 60)), "...");
}

bool Same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

// Collects the differences between config.json and spec.model.
class Comparison {
 public:
  Comparison(const Json& config, std::string place, std::string family)
      : config_(config), place_(std::move(place)), family_(std::move(family)) {}

  // The value of `key`, or `fallback`, transformers' default, where it is absent or null.
  Json At(const char* key, const Json& fallback) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? fallback : *found;
  }

  // Expects `key` to be `ours`, the value of spec.model.{family}.{field}.
  void Field(const char* key, const char* field, const Json& ours, const Json& fallback) {
    const Json theirs = At(key, fallback);
    if (!Same(theirs, ours)) Differs(key, theirs, field, TextOf(ours), TextOf(theirs));
  }

  void ActivationField(const char* key, const char* fallback, v1::Activation ours) {
    const Json theirs = At(key, fallback);
    for (const auto& [name, activation] : kActivations) {
      if (theirs != name) continue;
      if (activation == ours) return;
      Differs(key, theirs, "activation", v1::Activation_Name(ours),
              v1::Activation_Name(activation));
      return;
    }
    Add(absl::StrCat(key, " of ", place_, " is ", TextOf(theirs), ", which spec.model.", family_,
                     ".activation cannot be"));
  }

  // Expects `key` to be `ours`, which the family always has: no field of the spec sets it.
  void Always(const char* key, const Json& ours, const Json& fallback) {
    const Json theirs = At(key, fallback);
    if (Same(theirs, ours)) return;
    Add(absl::StrCat(key, " of ", place_, " is ", TextOf(theirs), ", but ", family_,
                     " of Trainyard has ", TextOf(ours), " and nothing else"));
  }

  void Differs(const char* key, const Json& theirs, const char* field, const std::string& ours,
               const std::string& set) {
    Add(absl::StrCat("spec.model.", family_, ".", field, ": ", ours, ", but ", key, " of ", place_,
                     " is ", TextOf(theirs), "; set ", field, ": ", set));
  }

  void Add(std::string difference) { differences_.push_back(std::move(difference)); }

  absl::Status Verdict() const {
    if (differences_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(differences_, "; "));
  }

 private:
  const Json& config_;
  const std::string place_, family_;
  std::vector<std::string> differences_;
};

void CompareVocabulary(const v1::JobSpec& spec, const plan::Plan& plan, bool declared,
                       Comparison& c) {
  const std::string name = TokenEmbeddingOf(plan);
  if (name.empty() || IsReinitialized(spec.fine_tune(), name)) return;
  int64_t rows = 0;
  for (const plan::TensorId id : plan.of_group) {
    for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[id])) {
      if (stored.name == name) rows = stored.dims[0];
    }
  }
  const Json theirs = c.At("vocab_size", Json(rows));
  if (Same(theirs, Json(rows))) return;
  const std::string ours =
      absl::StrCat(rows, declared ? "" : " (as many as the tokens of the data)");
  const bool fewer = theirs.is_number() && theirs.get<double>() < static_cast<double>(rows);
  if (!declared && fewer) {
    c.Add(absl::StrCat("spec.model: the data has ", rows,
                       " tokens, but vocab_size of the folder is ", TextOf(theirs),
                       "; take its tokenizer (spec.data.text.tokenizer: "
                       "FROM_CHECKPOINT), or reinitialize: ['",
                       name, "']"));
    return;
  }
  c.Differs("vocab_size", theirs, "vocab_size", ours, TextOf(theirs));
}

void CompareGpt(const v1::Gpt& gpt, Comparison& c) {
  c.Field("n_layer", "layers", gpt.layers(), 12);
  c.Field("n_head", "heads", gpt.heads(), 12);
  c.Field("n_embd", "width", gpt.width(), 768);
  c.Field("n_positions", "context", gpt.context(), 1024);
  const Json width = c.At("n_embd", 768);
  const Json inner = width.is_number_unsigned() && width.get<uint64_t>() < (1u << 24)
                         ? Json(4 * width.get<int64_t>())
                         : Json(gpt.mlp_width());
  c.Field("n_inner", "mlp_width", gpt.mlp_width(), inner);
  c.ActivationField("activation_function", "gelu_new", gpt.activation());
  c.Field("tie_word_embeddings", "tie_embeddings", gpt.tie_embeddings(), true);
  c.Always("layer_norm_epsilon", 1e-5, 1e-5);
  c.Always("scale_attn_weights", true, true);
  c.Always("scale_attn_by_inverse_layer_idx", false, false);
  c.Always("add_cross_attention", false, false);
}

void CompareLlama(const v1::Llama& llama, Comparison& c) {
  c.Field("num_hidden_layers", "layers", llama.layers(), 32);
  c.Field("num_attention_heads", "heads", llama.heads(), 32);
  c.Field("num_key_value_heads", "kv_heads", llama.kv_heads(), c.At("num_attention_heads", 32));
  c.Field("hidden_size", "width", llama.width(), 4096);
  c.Field("intermediate_size", "mlp_width", llama.mlp_width(), 11008);
  c.Field("rms_norm_eps", "epsilon", llama.epsilon(), 1e-6);
  c.Field("tie_word_embeddings", "tie_embeddings", llama.tie_embeddings(), false);
  c.Always("hidden_act", "silu", "silu");
  c.Always("attention_bias", false, false);
  c.Always("mlp_bias", false, false);
  c.Always("head_dim", llama.width() / llama.heads(), llama.width() / llama.heads());
  // From version 5 on transformers keeps the parameters of the rotary angles in one object.
  Json angles = c.At("rope_parameters", c.At("rope_scaling", nullptr));
  if (angles.is_object()) {
    const Json kind = angles.value("rope_type", angles.value("type", Json("default")));
    if (kind == "default") {
      const Json theta = angles.value("rope_theta", c.At("rope_theta", 10000.0));
      if (!Same(theta, llama.rope_theta())) {
        c.Differs("rope_theta", theta, "rope_theta", TextOf(llama.rope_theta()), TextOf(theta));
      }
      return;
    }
  }
  if (!angles.is_null()) c.Always("rope_scaling", nullptr, angles);
  c.Field("rope_theta", "rope_theta", llama.rope_theta(), 10000.0);
}

// What the encoders have in common.
template <typename Family>
void CompareEncoder(const Family& family, Comparison& c) {
  c.Field("num_hidden_layers", "layers", family.layers(), 12);
  c.Field("num_attention_heads", "heads", family.heads(), 12);
  c.Field("hidden_size", "width", family.width(), 768);
  c.Field("intermediate_size", "mlp_width", family.mlp_width(), 3072);
  c.ActivationField("hidden_act", "gelu", family.activation());
  c.Field("layer_norm_eps", "epsilon", family.epsilon(), 1e-12);
}

void CompareBert(const v1::Bert& bert, Comparison& c) {
  CompareEncoder(bert, c);
  c.Field("max_position_embeddings", "context", bert.context(), 512);
  c.Field("type_vocab_size", "token_types", bert.token_types(), 2);
  c.Always("tie_word_embeddings", true, true);
  c.Always("position_embedding_type", "absolute", "absolute");
  c.Always("is_decoder", false, false);
}

// The side of an image or patch, which config.json may give as a pair of equal numbers.
Json SideOf(const Json& found) {
  return found.is_array() && found.size() == 2 && found[0] == found[1] ? found[0] : found;
}

void CompareChannels(int64_t ours, Comparison& c) {
  const Json theirs = c.At("num_channels", 3);
  if (Same(theirs, ours)) return;
  c.Add(absl::StrCat("spec.data: images of ", ours, " channels, but num_channels of the folder is ",
                     TextOf(theirs)));
}

void CompareVit(const v1::Vit& vit, const std::vector<int64_t>& image, Comparison& c) {
  CompareEncoder(vit, c);
  const Json patch = SideOf(c.At("patch_size", 16));
  if (!Same(patch, vit.patch())) {
    c.Differs("patch_size", patch, "patch", TextOf(vit.patch()), TextOf(patch));
  }
  const Json ours = image[1] == image[2] ? Json(image[1]) : Json{image[1], image[2]};
  const Json size = SideOf(c.At("image_size", 224));
  if (!Same(size, ours)) {
    c.Add(absl::StrCat("spec.data: images of ", image[1], "x", image[2],
                       ", but image_size of the folder is ", TextOf(size),
                       "; resize them (transform.size: ", TextOf(size), ")"));
  }
  CompareChannels(image[3], c);
  c.Always("qkv_bias", true, true);
}

void CompareResnet(const v1::Resnet& resnet, const std::vector<int64_t>& image, Comparison& c) {
  if (resnet.stem() != v1::Resnet::IMAGENET) {
    c.Add(
        "spec.model.resnet.stem: CIFAR, but the folder's model begins with a 7x7 convolution; set "
        "stem: IMAGENET");
  }
  const Json depths = c.At("depths", Json{3, 4, 6, 3}), kind = c.At("layer_type", "bottleneck");
  const auto is = [&](int depth) {
    const plan::ResnetLayout layout = *plan::LayoutOfResnet(depth);
    return depths == Json(layout.blocks) && kind == (layout.bottleneck ? "bottleneck" : "basic");
  };
  if (!is(resnet.depth())) {
    std::string set;
    for (const int depth : {18, 34, 50, 101, 152}) {
      if (is(depth)) set = absl::StrCat(depth);
    }
    if (set.empty()) {
      c.Add(absl::StrCat("spec.model.resnet.depth: Trainyard has none of the blocks ",
                         TextOf(depths), " of layer_type ", TextOf(kind)));
    } else {
      c.Differs("depths", depths, "depth", absl::StrCat(resnet.depth()), set);
    }
  }
  c.Field("embedding_size", "width", resnet.width(), 64);
  const bool bottleneck = plan::LayoutOfResnet(resnet.depth())->bottleneck;
  Json widths = Json::array();
  for (int stage = 0; stage < 4; ++stage) {
    widths.push_back((int64_t{resnet.width()} * (bottleneck ? 4 : 1)) << stage);
  }
  c.Always("hidden_sizes", widths, Json{256, 512, 1024, 2048});
  CompareChannels(image[3], c);
  c.Always("hidden_act", "relu", "relu");
  c.Always("downsample_in_first_stage", false, false);
  c.Always("downsample_in_bottleneck", false, false);
}

void CompareMobilenet(const v1::Mobilenet& mobilenet, const std::vector<int64_t>& image,
                      Comparison& c) {
  if (mobilenet.stem() != v1::Resnet::IMAGENET) {
    c.Add(
        "spec.model.mobilenet.stem: CIFAR, but the folder's model has the strides of ImageNet; set "
        "stem: IMAGENET");
  }
  c.Field("depth_multiplier", "width", mobilenet.width(), 1.0);
  CompareChannels(image[3], c);
  c.Always("depth_divisible_by", 8, 8);
  c.Always("min_depth", 8, 8);
  c.Always("expand_ratio", 6, 6);
  c.Always("output_stride", 32, 32);
  c.Always("first_layer_is_expansion", true, true);
  c.Always("finegrained_output", true, true);
  c.Always("hidden_act", "relu6", "relu6");
  c.Always("tf_padding", false, true);
  c.Always("layer_norm_eps", 1e-5, 0.001);
}

void CompareFamily(const v1::JobSpec& spec, const plan::Plan& plan, Comparison& c) {
  const v1::Model& model = spec.model();
  const std::vector<int64_t>& input = plan.tensors[plan.input].dims;  // images: [B, H, W, C]
  switch (model.family_case()) {
    case v1::Model::kBert:
      CompareVocabulary(spec, plan, model.bert().has_vocab_size(), c);
      return CompareBert(model.bert(), c);
    case v1::Model::kGpt:
      CompareVocabulary(spec, plan, model.gpt().has_vocab_size(), c);
      return CompareGpt(model.gpt(), c);
    case v1::Model::kLlama:
      CompareVocabulary(spec, plan, model.llama().has_vocab_size(), c);
      return CompareLlama(model.llama(), c);
    case v1::Model::kMobilenet:
      return CompareMobilenet(model.mobilenet(), input, c);
    case v1::Model::kResnet:
      return CompareResnet(model.resnet(), input, c);
    case v1::Model::kVit:
      return CompareVit(model.vit(), input, c);
    default:
      return;
  }
}

// Differences between two messages, a line each.
class Lines : public google::protobuf::util::MessageDifferencer::Reporter {
 public:
  using Message = google::protobuf::Message;
  using Path = std::vector<google::protobuf::util::MessageDifferencer::SpecificField>;

  explicit Lines(std::string root) : root_(std::move(root)) {}
  std::vector<std::string> Take() { return std::move(lines_); }

  void ReportAdded(const Message&, const Message& ours, const Path& path) override {
    lines_.push_back(
        absl::StrCat(Name(path), ": ", Value(ours, path, false), ", but there is none"));
  }
  void ReportDeleted(const Message& theirs, const Message&, const Path& path) override {
    lines_.push_back(absl::StrCat(Name(path), ": none, but ", Value(theirs, path, true)));
  }
  void ReportModified(const Message& theirs, const Message& ours, const Path& path) override {
    using google::protobuf::FieldDescriptor;
    const FieldDescriptor* field = path.back().field;
    if (field == nullptr || field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return;
    lines_.push_back(absl::StrCat(Name(path), ": ", Value(ours, path, false), ", but ",
                                  Value(theirs, path, true)));
  }

 private:
  std::string Name(const Path& path) const {
    std::string name = root_;
    for (const auto& at : path) {
      if (at.field == nullptr) continue;
      absl::StrAppend(&name, ".", at.field->name());
      if (at.field->is_repeated())
        absl::StrAppend(&name, "[", std::max(at.index, at.new_index), "]");
    }
    return name;
  }

  static std::string Value(const Message& message, const Path& path, bool old) {
    const auto& at = path.back();
    if (at.field == nullptr) return "something else";
    std::string text;
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    printer.PrintFieldValueToString(
        message, at.field, at.field->is_repeated() ? (old ? at.index : at.new_index) : -1, &text);
    return text.size() <= 60 ? text : absl::StrCat(text.substr(0, 60), "...");
  }

  const std::string root_;
  std::vector<std::string> lines_;
};

// Ignores fields on which neither numbers nor shapes depend, or which other checks compare.
class FieldsWithoutEffect : public google::protobuf::util::MessageDifferencer::IgnoreCriteria {
 public:
  bool IsIgnored(
      const google::protobuf::Message&, const google::protobuf::Message&,
      const google::protobuf::FieldDescriptor* field,
      const std::vector<google::protobuf::util::MessageDifferencer::SpecificField>&) override {
    static constexpr const char* kNames[] = {"context",    "dropout",  "init_std",  "mask_rate",
                                             "mask_token", "momentum", "vocab_size"};
    return absl::c_any_of(kNames, [&](const char* name) { return field->name() == name; });
  }
};

// Compares the model with that of a checkpoint of ours, whose config.json holds the whole spec.
absl::Status CompareOurs(const std::string& place, const Json& ours, const v1::Model& model) {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", kOurSection, ".spec.model: ", what));
  };
  const Json spec = ours.value("spec", Json());
  const auto written = spec.find("model");
  if (!spec.is_object() || written == spec.end()) return wrong("there is none");
  v1::Model found;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(written->dump(), &found, options);
  if (!parsed.ok()) return wrong(std::string(parsed.message().substr(0, 200)));
  const absl::Status resolved = plan::ResolveModel(found);
  if (!resolved.ok()) return wrong(std::string(resolved.message()));
  const std::string theirs = plan::FamilyOf(found), family = plan::FamilyOf(model);
  if (theirs != family) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model: ", family, ", but ", place,
                                                   " is of a ", theirs, "; set spec.model.", theirs,
                                                   ", or name another folder"));
  }
  google::protobuf::util::MessageDifferencer differencer;
  Lines lines("spec.model");
  differencer.ReportDifferencesTo(&lines);
  differencer.AddIgnoreCriteria(new FieldsWithoutEffect);  // it takes ownership
  if (differencer.Compare(found, model)) return absl::OkStatus();
  std::vector<std::string> differences = lines.Take();
  constexpr size_t kMost = 8;
  if (differences.size() > kMost) differences.resize(kMost);
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(differences, "; "), " in ", place, "; set what is there"));
}

}  // namespace

bool IsOurs(const std::string& configuration) {
  const auto json = ParseModelJson(configuration);
  return json.ok() && json->contains(kOurSection);
}

std::string TokenEmbeddingOf(const plan::Plan& plan) {
  for (const plan::TensorId id : plan.of_group) {
    const plan::Tensor& tensor = plan.tensors[id];
    const std::string& name = tensor.shard ? tensor.shard->whole : tensor.name;
    if (name == "transformer.wte.weight" || name == "model.embed_tokens.weight" ||
        name == "bert.embeddings.word_embeddings.weight") {
      return name;
    }
  }
  return "";
}

absl::Status CheckConfiguration(const std::string& place, const std::string& configuration,
                                const v1::JobSpec& spec, const plan::Plan& plan) {
  TY_ASSIGN_OR_RETURN(const Json config, ParseModelJson(configuration));
  const auto ours = config.find(kOurSection);
  const bool is_ours = ours != config.end() && ours->is_object();
  if (is_ours) TY_RETURN_IF_ERROR(CompareOurs(place, *ours, spec.model()));
  const std::string family = plan::FamilyOf(spec.model());
  const Json type = config.value("model_type", Json());
  const auto known = absl::c_find_if(kModelTypes, [&](const auto& t) { return type == t.second; });
  if (known == std::end(kModelTypes)) {
    if (is_ours) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": model_type is ", TextOf(type), "; expected one of ",
                     absl::StrJoin(kModelTypes, ", ",
                                   [](std::string* out, const auto& t) { out->append(t.second); }),
                     ", or a checkpoint of Trainyard's"));
  }
  if (family != known->first) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model: ", family, ", but model_type of ",
                                                   place, " is ", TextOf(type), "; set spec.model.",
                                                   known->first, ", or name another folder"));
  }
  Comparison comparison(config, place, family);
  CompareFamily(spec, plan, comparison);
  return comparison.Verdict();
}

}  // namespace trainyard::weights
