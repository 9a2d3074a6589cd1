// Runs that begin with the weights of another model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "executor/engine/initialize.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/base/file.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FineTuneRunTest : public ::testing::Test {
 protected:
  std::string Root() { return folder_.path() + "/run" + std::to_string(++runs_); }

  v1::JobSpec With(const std::string& model, const v1::Data& data, int64_t steps) const {
    v1::JobSpec spec = SmallGpt("", steps);
    *spec.mutable_data() = data;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model, spec.mutable_model()));
    return spec;
  }

  // Trains `spec` and returns the folder of its last checkpoint.
  std::string Trained(const v1::JobSpec& spec) {
    RecordingObserver seen;
    const auto result = RunOnCpu(spec, Root(), seen);
    EXPECT_TRUE(result.ok()) << result.status();
    return seen.checkpoints.back().uri;
  }

  // The tensors of a trainer that was initialised by `spec`, by their stored names.
  std::map<std::string, std::string> Start(const v1::JobSpec& given, bool averages = false) {
    const v1::JobSpec spec = plan::ResolveSpec(given).value();
    const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
    const plan::Plan plan = plan::BuildPlan(spec, dataset->facts()).value();
    const auto device = kernels::OpenCpu(1).value();
    const auto session = Session::Open(*device, plan).value();
    const auto trainer = Trainer::Create(*session, spec).value();
    const absl::Status status = trainer->Initialize();
    EXPECT_TRUE(status.ok()) << status;
    std::map<std::string, std::string> tensors;
    const auto add = [&](plan::TensorId id, const plan::Tensor& named) {
      std::string bytes(named.bytes(), '\0');
      session->Read(id, bytes.data(), bytes.size());
      EXPECT_TRUE(session->Synchronize().ok());
      for (const plan::StoredTensor& part : plan::Stored(named)) {
        tensors[part.name] = bytes.substr(part.offset, part.elements() * sizeof(float));
      }
    };
    if (averages) {
      for (size_t i = 0; i < plan.averages.size(); ++i)
        add(plan.averages[i], plan.tensors[plan.parameters[i]]);
      return tensors;
    }
    for (const plan::TensorId id : plan.parameters) add(id, plan.tensors[id]);
    for (const plan::TensorId id : plan.buffers) add(id, plan.tensors[id]);
    return tensors;
  }

  std::string BytesIn(const std::string& uri, const std::string& name) {
    const Checkpoint checkpoint = Checkpoint::Open(*store_, uri, "").value();
    const weights::TensorEntry& entry = checkpoint.model.header().tensors.at(name);
    std::string bytes(entry.bytes(), '\0');
    EXPECT_TRUE(checkpoint.model.Read(entry, 0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  static v1::JobSpec From(v1::JobSpec spec, const std::string& folder) {
    spec.mutable_fine_tune()->set_from(folder);
    return spec;
  }

  // Sets the first element of `name` in the folder's model.
  void Poke(const std::string& folder, const std::string& name, float value) {
    std::filesystem::remove(folder + "/manifest.json");
    const std::string path = folder + "/model.safetensors";
    const auto file = weights::SafetensorsFile::Open(store_->Open(path).value(), path).value();
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(8 + file.header_bytes() + file.header().tensors.at(name).begin);
    out.write(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
  int runs_ = 0;
};

TEST_F(FineTuneRunTest, BeginsWithTheCheckpointOfEachFamilyToTheBit) {
  v1::Data text, documents;
  text.mutable_text()->set_path(text_);
  documents.mutable_text()->set_path(WriteDocuments(folder_.path()));
  const v1::Data images = SmallImages(folder_.path());
  const std::pair<const char*, const v1::Data*> kModels[] = {
      {"gpt { layers: 2 heads: 2 width: 16 context: 8 }", &text},
      {"gpt { layers: 1 heads: 2 width: 16 context: 8 bias: false tie_embeddings: false "
       "activation: RELU }",
       &text},
      {"llama { layers: 2 heads: 2 kv_heads: 1 width: 16 context: 8 }", &text},
      {"layers { context: 8 layers { embedding { width: 8 } } layers { linear {} } }", &text},
      {"bert { layers: 2 heads: 2 width: 8 context: 9 }", &documents},
      {"vit { layers: 2 heads: 2 width: 8 patch: 4 }", &images},
      {"resnet { depth: 18 stem: CIFAR width: 2 }", &images},
      {"resnet { depth: 18 stem: IMAGENET width: 2 }", &images},
      {"mobilenet { stem: IMAGENET width: 0.05 }", &images},
      {"mlp { hidden: 7 }", &images},
      {"convnet { stages { channels: 4 } }", &images}};
  for (const auto& [model, data] : kModels) {
    const v1::JobSpec spec = With(model, *data, 3);
    const std::string folder = Trained(spec);
    const auto start = Start(From(spec, folder));
    const auto drawn = Start(spec);
    int moved = 0;
    for (const auto& [name, bytes] : start) {
      EXPECT_EQ(bytes, BytesIn(folder, name)) << model << " " << name;
      moved += bytes != drawn.at(name) ? 1 : 0;
    }
    EXPECT_GT(moved, 0) << model;
  }
}

TEST_F(FineTuneRunTest, AdaptersAreDrawnBesideTheWeightsOfTheFolder) {
  v1::Data text;
  text.mutable_text()->set_path(text_);
  const v1::JobSpec spec = With("llama { layers: 1 heads: 2 width: 16 context: 8 }", text, 3);
  const std::string folder = Trained(spec);
  v1::JobSpec drawn = spec;
  drawn.mutable_fine_tune()->mutable_lora()->set_rank(2);
  v1::JobSpec adapted = From(spec, folder);
  adapted.mutable_fine_tune()->mutable_lora()->set_rank(2);
  const auto start = Start(adapted), alone = Start(drawn);
  int matrices = 0;
  for (const auto& [name, bytes] : start) {
    const bool matrix = absl::StrContains(name, ".lora_");
    matrices += matrix ? 1 : 0;
    EXPECT_EQ(bytes, matrix ? alone.at(name) : BytesIn(folder, name)) << name;
  }
  EXPECT_EQ(matrices, 14);
  // What it trains is a model to begin with again, by its merged weights.
  const std::string merged = Trained(adapted);
  for (const auto& [name, bytes] : Start(From(spec, merged))) {
    EXPECT_EQ(bytes, BytesIn(merged, name)) << name;
  }
}

TEST_F(FineTuneRunTest, WhatIsReinitializedIsDrawnAsWithoutFrom) {
  v1::Data text;
  text.mutable_text()->set_path(text_);
  const v1::JobSpec spec = With("llama { layers: 2 heads: 2 width: 16 context: 8 }", text, 3);
  const std::string folder = Trained(spec);
  v1::JobSpec tuned = From(spec, folder);
  tuned.mutable_fine_tune()->add_reinitialize("model.layers.1.self_attn.k_proj.weight");
  tuned.mutable_fine_tune()->add_reinitialize("lm_head.*");
  const auto start = Start(tuned), drawn = Start(spec);
  for (const auto& [name, bytes] : start) {
    const bool anew = name == "lm_head.weight" || name == "model.layers.1.self_attn.k_proj.weight";
    EXPECT_EQ(bytes, anew ? drawn.at(name) : BytesIn(folder, name)) << name;
  }
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(tuned, Root(), seen).ok());
  EXPECT_THAT(seen.notices, ElementsAre("began with the weights of " + folder +
                                        ": 19 tensors, 2 drawn anew: "
                                        "model.layers.1.self_attn.k_proj.weight, lm_head.weight"));
}

TEST_F(FineTuneRunTest, AveragesBeginAtTheWeights) {
  v1::JobSpec spec = SmallGpt(text_, 3);
  const std::string folder = Trained(spec);
  spec.mutable_training()->set_ema_decay(0.9);
  const auto averages = Start(From(spec, folder), /*averages=*/true);
  ASSERT_THAT(averages, testing::Not(IsEmpty()));
  for (const auto& [name, bytes] : averages) EXPECT_EQ(bytes, BytesIn(folder, name)) << name;
}

TEST_F(FineTuneRunTest, AValueThatIsNotFiniteIsRefusedByName) {
  const v1::JobSpec spec = SmallGpt(text_, 3);
  const std::string folder = Trained(spec);
  Poke(folder, "transformer.h.1.ln_2.bias", NAN);
  RecordingObserver seen;
  const absl::Status status = RunOnCpu(From(spec, folder), Root(), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("element 0 of 'transformer.h.1.ln_2.bias' is nan"));
}

TEST_F(FineTuneRunTest, ADamagedCheckpointIsRefused) {
  const v1::JobSpec spec = SmallGpt(text_, 3);
  const std::string folder = Trained(spec);
  std::fstream file(folder + "/model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x01');
  file.close();
  RecordingObserver seen;
  const absl::Status status = RunOnCpu(From(spec, folder), Root(), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors has SHA-256"));
}

TEST_F(FineTuneRunTest, AFolderThatDoesNotFitEndsTheRunBeforeItStarts) {
  v1::JobSpec spec = SmallGpt(text_, 3);
  const std::string folder = Trained(spec);
  spec.mutable_model()->mutable_gpt()->set_layers(3);
  RecordingObserver seen;
  absl::Status status = RunOnCpu(From(spec, folder), Root(), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kSpec);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("spec.model.gpt.layers: 3, but 2 in " + folder));
  EXPECT_THAT(seen.order, IsEmpty());
  status = RunOnCpu(From(spec, "/nowhere/model"), Root(), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("spec.fine_tune.from: /nowhere/model: No such file"));
}

TEST_F(FineTuneRunTest, CheckpointsStandAlone) {
  const v1::JobSpec spec = SmallGpt(text_, 6);
  const std::string folder = Trained(spec), copy = folder_.path() + "/copy";
  std::filesystem::copy(folder, copy, std::filesystem::copy_options::recursive);
  const v1::JobSpec tuned = From(spec, copy);
  RecordingObserver straight, first, second;
  ASSERT_TRUE(RunOnCpu(tuned, Root(), straight).ok());
  const std::string root = Root();
  first.stop_at = 2;
  ASSERT_TRUE(RunOnCpu(tuned, root, first).ok());
  std::filesystem::remove_all(copy);
  const auto rest = RunOnCpu(tuned, root, second, RestorePoint{first.checkpoints[0].uri});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(second.checkpoints.back().manifest_sha256, straight.checkpoints.back().manifest_sha256);
  EXPECT_THAT(second.notices, IsEmpty());
  const Checkpoint end = Checkpoint::Open(*store_, second.checkpoints.back().uri, "").value();
  EXPECT_THAT(end.run.start_sha256, SizeIs(64));
  v1::JobSpec other = plan::ResolveSpec(tuned).value();
  const std::string digest = SpecDigest(other);
  other.mutable_fine_tune()->set_from("/m");
  EXPECT_NE(SpecDigest(other), digest);
}

TEST_F(FineTuneRunTest, ARunThatBeginsAgainBeginsWithTheSameWeightsOrNotAtAll) {
  const v1::JobSpec spec = SmallGpt(text_, 6);
  const std::string folder = Trained(spec), root = Root();
  const auto device = kernels::OpenCpu(1).value();
  const auto attempt = [&](int64_t number, const v1::JobSpec& tuned) {
    RecordingObserver seen;
    seen.stop = true;  // before its first step: no checkpoint
    RunRequest request;
    request.spec = tuned;
    request.checkpoint_root = root;
    request.attempt = number;
    return engine::Run(*device, request, seen, seen.stop).status();
  };
  v1::JobSpec tuned = From(spec, folder);
  EXPECT_TRUE(attempt(1, tuned).ok());
  EXPECT_TRUE(attempt(2, tuned).ok());
  Poke(folder, "transformer.wte.weight", 0.5);
  const absl::Status status = attempt(3, tuned);
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("holds other weights than when this job began"));
  EXPECT_TRUE(attempt(1, tuned).ok()) << "a job of its own";
  tuned.mutable_training()->set_seed(5);
  EXPECT_TRUE(attempt(2, tuned).ok()) << "another job in the same folder";
}

TEST_F(FineTuneRunTest, ARollbackToTheStartReadsTheFolderAgain) {
  v1::JobSpec before = PoisonedClicks(folder_.path(), /*step=*/13);
  before.mutable_training()->set_steps(5);
  const std::string folder = Trained(before);
  v1::JobSpec spec = From(PoisonedClicks(folder_.path(), /*step=*/13), folder);
  spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  RecordingObserver seen;
  const std::string root = Root();
  const absl::Status status = RunOnCpu(spec, root, seen).status();
  ASSERT_TRUE(RolledBack(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("back to step 0"));
  const Checkpoint start = Checkpoint::Open(*store_, root + "/step-00000000", "").value();
  EXPECT_THAT(start.run.start_sha256, SizeIs(64));
  for (const auto& [name, entry] : start.model.header().tensors) {
    if (entry.dtype == "F32") {
      EXPECT_EQ(BytesIn(start.uri, name), BytesIn(folder, name)) << name;
    }
  }
}

TEST_F(FineTuneRunTest, TakesTheTokenizerOfTheFolder) {
  v1::JobSpec spec = SmallGpt(text_, 3);
  spec.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::BPE);
  spec.mutable_data()->mutable_text()->set_vocab_size(270);
  const std::string folder = Trained(spec);
  const std::string other = folder_.path() + "/other.txt";
  std::ofstream(other) << std::string(400, 'x') << std::string(400, 'y') << std::string(400, 'z');
  v1::JobSpec tuned = From(spec, folder);
  tuned.mutable_data()->mutable_text()->set_path(other);
  RecordingObserver refused;
  EXPECT_THAT(
      std::string(RunOnCpu(tuned, Root(), refused).status().message()),
      AllOf(HasSubstr("spec.data.text.tokenizer: BPE gives other tokens than tokenizer.json"),
            HasSubstr("FROM_CHECKPOINT")));
  tuned.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
  tuned.mutable_data()->mutable_text()->clear_vocab_size();
  const std::string last = Trained(tuned);
  EXPECT_EQ(ReadFile(last + "/tokenizer.json").value(),
            ReadFile(folder + "/tokenizer.json").value());
}

TEST_F(FineTuneRunTest, CharactersOfTheFolderMustBeEnoughForTheText) {
  const v1::JobSpec spec = SmallGpt(text_, 3);
  const std::string folder = Trained(spec), other = folder_.path() + "/other.txt";
  v1::JobSpec tuned = From(spec, folder);
  tuned.mutable_data()->mutable_text()->set_path(other);
  tuned.mutable_data()->mutable_text()->set_tokenizer(v1::TextData::FROM_CHECKPOINT);
  std::ofstream(other) << std::string(400, 'x') << std::string(400, 'e') << std::string(400, 't');
  Trained(tuned);
  std::ofstream(other) << std::string(400, 'x') << std::string(400, 'Q') << std::string(400, 't');
  RecordingObserver seen;
  const absl::Status status = RunOnCpu(tuned, Root(), seen).status();
  EXPECT_EQ(FaultOf(status), Fault::kData);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the character U+0051 at offset"));
}

}  // namespace
}  // namespace trainyard::engine
