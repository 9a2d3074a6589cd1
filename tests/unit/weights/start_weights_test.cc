// Whole folders: what fits, what is refused, and that what a message suggests does.

#include "executor/weights/start_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "executor/data/tokenizer/vocabulary.h"
#include "tests/unit/weights/folders.h"

namespace trainyard::weights {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StartWeightsTest : public ::testing::Test {
 protected:
  void Use(const std::string& family) {
    spec_ = SmallSpec(family);
    folder_.reset(new Folder(spec_));
    spec_.mutable_fine_tune()->set_from(folder_->path());
  }
  absl::StatusOr<StartWeights> Open(int shards = 1) {
    folder_->Write(shards);
    return OpenStartWeights(spec_, PlanOf(spec_));
  }
  // The message of a refusal; "" when there is none.
  std::string Refusal(int shards = 1) {
    const absl::Status status = Open(shards).status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
  std::string RefusalAsItLies() {
    return std::string(OpenStartWeights(spec_, PlanOf(spec_)).status().message());
  }

  v1::JobSpec spec_;
  std::unique_ptr<Folder> folder_;
};

TEST_F(StartWeightsTest, EveryParameterIsReadFromItsTensor) {
  for (const char* family : {"bert", "gpt", "llama", "vit"}) {
    for (const int shards : {1, 3}) {
      Use(family);
      const auto weights = Open(shards);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->assignment.read.size(), folder_->tensors.size());
      EXPECT_THAT(weights->assignment.drawn, SizeIs(0));
      for (const ReadPart& part : weights->assignment.read) {
        const plan::StoredTensor& stored = part.tensor.stored;
        EXPECT_EQ(part.found, stored.name);
        std::vector<float> values(stored.elements());
        ASSERT_TRUE(weights->Read(part.found, 0, stored.elements(), values.data()).ok());
        EXPECT_EQ(
            memcmp(values.data(), folder_->tensors[part.found].bytes.data(), values.size() * 4), 0);
      }
    }
  }
}

TEST_F(StartWeightsTest, PartsOfOneProductGoToTheirRows) {
  Use("llama");
  const auto weights = Open();
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (const ReadPart& part : weights->assignment.read) {
    const bool values = absl::EndsWith(part.found, "0.self_attn.v_proj.weight");
    if (values || absl::EndsWith(part.found, "0.self_attn.q_proj.weight")) {
      ASSERT_THAT(part.tensor.pieces, SizeIs(1));
      EXPECT_EQ(part.tensor.pieces[0].offset, values ? (8 + 4) * 8 : 0);
    }
  }
}

TEST_F(StartWeightsTest, FoldersOfBaseClassesLackThePrefix) {
  const std::pair<const char*, const char*> kPrefixes[] = {
      {"bert", "bert."}, {"gpt", "transformer."}, {"llama", "model."}, {"vit", "vit."}};
  for (const auto& [family, prefix] : kPrefixes) {
    Use(family);
    const auto strip = [&, prefix = prefix](const std::string& name) {
      return std::string(absl::StripPrefix(name, prefix));
    };
    folder_->Rename(strip);
    EXPECT_EQ(Refusal(), "") << family;
    // Some with it and some without is no folder that any class leaves.
    Use(family);
    bool stripped = false;
    folder_->Rename([&, start = std::string(prefix)](const std::string& name) {
      if (stripped || !absl::StartsWith(name, start)) return name;
      stripped = true;
      return strip(name);
    });
    EXPECT_THAT(Refusal(),
                AllOf(HasSubstr("it lacks 1 of the"), HasSubstr("no place for 1 of its tensors")));
  }
}

TEST_F(StartWeightsTest, MasksCountersAndOldNamesArePassedOver) {
  Use("gpt");
  folder_->tensors["transformer.h.1.attn.bias"] = Floats({1, 1, 4, 4}, 0);
  folder_->tensors["transformer.h.1.attn.masked_bias"] = Floats({}, -1e4);
  folder_->tensors["transformer.h.1.attn.num_batches_tracked"] = {"I64", {}, std::string(8, '\0')};
  EXPECT_EQ(Refusal(), "");
  Use("bert");
  folder_->tensors["bert.embeddings.position_ids"] = {"I64", {1, 2}, std::string(16, '\0')};
  folder_->Rename([](const std::string& name) {
    if (absl::EndsWith(name, "LayerNorm.weight"))
      return std::string(absl::StripSuffix(name, "weight")) + "gamma";
    if (absl::EndsWith(name, "LayerNorm.bias"))
      return std::string(absl::StripSuffix(name, "bias")) + "beta";
    return name;
  });
  EXPECT_EQ(Refusal(), "");
  folder_->tensors["bert.embeddings.LayerNorm.weight"] = Floats({8}, 1);
  EXPECT_THAT(Refusal(), HasSubstr("are both 'bert.embeddings.LayerNorm.weight' of spec.model"));
}

TEST_F(StartWeightsTest, ATiedHeadMayBeStoredTwiceIfItIsTheSame) {
  Use("gpt");
  folder_->tensors["lm_head.weight"] = folder_->tensors["transformer.wte.weight"];
  EXPECT_EQ(Refusal(), "");
  Values other = folder_->tensors["transformer.wte.weight"];
  other.bytes.back() ^= 1;
  folder_->tensors["lm_head.weight"] = other;
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("'lm_head.weight' and 'transformer.wte.weight' differ"),
                               HasSubstr("at element 87")));
  spec_.mutable_fine_tune()->add_reinitialize("transformer.wte.weight");
  EXPECT_EQ(Refusal(), "") << "drawn anew, it is none of the two";
  spec_.mutable_fine_tune()->clear_reinitialize();
  folder_->tensors["lm_head.weight"] = Floats({11, 9}, 1);
  EXPECT_THAT(Refusal(),
              HasSubstr("'lm_head.weight' is F32 [11, 9], not 'transformer.wte.weight' once more"));
}

TEST_F(StartWeightsTest, WhatDoesNotFitIsNamedWithThePatternThatWouldDo) {
  Use("vit");
  folder_->tensors["classifier.weight"] = Floats({1000, 8}, 1);
  folder_->tensors.erase("classifier.bias");
  folder_->tensors["vit.pooler.dense.weight"] = Floats({8, 8}, 1);
  folder_->tensors["vit.pooler.dense.bias"] = Floats({8}, 1);
  EXPECT_EQ(Refusal(), "spec.fine_tune.from: " + folder_->path() +
                           ": it lacks 1 of the 40 tensors of spec.model: 'classifier.bias' [3]; 1 "
                           "has another shape: "
                           "'classifier.weight' is [1000, 8], expected [3, 8] (reinitialize: "
                           "['classifier.*'] draws them anew); "
                           "spec.model has no place for 2 of its tensors: 'vit.pooler.dense.bias' "
                           "[8], 'vit.pooler.dense.weight' "
                           "[8, 8] (ignore: ['vit.pooler.dense.*'] passes over them)");
  spec_.mutable_fine_tune()->add_reinitialize("classifier.*");
  spec_.mutable_fine_tune()->add_ignore("vit.pooler.dense.*");
  const auto weights = Open();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->assignment.drawn, ElementsAre("classifier.weight", "classifier.bias"));
  EXPECT_THAT(weights->assignment.drawn_whose, SizeIs(2));
}

TEST_F(StartWeightsTest, SuggestedPatternsTakeNothingElse) {
  Use("gpt");
  folder_->tensors.erase("transformer.h.0.ln_1.weight");
  folder_->tensors.erase("transformer.h.1.mlp.c_fc.weight");
  folder_->tensors.erase("transformer.h.1.mlp.c_fc.bias");
  EXPECT_THAT(
      Refusal(),
      HasSubstr(
          "(reinitialize: ['transformer.h.1.mlp.c_fc.*', 'transformer.h.0.ln_1.weight'] draws"));
  spec_.mutable_fine_tune()->add_reinitialize("transformer.h.0.ln_1.weight");
  spec_.mutable_fine_tune()->add_reinitialize("transformer.h.1.mlp.c_fc.*");
  EXPECT_EQ(Refusal(), "");
}

TEST_F(StartWeightsTest, PatternsThatMatchNothingAreToldTheNearestNames) {
  Use("vit");
  spec_.mutable_fine_tune()->add_reinitialize("classifer.*");
  EXPECT_THAT(
      Refusal(),
      AllOf(HasSubstr(
                "spec.fine_tune.reinitialize: 'classifer.*' matches no parameter of spec.model"),
            HasSubstr("'classifier.bias'")));
  spec_.mutable_fine_tune()->clear_reinitialize();
  spec_.mutable_fine_tune()->add_ignore("*.poler.*");
  EXPECT_THAT(
      Refusal(),
      HasSubstr("spec.fine_tune.ignore: '*.poler.*' matches no tensor of spec.fine_tune.from"));
  spec_.mutable_fine_tune()->set_ignore(0, "classifier.*");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("spec.fine_tune.ignore: 'classifier.weight', "
                                         "'classifier.bias' are what spec.model needs"),
                               HasSubstr("reinitialize: ['classifier.*']")));
}

TEST_F(StartWeightsTest, HalvesAreReadAndOtherTypesAreNot) {
  Use("mlp");
  folder_->config =
      nlohmann::json::parse(R"({"trainyard": {"spec": {"model": {"mlp": {"hidden": [5]}}}}})");
  folder_->tensors["layers.1.bias"] = {"BF16", {3}, std::string("\x80\x3f\x00\xc0\x00\x00", 6)};
  const auto weights = Open();
  ASSERT_TRUE(weights.ok()) << weights.status();
  float values[3];
  ASSERT_TRUE(weights->Read("layers.1.bias", 0, 3, values).ok());
  EXPECT_THAT(values, ElementsAre(1, -2, 0));
  folder_->tensors["layers.1.bias"] = {"I32", {3}, std::string(12, '\0')};
  EXPECT_THAT(
      Refusal(),
      HasSubstr("1 cannot be read as weights: 'layers.1.bias' is I32; expected F32, F16 or BF16"));
}

TEST_F(StartWeightsTest, AFolderThatIsNotSeenIsNotWrong) {
  Use("gpt");
  spec_.mutable_fine_tune()->set_from("/nowhere/model");
  EXPECT_EQ(OpenStartWeights(spec_, PlanOf(spec_)).status().code(), absl::StatusCode::kNotFound);
  spec_.mutable_fine_tune()->set_from("file://" + folder_->path());
  folder_->Write();
  EXPECT_TRUE(OpenStartWeights(spec_, PlanOf(spec_)).ok());
}

TEST_F(StartWeightsTest, FoldersThatAreNoModelsAreToldWhatTheyAre) {
  Use("gpt");
  const auto only = [&](const char* name, const char* expected) {
    folder_->Write();
    std::filesystem::remove(folder_->path() + "/config.json");
    if (name[0] != '\0') folder_->WriteFile(name, "x");
    EXPECT_THAT(RefusalAsItLies(), AllOf(HasSubstr("has no config.json"), HasSubstr(expected)));
  };
  only("", "expected a checkpoint of Trainyard's or what transformers' save_pretrained leaves");
  only("adapter_config.json", "an adapter alone");
  only("pytorch_model.bin", "safe_serialization=True");
  folder_->Write();
  std::filesystem::remove(folder_->path() + "/config.json");
  std::filesystem::create_directories(folder_->path() + "/step-00000004");
  EXPECT_THAT(
      RefusalAsItLies(),
      HasSubstr("it holds checkpoints; name one of them: " + folder_->path() + "/step-00000004"));
  folder_->Write();
  std::filesystem::remove(folder_->path() + "/model.safetensors");
  EXPECT_THAT(RefusalAsItLies(),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  spec_.mutable_fine_tune()->set_from(folder_->path() + "/config.json");
  EXPECT_THAT(RefusalAsItLies(), HasSubstr("found a file, expected the folder of a model"));
}

TEST_F(StartWeightsTest, HostileFilesAreRefusedAndNeverWaitedFor) {
  Use("gpt");
  const auto spoilt = [&](int shards, const std::function<void(const std::string&)>& spoil) {
    folder_->Write(shards);
    spoil(folder_->path());
    const absl::Status status = OpenStartWeights(spec_, PlanOf(spec_)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("spec.fine_tune.from: "));
    return std::string(status.message());
  };
  for (const char* name : {"config.json", "model.safetensors"}) {
    const std::string refusal = spoilt(1, [&](const std::string& path) {
      std::filesystem::remove(path + "/" + name);
      ASSERT_EQ(mkfifo((path + "/" + name).c_str(), 0600), 0);
    });
    EXPECT_THAT(refusal, HasSubstr("found a special file")) << name;
  }
  EXPECT_THAT(
      spoilt(1, [](auto& path) { std::filesystem::resize_file(path + "/config.json", 17 << 20); }),
      HasSubstr("expected at most 16777216"));
  EXPECT_THAT(
      spoilt(1,
             [](auto& path) { std::filesystem::resize_file(path + "/model.safetensors", 4000); }),
      HasSubstr("model.safetensors: tensor"));
  EXPECT_THAT(spoilt(1,
                     [&](auto&) {
                       folder_->WriteFile("model.safetensors",
                                          std::string("\xff\xff\xff\x03\0\0\0\0{}", 10));
                     }),
              HasSubstr("at most 33554432 are allowed"));
  EXPECT_THAT(
      spoilt(1,
             [&](auto&) { folder_->WriteFile("config.json", "{\"n_layer\": 1, \"n_layer\": 2}"); }),
      HasSubstr("config.json: key 'n_layer' twice"));
  EXPECT_THAT(spoilt(2, [](auto& path) { std::filesystem::remove(path + "/model-1.safetensors"); }),
              HasSubstr("model-1.safetensors: No such file"));
  EXPECT_THAT(spoilt(2,
                     [](auto& path) {
                       std::filesystem::copy_file(
                           path + "/model-0.safetensors", path + "/model-1.safetensors",
                           std::filesystem::copy_options::overwrite_existing);
                     }),
              HasSubstr("places in model-0.safetensors"));
  const auto index = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json;
    for (const auto& [name, values] : folder_->tensors)
      json[name] = "model.safetensors.1.safetensors";
    change(json);
    return spoilt(1, [&](auto& path) {
      std::filesystem::rename(path + "/model.safetensors",
                              path + "/model.safetensors.1.safetensors");
      folder_->WriteFile("model.safetensors.index.json",
                         nlohmann::json{{"weight_map", json}}.dump());
    });
  };
  EXPECT_THAT(index([](auto& map) { map["absent"] = "model.safetensors.1.safetensors"; }),
              HasSubstr("places tensor 'absent' in"));
  EXPECT_THAT(index([](auto& map) { map.erase("transformer.wte.weight"); }),
              HasSubstr("which model.safetensors.index.json does not name"));
  EXPECT_THAT(index([](auto& map) { map["transformer.wte.weight"] = "../x.safetensors"; }),
              HasSubstr("in the same folder"));
}

TEST_F(StartWeightsTest, LinksAreFollowedAsTheCacheOfHuggingFaceIsMadeOfThem) {
  Use("gpt");
  folder_->Write();
  std::filesystem::rename(folder_->path() + "/model.safetensors", folder_->path() + "/blob");
  std::filesystem::create_symlink("blob", folder_->path() + "/model.safetensors");
  EXPECT_EQ(RefusalAsItLies(), "");
}

TEST_F(StartWeightsTest, ACheckpointOfOursKeepsItsTokens) {
  Use("gpt");
  folder_->config["trainyard"] = {
      {"spec",
       {{"model", {{"gpt", {{"layers", 2}, {"heads", 2}, {"width", 8}, {"context", 4}}}}}}}};
  const auto weights = Open();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const plan::Plan plan = PlanOf(spec_);
  const auto ours = data::Vocabulary::Characters("abcdefghijk"),
             other = data::Vocabulary::Characters("bcdefghijkl");
  EXPECT_TRUE(CheckTokenizer(*weights, spec_, plan, &*other).ok()) << "it has none";
  folder_->WriteFile("vocabulary.json", ours->Files()[0].text);
  EXPECT_TRUE(CheckTokenizer(*weights, spec_, plan, &*ours).ok());
  EXPECT_TRUE(CheckTokenizer(*weights, spec_, plan, nullptr).ok()) << "token files say nothing";
  EXPECT_THAT(
      std::string(CheckTokenizer(*weights, spec_, plan, &*other).message()),
      AllOf(
          HasSubstr("spec.data.text.tokenizer: CHARACTERS gives other tokens than vocabulary.json"),
          HasSubstr("set tokenizer: FROM_CHECKPOINT")));
  spec_.mutable_fine_tune()->add_reinitialize("*.wte.weight");
  EXPECT_TRUE(CheckTokenizer(*weights, spec_, plan, &*other).ok());
}

}  // namespace
}  // namespace trainyard::weights
