#include "tests/unit/weights/folders.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/safetensors.h"
#include "storage/base/ids.h"

namespace trainyard::weights {
namespace {

constexpr int64_t kVocab = 11;

template <typename Family>
void Shape(Family& family) {
  family.set_layers(2);
  family.set_heads(2);
  family.set_width(8);
}

nlohmann::json ConfigOf(const v1::Model& model) {
  if (model.has_gpt()) {
    return {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_head", 2},
            {"n_embd", 8},          {"n_positions", 4}, {"vocab_size", kVocab}};
  }
  if (model.has_llama()) {
    return {{"model_type", "llama"},    {"num_hidden_layers", 2}, {"num_attention_heads", 2},
            {"num_key_value_heads", 1}, {"hidden_size", 8},       {"intermediate_size", 64},
            {"rms_norm_eps", 1e-5},     {"vocab_size", kVocab}};
  }
  nlohmann::json encoder = {{"num_hidden_layers", 2},
                            {"num_attention_heads", 2},
                            {"hidden_size", 8},
                            {"intermediate_size", 32}};
  if (model.has_bert()) {
    encoder.update(
        {{"model_type", "bert"}, {"max_position_embeddings", 4}, {"vocab_size", kVocab + 1}});
  } else if (model.has_vit()) {
    encoder.update(
        {{"model_type", "vit"}, {"patch_size", 4}, {"image_size", 8}, {"num_channels", 1}});
  }
  return encoder;
}

}  // namespace

v1::JobSpec SmallSpec(const std::string& family) {
  v1::JobSpec spec;
  if (family == "gpt") {
    Shape(*spec.mutable_model()->mutable_gpt());
    spec.mutable_model()->mutable_gpt()->set_context(4);
  } else if (family == "llama") {
    Shape(*spec.mutable_model()->mutable_llama());
    spec.mutable_model()->mutable_llama()->set_context(4);
    spec.mutable_model()->mutable_llama()->set_kv_heads(1);
  } else if (family == "bert") {
    Shape(*spec.mutable_model()->mutable_bert());
    spec.mutable_model()->mutable_bert()->set_context(4);
  } else if (family == "vit") {
    Shape(*spec.mutable_model()->mutable_vit());
    spec.mutable_model()->mutable_vit()->set_patch(4);
  } else {
    spec.mutable_model()->mutable_mlp()->add_hidden(5);
  }
  if (family == "vit" || family == "mlp") {
    spec.mutable_data()->mutable_idx()->set_train_images("/i");
    spec.mutable_data()->mutable_idx()->set_train_labels("/l");
  } else {
    spec.mutable_data()->mutable_text()->set_path("/t");
  }
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_batch_size(2);
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_schedule()->set_learning_rate(0.1);
  const auto resolved = plan::ResolveSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

plan::Plan PlanOf(const v1::JobSpec& spec) {
  plan::DataFacts facts;
  if (spec.data().has_text()) {
    facts.kind = spec.model().has_bert() ? plan::DataFacts::Kind::kDocuments
                                         : plan::DataFacts::Kind::kTokens;
    facts.vocab = kVocab;
  } else {
    facts = {.height = 8, .width = 8, .channels = 1, .classes = 3};
  }
  auto plan = plan::BuildPlan(spec, facts);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

Values Floats(const std::vector<int64_t>& shape, float first) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return {.shape = shape,
          .bytes = std::string(reinterpret_cast<const char*>(values.data()), n * sizeof(float))};
}

Folder::Folder(const v1::JobSpec& spec)
    : config(ConfigOf(spec.model())), path_("/tmp/trainyard-weights-test-" + RandomHex(6)) {
  std::filesystem::create_directories(path_);
  const plan::Plan plan = PlanOf(spec);
  float first = 1;
  for (const auto* ids : {&plan.parameters, &plan.buffers}) {
    for (const plan::TensorId id : *ids) {
      for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[id])) {
        tensors[stored.name] = Floats(stored.dims, first += 1000);
      }
    }
  }
}

Folder::~Folder() { std::filesystem::remove_all(path_); }

void Folder::Rename(const std::function<std::string(const std::string&)>& name) {
  std::map<std::string, Values> renamed;
  for (auto& [old, values] : tensors) renamed[name(old)] = std::move(values);
  tensors = std::move(renamed);
}

void Folder::WriteFile(const std::string& name, const std::string& content) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << content;
}

void Folder::Write(int shards) const {
  for (const auto& file : std::filesystem::directory_iterator(path_))
    std::filesystem::remove_all(file);
  WriteFile("config.json", config.dump());
  nlohmann::json index;
  for (int shard = 0; shard < shards; ++shard) {
    const std::string name =
        shards == 1 ? "model.safetensors" : absl::StrCat("model-", shard, ".safetensors");
    std::map<std::string, TensorEntry> entries;
    int at = 0;
    for (const auto& [tensor, values] : tensors) {
      if (at++ % shards != shard) continue;
      entries[tensor] = {.dtype = values.dtype, .shape = values.shape};
      index["weight_map"][tensor] = name;
    }
    const SafetensorsHeader header = PackedHeader(std::move(entries));
    std::string content = SafetensorsPrefix(header);
    for (const std::string& tensor : NamesByPlace(header)) content += tensors.at(tensor).bytes;
    WriteFile(name, content);
  }
  if (shards > 1) WriteFile("model.safetensors.index.json", index.dump());
}

}  // namespace trainyard::weights
