#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "executor/data/tokenizer/vocabulary.h"
#include "executor/engine/checkpoint/checkpoint_writer.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/retention.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A disk with room for `room` bytes; once it is detached, no folder gets its place.
class SmallDisk : public ObjectStore {
 public:
  explicit SmallDisk(int64_t room) : files_(MakeFileStore()), room_(room) {}
  void SetRoom(int64_t room) { room_ = room; }
  void Detach() { detached_ = true; }

  absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& uri) override {
    return files_->Open(uri);
  }
  absl::StatusOr<std::string> Get(const std::string& uri, int64_t limit) override {
    return files_->Get(uri, limit);
  }
  absl::Status Put(const std::string& uri, absl::string_view data) override {
    return files_->Put(uri, data);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return files_->List(folder);
  }
  absl::Status Delete(const std::string& uri) override { return files_->Delete(uri); }
  absl::Status DeleteStaged(const std::string& parent) override {
    return files_->DeleteStaged(parent);
  }
  absl::StatusOr<std::unique_ptr<StagedFolder>> Stage(const std::string& folder,
                                                      const std::string& tag) override {
    TY_ASSIGN_OR_RETURN(auto staged, files_->Stage(folder, tag));
    return std::make_unique<Folder>(std::move(staged), room_, detached_);
  }

 private:
  class Writer : public ObjectWriter {
   public:
    Writer(std::unique_ptr<ObjectWriter> file, std::atomic<int64_t>& room)
        : file_(std::move(file)), room_(room) {}
    absl::Status Append(absl::string_view data) override {
      room_ -= static_cast<int64_t>(data.size());
      if (room_ < 0) return absl::ResourceExhaustedError("No space left on device");
      return file_->Append(data);
    }
    absl::Status Finish() override { return file_->Finish(); }

   private:
    std::unique_ptr<ObjectWriter> file_;
    std::atomic<int64_t>& room_;
  };
  class Folder : public StagedFolder {
   public:
    Folder(std::unique_ptr<StagedFolder> folder, std::atomic<int64_t>& room,
           const std::atomic<bool>& detached)
        : folder_(std::move(folder)), room_(room), detached_(detached) {}
    absl::StatusOr<std::unique_ptr<ObjectWriter>> Create(const std::string& name) override {
      TY_ASSIGN_OR_RETURN(auto file, folder_->Create(name));
      return std::make_unique<Writer>(std::move(file), room_);
    }
    absl::StatusOr<std::unique_ptr<ObjectReader>> Open(const std::string& name) override {
      return folder_->Open(name);
    }
    absl::Status Commit() override { return detached_ ? Gone() : folder_->Commit(); }
    absl::Status Replace() override { return detached_ ? Gone() : folder_->Replace(); }

   private:
    static absl::Status Gone() { return absl::UnavailableError("the disk is gone"); }
    std::unique_ptr<StagedFolder> folder_;
    std::atomic<int64_t>& room_;
    const std::atomic<bool>& detached_;
  };

  std::unique_ptr<ObjectStore> files_;
  std::atomic<int64_t> room_;
  std::atomic<bool> detached_ = false;
};

constexpr int64_t kPlenty = int64_t{1} << 40;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    const v1::JobSpec spec = plan::ResolveSpec(SmallGpt("/absent", 10)).value();
    const plan::DataFacts facts = {.kind = plan::DataFacts::Kind::kTokens,
                                   .vocab = 20,
                                   .train_size = 1000,
                                   .validation_size = 100};
    plan_ = plan::BuildPlan(spec, facts).value();
    identity_ = {.root = root_,
                 .tag = "a1",
                 .config = ConfigToJson({spec, facts}, plan_),
                 .tokenizer = data::Vocabulary::Bytes().Files(),
                 .spec_digest = SpecDigest(spec),
                 .spec = spec};
  }

  // Weights that differ from step to step.
  static absl::Status FillWith(Snapshot& snapshot, const plan::Plan& plan, float value) {
    const auto floats = [](int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(float)); };
    const Snapshot::Room room = snapshot.Own();
    std::fill_n(reinterpret_cast<float*>(room.parameters), floats(plan.parameter_region.bytes),
                value);
    std::fill_n(reinterpret_cast<float*>(room.optimizer), floats(plan.optimizer_region.bytes),
                -value);
    return absl::OkStatus();
  }

  absl::Status Save(CheckpointWriter& writer, int64_t step, bool needed) {
    return writer.Save({.step = step}, {.needed = needed}, [&](Snapshot& snapshot) {
      return FillWith(snapshot, plan_, static_cast<float>(step));
    });
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  const std::string root_ = folder_.path() + "/ckpt";
  plan::Plan plan_;
  CheckpointIdentity identity_;
  RecordingObserver seen_;
  SmallDisk disk_{kPlenty};
};

TEST_F(CheckpointTest, WhatIsWrittenVerifiesAndReadsBack) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 3, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  ASSERT_THAT(seen_.checkpoints, SizeIs(1));
  const auto checkpoint =
      Checkpoint::Open(disk_, root_ + "/step-00000003", seen_.checkpoints[0].manifest_sha256);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->step, 3);
  EXPECT_EQ(checkpoint->weights_sha256, seen_.checkpoints[0].weights_sha256);
  const auto entry = checkpoint->model.Find("transformer.wte.weight", {20, 16});
  ASSERT_TRUE(entry.ok()) << entry.status();
  float value = 0;
  ASSERT_TRUE(checkpoint->model.Read(*entry, 40, 4, &value).ok());
  EXPECT_EQ(value, 3);
  const auto moment = checkpoint->optimizer.Find("exp_avg_sq.transformer.wte.weight", {20, 16});
  EXPECT_TRUE(moment.ok()) << moment.status();
}

TEST_F(CheckpointTest, ConfigHasTheKeysOfTransformers) {
  const auto json = nlohmann::json::parse(identity_.config);
  EXPECT_EQ(json["architectures"][0], "GPT2LMHeadModel");
  EXPECT_EQ(json["model_type"], "gpt2");
  EXPECT_EQ(json["vocab_size"], 20);
  EXPECT_EQ(json["n_positions"], 8);
  EXPECT_EQ(json["n_embd"], 16);
  EXPECT_EQ(json["n_layer"], 2);
  EXPECT_EQ(json["n_head"], 2);
  EXPECT_EQ(json["activation_function"], "gelu_new");
  EXPECT_EQ(json["tie_word_embeddings"], true);
  EXPECT_EQ(json["trainyard"]["family"], "gpt");
  const auto config = ConfigFromJson(identity_.config);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(SpecDigest(config->spec), identity_.spec_digest);
}

TEST_F(CheckpointTest, AFullDiskCostsOnlyThatCheckpoint) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 1, false).ok());
  ASSERT_TRUE(writer.Wait().ok());
  disk_.SetRoom(5000);
  ASSERT_TRUE(Save(writer, 2, false).ok());
  ASSERT_TRUE(writer.Wait().ok());
  EXPECT_THAT(seen_.failed_steps, ElementsAre(2));
  EXPECT_THAT(seen_.failures[0], HasSubstr("No space left on device"));
  EXPECT_THAT(Names(), ElementsAre("step-00000001"));  // no torn one, nothing staged
  disk_.SetRoom(kPlenty);
  ASSERT_TRUE(Save(writer, 3, false).ok());
  ASSERT_TRUE(writer.Wait().ok());
  EXPECT_THAT(Names(), ElementsAre("step-00000001", "step-00000003"));
}

TEST_F(CheckpointTest, AFullDiskFailsACheckpointThatIsNeeded) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  disk_.SetRoom(5000);
  ASSERT_TRUE(Save(writer, 2, true).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(writer.Wait()));
  EXPECT_THAT(seen_.failed_steps, IsEmpty());
}

TEST_F(CheckpointTest, AnExistingOneThatVerifiesIsKept) {
  std::string manifest;
  {
    CheckpointWriter writer(disk_, identity_, plan_, seen_);
    ASSERT_TRUE(Save(writer, 4, true).ok());
    ASSERT_TRUE(writer.Wait().ok());
    manifest = seen_.checkpoints[0].manifest_sha256;
  }
  identity_.tag = "a2";
  CheckpointWriter again(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(again
                  .Save({.step = 4}, {.needed = true},
                        [&](Snapshot& snapshot) { return FillWith(snapshot, plan_, 99); })
                  .ok());
  ASSERT_TRUE(again.Wait().ok());
  EXPECT_EQ(seen_.checkpoints[1].manifest_sha256, manifest);
  EXPECT_TRUE(seen_.checkpoints[1].other_weights);
}

TEST_F(CheckpointTest, ADamagedOneIsReplaced) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 4, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  std::filesystem::resize_file(root_ + "/step-00000004/model.safetensors", 100);
  CheckpointWriter again(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(again, 4, true).ok());
  ASSERT_TRUE(again.Wait().ok());
  EXPECT_TRUE(Checkpoint::Open(disk_, root_ + "/step-00000004", "").ok());
  EXPECT_EQ(seen_.checkpoints[0].manifest_sha256, seen_.checkpoints[1].manifest_sha256);
}

// As a rollback does; a writer that is killed before the last rename has lost nothing.
TEST_F(CheckpointTest, OneOfAnotherStateIsThereUntilTheNewOneTakesItsPlace) {
  const CheckpointContent went_back{.step = 4, .run = {.rollbacks = 1, .skips = {{4, 3}}}};
  const auto fill = [&](Snapshot& snapshot) { return FillWith(snapshot, plan_, 4); };
  {
    CheckpointWriter writer(disk_, identity_, plan_, seen_);
    ASSERT_TRUE(Save(writer, 4, true).ok());
    ASSERT_TRUE(writer.Wait().ok());
    disk_.Detach();
    ASSERT_TRUE(writer.Save(went_back, {.needed = true}, fill).ok());
    EXPECT_TRUE(absl::IsUnavailable(writer.Wait()));
  }
  EXPECT_THAT(Names(), ElementsAre("step-00000004"));
  EXPECT_TRUE(
      Checkpoint::Open(disk_, root_ + "/step-00000004", seen_.checkpoints[0].manifest_sha256).ok());

  SmallDisk attached(kPlenty);
  CheckpointWriter again(attached, identity_, plan_, seen_);
  ASSERT_TRUE(again.Save(went_back, {.needed = true}, fill).ok());
  ASSERT_TRUE(again.Wait().ok());
  EXPECT_THAT(Names(), ElementsAre("step-00000004"));
  const auto now =
      Checkpoint::Open(disk_, root_ + "/step-00000004", seen_.checkpoints[1].manifest_sha256);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->run, went_back.run);
}

TEST_F(CheckpointTest, AnotherSpecsCheckpointIsNotTouched) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 4, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  identity_.spec_digest = std::string(64, '0');
  CheckpointWriter other(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(other, 4, true).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(other.Wait()));
}

TEST_F(CheckpointTest, AReportNamesNoMoreRemovalsThanTheServerTakes) {
  for (int64_t step = 1; step <= 300; ++step) {
    std::filesystem::create_directories(absl::StrCat(root_, "/", StepFolder(step)));
  }
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 1001, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  EXPECT_THAT(seen_.removed, SizeIs(256));
  ASSERT_TRUE(Save(writer, 1002, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  EXPECT_THAT(seen_.removed, SizeIs(300));
  writer.RemoveSettled(absl::ZeroDuration());
  EXPECT_THAT(Names(), ElementsAre("step-00001001", "step-00001002"));
}

struct Damage {
  const char* name;
  void (*make)(const std::string& folder);
  const char* message;
};

void FlipLastByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char c = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(c ^ 1));
}

class DamagedCheckpoint : public CheckpointTest, public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedCheckpoint, IsRefusedByName) {
  CheckpointWriter writer(disk_, identity_, plan_, seen_);
  ASSERT_TRUE(Save(writer, 4, true).ok());
  ASSERT_TRUE(writer.Wait().ok());
  const std::string folder = root_ + "/step-00000004";
  GetParam().make(folder);
  const auto checkpoint = Checkpoint::Open(disk_, folder, seen_.checkpoints[0].manifest_sha256);
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(folder));
}

INSTANTIATE_TEST_SUITE_P(
    Table, DamagedCheckpoint,
    ::testing::Values(
        Damage{"FlippedBit", [](const std::string& f) { FlipLastByte(f + "/model.safetensors"); },
               "model.safetensors has SHA-256"},
        Damage{"Truncated",
               [](const std::string& f) {
                 std::filesystem::resize_file(f + "/trainer_state/optimizer.safetensors", 10);
               },
               "optimizer.safetensors has 10 bytes"},
        Damage{"MissingFile",
               [](const std::string& f) { std::filesystem::remove(f + "/config.json"); },
               "config.json is missing"},
        Damage{"MissingManifest",
               [](const std::string& f) { std::filesystem::remove(f + "/manifest.json"); },
               "manifest.json: No such file"},
        Damage{"EmptyManifest",
               [](const std::string& f) { std::filesystem::resize_file(f + "/manifest.json", 0); },
               "manifest.json"},
        Damage{
            "RewrittenManifest",
            [](const std::string& f) { std::ofstream(f + "/manifest.json", std::ios::app) << " "; },
            "was reported when it was written"},
        Damage{
            "ManifestWithForeignFile",
            [](const std::string& f) {
              std::ofstream(f + "/manifest.json")
                  << R"({"format":"trainyard-checkpoint-1","step":4,"spec_digest":"",)"
                  << R"("weights_sha256":"","files":[{"name":"../../x","bytes":1,"sha256":""}]})";
            },
            "no checkpoint's file"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointLayout, StepFoldersAreParsedStrictly) {
  EXPECT_EQ(StepFolder(1000), "step-00001000");
  EXPECT_EQ(ParseStepFolder("step-00001000"), 1000);
  EXPECT_EQ(ParseStepFolder("step-1000"), std::nullopt);
  EXPECT_EQ(ParseStepFolder("step--0001000"), std::nullopt);
  EXPECT_EQ(ParseStepFolder("step-00001000x"), std::nullopt);
  EXPECT_EQ(ParseStepFolder(StepFolder(12345678901)), 12345678901);
}

TEST(CheckpointLayout, TheDigestOfASpecLeavesOutWhatChangesNoBit) {
  const v1::JobSpec spec = SmallGpt("/absent", 10);
  v1::JobSpec other = spec;
  other.mutable_training()->mutable_recompute()->set_slot_bytes(1 << 30);
  other.mutable_training()->set_log_every(7);
  other.mutable_data()->set_threads(3);
  other.mutable_data()->set_prefetch(9);
  other.mutable_parallel()->set_arithmetic(v1::Parallel::ANY);
  other.mutable_parallel()->set_check_links(true);
  EXPECT_EQ(SpecDigest(other), SpecDigest(spec));
  EXPECT_EQ(SpecDifference(spec, other), "");
  other.mutable_training()->set_seed(2);
  EXPECT_NE(SpecDigest(other), SpecDigest(spec));
  EXPECT_THAT(SpecDifference(spec, other), HasSubstr("training.seed"));
}

TEST(CheckpointLayout, RetentionKeepsTheNewestUpToTheCurrent) {
  EXPECT_THAT(StepsToRemove({1, 2, 3, 4}, 4, 2, {}, {}), ElementsAre(2, 1));
  EXPECT_THAT(StepsToRemove({1, 2, 3, 9}, 3, 2, {}, {}),
              ElementsAre(1));                                           // 9: an earlier attempt's
  EXPECT_THAT(StepsToRemove({1, 2, 3}, 3, 2, {}, {2}), ElementsAre(2));  // damaged: does not count
  EXPECT_THAT(StepsToRemove({3}, 3, 2, {}, {}), IsEmpty());
  EXPECT_THAT(StepsToRemove({1, 2, 3, 4, 5}, 5, 2, {2, 4}, {}), ElementsAre(3, 1));
}

// A rollback went to 100; the run was suspended after 120 and 140. After 150 it may go there again.
TEST(CheckpointLayout, WhatTheLastRollbackWentBackToIsKeptWhereverTheRunIsSuspended) {
  v1::JobSpec spec;
  spec.mutable_training()->set_on_non_finite(v1::Training::ROLL_BACK);
  spec.mutable_checkpoint()->set_every_steps(50);
  const RunState state{.rollbacks = 1, .skips = {{100, 11}}};
  EXPECT_THAT(StepsKeptBesidesNewest({50, 100, 120, 140}, 140, spec, state), ElementsAre(100, 50));
  EXPECT_THAT(StepsToRemove({50, 100, 120, 140}, 140, 2, {100, 50}, {}), IsEmpty());
  EXPECT_THAT(RollbackTargets({50, 100, 140}, 140, spec, state), ElementsAre(50));
  EXPECT_THAT(RollbackTargets({50, 100, 140, 150}, 155, spec, state), ElementsAre(150, 100, 50));
}

}  // namespace
}  // namespace trainyard::engine
