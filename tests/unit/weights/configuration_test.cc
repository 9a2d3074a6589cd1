#include "executor/weights/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/weights/folders.h"

namespace trainyard::weights {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string Check(const v1::JobSpec& spec, const json& config) {
  const absl::Status status =
      CheckConfiguration("/m/config.json", config.dump(), spec, PlanOf(spec));
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Configuration, ThatOfEachFamilyAgreesWithItsSpec) {
  for (const char* family : {"bert", "gpt", "llama", "vit"}) {
    const v1::JobSpec spec = SmallSpec(family);
    EXPECT_EQ(Check(spec, Folder(spec).config), "") << family;
  }
}

struct Difference {
  const char* family;
  const char* key;
  json value;
  const char* message;
};

TEST(Configuration, EveryDifferenceThatChangesTheNumbersIsNamed) {
  const Difference kTable[] = {
      {"gpt", "model_type", "llama",
       "spec.model: gpt, but model_type of /m/config.json is \"llama\"; set spec.model.llama"},
      {"gpt", "model_type", "mamba", "model_type is \"mamba\"; expected one of bert, gpt2"},
      {"gpt", "model_type", nullptr, "model_type is null"},
      {"gpt", "n_layer", 3,
       "spec.model.gpt.layers: 2, but n_layer of /m/config.json is 3; set layers: 3"},
      {"gpt", "n_layer", "2", "n_layer of /m/config.json is \"2\""},
      {"gpt", "n_head", 4, "set heads: 4"},
      {"gpt", "n_embd", 16, "set width: 16"},
      {"gpt", "n_positions", 1024, "set context: 1024"},
      {"gpt", "n_inner", 24, "set mlp_width: 24"},
      {"gpt", "activation_function", "gelu",
       "spec.model.gpt.activation: GELU_TANH, but activation_function of /m/config.json is "
       "\"gelu\"; set activation: GELU"},
      {"gpt", "activation_function", "silu", "which spec.model.gpt.activation cannot be"},
      {"gpt", "layer_norm_epsilon", 1e-6, "layer_norm_epsilon of /m/config.json is 1e-06"},
      {"gpt", "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx"},
      {"gpt", "tie_word_embeddings", false, "set tie_embeddings: false"},
      {"gpt", "vocab_size", 50257,
       "spec.model.gpt.vocab_size: 11 (as many as the tokens of the data), but vocab_size of "
       "/m/config.json is 50257; set vocab_size: 50257"},
      {"gpt", "vocab_size", 7, "tokenizer: FROM_CHECKPOINT"},
      {"llama", "num_key_value_heads", nullptr, "set kv_heads: 2"},
      {"llama", "rope_theta", 500000.0,
       "spec.model.llama.rope_theta: 10000.0, but rope_theta of /m/config.json is 500000.0; set "
       "rope_theta: 500000.0"},
      {"llama",
       "rope_parameters",
       {{"rope_theta", 5e5}, {"rope_type", "default"}},
       "set rope_theta: 500000.0"},
      {"llama",
       "rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 8.0}},
       "rope_scaling of /m/config.json is"},
      {"llama", "rms_norm_eps", 1e-6, "set epsilon: 1e-06"},
      {"llama", "attention_bias", true, "attention_bias"},
      {"llama", "head_dim", 8, "head_dim"},
      {"llama", "tie_word_embeddings", true, "set tie_embeddings: true"},
      {"llama", "hidden_act", "gelu", "hidden_act"},
      {"bert", "type_vocab_size", 1, "set token_types: 1"},
      {"bert", "layer_norm_eps", 1e-5, "set epsilon: 1e-05"},
      {"bert", "position_embedding_type", "relative_key", "position_embedding_type"},
      {"bert", "max_position_embeddings", 512, "set context: 512"},
      {"bert", "hidden_act", "relu", "set activation: RELU"},
      {"vit", "patch_size", 16, "set patch: 16"},
      {"vit", "image_size", 224, "images of 8x8, but image_size of the folder is 224"},
      {"vit", "num_channels", 3, "num_channels of the folder is 3"},
      {"vit", "qkv_bias", false, "qkv_bias"},
  };
  for (const Difference& d : kTable) {
    const v1::JobSpec spec = SmallSpec(d.family);
    json config = Folder(spec).config;
    config[d.key] = d.value;
    EXPECT_THAT(Check(spec, config), HasSubstr(d.message)) << d.family << " " << d.key;
  }
}

TEST(Configuration, WhatMakesNoDifferenceIsTaken) {
  const Difference kTable[] = {
      {"gpt", "resid_pdrop", 0.3, ""},
      {"gpt", "n_inner", 32, ""},
      {"gpt", "activation_function", "gelu_pytorch_tanh", ""},
      {"gpt", "architectures", {"GPT2Model"}, ""},
      {"llama", "max_position_embeddings", 8192, ""},
      {"llama", "rope_scaling", nullptr, ""},
      {"llama", "rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "default"}}, ""},
      {"vit", "image_size", {8, 8}, ""},
      {"vit", "hidden_dropout_prob", 0.1, ""}};
  for (const Difference& d : kTable) {
    const v1::JobSpec spec = SmallSpec(d.family);
    json config = Folder(spec).config;
    config[d.key] = d.value;
    EXPECT_EQ(Check(spec, config), "") << d.family << " " << d.key;
  }
}

TEST(Configuration, AllDifferencesAreToldAtOnce) {
  const v1::JobSpec spec = SmallSpec("gpt");
  json config = Folder(spec).config;
  config["n_layer"] = 12;
  config["n_head"] = 4;
  EXPECT_THAT(Check(spec, config),
              ::testing::AllOf(HasSubstr("set layers: 12"), HasSubstr("set heads: 4")));
}

TEST(Configuration, AnotherVocabularyIsTakenWhenItsEmbeddingIsDrawnAnew) {
  v1::JobSpec spec = SmallSpec("gpt");
  json config = Folder(spec).config;
  config["vocab_size"] = 50257;
  spec.mutable_fine_tune()->add_reinitialize("transformer.wte.weight");
  EXPECT_EQ(Check(spec, config), "");
}

TEST(Configuration, OurOwnSectionIsComparedFieldByField) {
  const v1::JobSpec spec = SmallSpec("mlp");
  const auto ours = [](const char* model) {
    return json{{"model_type", "trainyard-mlp"},
                {"trainyard", {{"spec", {{"model", json::parse(model)}}}}}};
  };
  EXPECT_EQ(Check(spec, ours(R"({"mlp": {"hidden": [5], "dropout": 0.5}})")), "");
  EXPECT_EQ(Check(spec, ours(R"({"mlp": {"hidden": [5], "activation": "GELU"}})")),
            "spec.model.mlp.activation: RELU, but GELU in /m/config.json; set what is there");
  EXPECT_THAT(Check(spec, ours(R"({"mlp": {"hidden": [5, 6]}})")),
              HasSubstr("spec.model.mlp.hidden[1]: none, but 6"));
  EXPECT_THAT(Check(spec, ours(R"({"convnet": {"stages": [{"channels": 4}]}})")),
              HasSubstr("spec.model: mlp, but /m/config.json is of a convnet"));
  EXPECT_THAT(Check(spec, ours(R"({"mlp": {"hidden": [0]}})")),
              HasSubstr("trainyard.spec.model: spec.model.mlp.hidden[0]"));
  EXPECT_THAT(Check(spec, ours("[]")), HasSubstr("trainyard.spec.model"));
  EXPECT_THAT(Check(spec, {{"trainyard", {{"spec", 3}}}}), HasSubstr("there is none"));
}

}  // namespace
}  // namespace trainyard::weights
