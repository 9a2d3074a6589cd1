#include "tests/unit/plan/specs.h"

#include "executor/plan/assembly.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

void SetRest(v1::JobSpec& spec) {
  spec.mutable_training()->set_steps(10);
  spec.mutable_training()->set_batch_size(6);
  spec.mutable_optimizer()->mutable_adamw();
}

}  // namespace

v1::JobSpec MlpSpec() {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_mlp()->add_hidden(5);
  spec.mutable_data()->mutable_idx()->set_train_images("/data/images");
  spec.mutable_data()->mutable_idx()->set_train_labels("/data/labels");
  spec.mutable_data()->mutable_idx()->set_mean(0.5);
  spec.mutable_data()->mutable_idx()->set_std(0.5);
  SetRest(spec);
  return spec;
}

v1::JobSpec ConvnetSpec() {
  v1::JobSpec spec = MlpSpec();
  v1::Convnet& convnet = *spec.mutable_model()->mutable_convnet();
  convnet.add_stages()->set_channels(3);
  convnet.add_hidden(7);
  return spec;
}

v1::JobSpec GptSpec() {
  v1::JobSpec spec;
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(2);
  gpt.set_heads(2);
  gpt.set_width(8);
  gpt.set_context(5);
  spec.mutable_data()->mutable_text()->set_path("/data/text");
  SetRest(spec);
  return spec;
}

v1::JobSpec LlamaSpec() {
  v1::JobSpec spec = GptSpec();
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_heads(4);
  llama.set_kv_heads(2);
  llama.set_width(8);
  llama.set_mlp_width(6);
  llama.set_context(3);
  llama.set_rope_theta(10);
  return spec;
}

v1::JobSpec DlrmSpec() {
  v1::JobSpec spec;
  v1::Dlrm& dlrm = *spec.mutable_model()->mutable_dlrm();
  dlrm.set_embedding_width(4);
  dlrm.add_bottom(6);
  dlrm.add_top(5);
  spec.mutable_data()->mutable_clicks()->set_train_samples(1000);
  spec.mutable_data()->mutable_clicks()->set_validation_samples(100);
  SetRest(spec);
  return spec;
}

v1::JobSpec ResnetSpec() {
  v1::JobSpec spec = MlpSpec();
  v1::Resnet& resnet = *spec.mutable_model()->mutable_resnet();
  resnet.set_depth(18);
  resnet.set_stem(v1::Resnet::CIFAR);
  resnet.set_width(4);
  return spec;
}

v1::JobSpec BertSpec() {
  v1::JobSpec spec = GptSpec();
  v1::Bert& bert = *spec.mutable_model()->mutable_bert();
  bert.set_layers(2);
  bert.set_heads(2);
  bert.set_width(8);
  bert.set_mlp_width(6);
  bert.set_context(4);
  bert.set_epsilon(1e-5);
  return spec;
}

v1::JobSpec VitSpec() {
  v1::JobSpec spec = MlpSpec();
  v1::Vit& vit = *spec.mutable_model()->mutable_vit();
  vit.set_layers(2);
  vit.set_heads(2);
  vit.set_width(8);
  vit.set_mlp_width(6);
  vit.set_patch(2);
  vit.set_epsilon(1e-5);
  return spec;
}

v1::JobSpec MobilenetSpec() {
  v1::JobSpec spec = MlpSpec();
  v1::Mobilenet& mobilenet = *spec.mutable_model()->mutable_mobilenet();
  mobilenet.set_stem(v1::Resnet::CIFAR);
  mobilenet.set_width(0.25);
  mobilenet.set_dropout(0);
  return spec;
}

v1::LayerList LayersOf(const std::string& text) {
  v1::LayerList layers;
  TY_CHECK(google::protobuf::TextFormat::ParseFromString(text, &layers), text);
  return layers;
}

v1::JobSpec ImageLayersSpec() {
  v1::JobSpec spec = MlpSpec();
  *spec.mutable_model()->mutable_layers() = LayersOf(R"(
    layers { name: "stem" convolution { out: 4 } }
    layers { activation: RELU }
    layers {
      name: "branch"
      block {
        repeat: 2
        layers { name: "conv" convolution { out: 4 groups: 2 bias: false } }
        layers { name: "norm" batch_norm {} }
        layers { name: "sum" inputs: "norm" inputs: "input" add {} }
        layers { activation: GELU }
      }
    }
    layers { max_pool {} }
    layers { flatten {} }
    layers { name: "head" linear {} }
  )");
  return spec;
}

v1::JobSpec TokenLayersSpec() {
  v1::JobSpec spec = GptSpec();
  *spec.mutable_model()->mutable_layers() = LayersOf(R"(
    context: 4
    layers { name: "wte" embedding { width: 8 } }
    layers { name: "wpe" positions {} }
    layers { name: "drop" dropout: 0.1 }
    layers {
      name: "h"
      block {
        layers { name: "norm" rms_norm {} }
        layers { name: "qkv" linear { out: 16 bias: false } }
        layers { name: "attn" attention { heads: 2 kv_heads: 1 rope_theta: 100 } }
        layers { name: "sum" inputs: "attn" inputs: "input" add {} }
        layers { name: "up" linear { out: 6 } }
        layers { name: "act" swiglu {} }
        layers { name: "both" inputs: "act" inputs: "sum" concat {} }
        layers { name: "down" linear { out: 8 } }
      }
    }
    layers { name: "ln" layer_norm {} }
    layers { name: "head" linear { tied: "wte" } }
  )");
  return spec;
}

v1::JobSpec CharGptSpec() {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(4);
  gpt.set_heads(4);
  gpt.set_width(128);
  gpt.set_context(64);
  gpt.set_bias(false);
  spec.mutable_training()->set_steps(2000);
  spec.mutable_training()->set_batch_size(12);
  spec.mutable_optimizer()->set_clip_norm(1.0);
  return spec;
}

v1::JobSpec Gpt2Spec() {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(12);
  gpt.set_heads(12);
  gpt.set_width(768);
  gpt.set_context(1024);
  spec.mutable_training()->set_batch_size(4);
  return spec;
}

v1::JobSpec CsvSpec() {
  v1::JobSpec spec = DlrmSpec();
  v1::CsvData& csv = *spec.mutable_data()->mutable_csv();
  csv.set_train("/data/clicks.csv");
  csv.set_label("click");
  csv.add_dense("price");
  csv.add_categorical("city");
  csv.set_hash_buckets(100);
  return spec;
}

v1::JobSpec TokenSpec() {
  v1::JobSpec spec = GptSpec();
  v1::TokenData& tokens = *spec.mutable_data()->mutable_tokens();
  tokens.add_train("/data/train.bin");
  tokens.set_vocab_size(100);
  return spec;
}

v1::JobSpec FolderSpec() {
  v1::JobSpec spec = ConvnetSpec();
  v1::ImageFolderData& folder = *spec.mutable_data()->mutable_image_folder();
  folder.set_train("/data/train");
  folder.mutable_transform()->set_size(224);
  return spec;
}

v1::ImageTransform& TransformOf(v1::JobSpec& spec) {
  return *spec.mutable_data()->mutable_image_folder()->mutable_transform();
}

DataFacts ImageFacts(int64_t height, int64_t width, int64_t channels, int64_t classes) {
  return {.kind = DataFacts::Kind::kImages,
          .height = height,
          .width = width,
          .channels = channels,
          .classes = classes,
          .train_size = 100,
          .validation_size = 10};
}

DataFacts TokenFacts(int64_t vocab) {
  return {.kind = DataFacts::Kind::kTokens,
          .vocab = vocab,
          .train_size = 1000000,
          .validation_size = 1000};
}

DataFacts DocumentFacts(int64_t vocab) {
  DataFacts facts = TokenFacts(vocab);
  facts.kind = DataFacts::Kind::kDocuments;
  return facts;
}

DataFacts ClickFacts(int64_t dense, int64_t categorical, int64_t buckets) {
  return {.kind = DataFacts::Kind::kClicks,
          .dense = dense,
          .categorical = categorical,
          .buckets = buckets,
          .train_size = 1000,
          .validation_size = 100};
}

int64_t Recomputing(const DataFacts& facts, v1::JobSpec& spec) {
  const auto least = Assemble(ResolveSpec(spec).value(), facts, 1);
  TY_CHECK(least.ok(), least.status().ToString());
  const int64_t bytes = least->summary.activation_bytes();
  spec.mutable_training()->mutable_recompute()->set_activation_bytes(bytes);
  return bytes;
}

Plan PlanOf(const v1::JobSpec& spec, const DataFacts& facts) {
  absl::StatusOr<v1::JobSpec> resolved = ResolveSpec(spec);
  TY_CHECK(resolved.ok(), resolved.status().ToString());
  absl::StatusOr<Plan> plan = BuildPlan(*resolved, facts);
  TY_CHECK(plan.ok(), plan.status().ToString());
  return *std::move(plan);
}

absl::Status PlanStatus(const v1::JobSpec& spec, const DataFacts& facts) {
  const absl::StatusOr<v1::JobSpec> resolved = ResolveSpec(spec);
  if (!resolved.ok()) return resolved.status();
  return BuildPlan(*resolved, facts).status();
}

}  // namespace trainyard::plan
