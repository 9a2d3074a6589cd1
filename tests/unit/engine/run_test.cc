#include "executor/engine/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "executor/engine/arithmetic.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/checkpoint/manifest.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/fault.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"
#include "tests/unit/engine/late_device.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RunTest : public ::testing::Test {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
};

TEST_F(RunTest, TellsInOrderAndLearns) {
  v1::JobSpec spec = SmallGpt(text_, 60);
  spec.mutable_evaluation()->set_every_steps(30);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->suspended);
  EXPECT_EQ(result->step, 60);
  EXPECT_THAT(seen.order, ElementsAre("started", "restored", "finished"));
  EXPECT_EQ(seen.restored_step, 0);
  ASSERT_THAT(seen.metrics, SizeIs(62));
  EXPECT_EQ(seen.metrics[0].step, 1);
  for (const char* name : {"loss", "learning_rate", "grad_norm", "step_ms", "samples_per_second",
                           "tokens_per_second", "flops_per_second"}) {
    EXPECT_EQ(seen.metrics[0].values.count(name), 1u) << name;
  }
  EXPECT_GT(seen.metrics[0].values.at("peak_memory_bytes"), 1 << 20);
  EXPECT_EQ(seen.metrics[0].values.count("mfu"), 0u) << "nobody promises what a CPU does";
  EXPECT_EQ(seen.metrics[30].split, RunObserver::Split::kValidation);
  EXPECT_EQ(seen.metrics[30].step, 30);
  EXPECT_NEAR(seen.metrics[30].values.at("perplexity"),
              std::exp(seen.metrics[30].values.at("loss")), 1e-9);
  EXPECT_LT(seen.metrics[61].values.at("loss"), seen.metrics[30].values.at("loss"));
  ASSERT_THAT(seen.checkpoints, SizeIs(1));
  EXPECT_TRUE(seen.last_is_final);
}

// One that training goes on behind is written from a copy, the last one from the state itself.
TEST_F(RunTest, ACheckpointHoldsTheSameBitsWhetherTrainingGoesOnOrEnds) {
  v1::JobSpec spec = SmallGpt(text_, 6);
  spec.mutable_training()->set_ema_decay(0.9);
  spec.mutable_checkpoint()->set_every_steps(3);
  spec.mutable_checkpoint()->set_keep(5);
  RecordingObserver whole, cut;
  ASSERT_TRUE(RunOnCpu(spec, Root("whole"), whole).ok());
  spec.clear_checkpoint();
  cut.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("cut"), cut).ok());
  ASSERT_THAT(whole.checkpoints, SizeIs(2));
  ASSERT_THAT(cut.checkpoints, SizeIs(1));
  EXPECT_EQ(whole.checkpoints[0].weights_sha256, cut.checkpoints[0].weights_sha256);
  EXPECT_NE(whole.checkpoints[0].weights_sha256, whole.checkpoints[1].weights_sha256);
}

TEST_F(RunTest, ResumesWithTheSameBitsFromAnyCheckpoint) {
  v1::JobSpec spec = SmallGpt(text_, 20);
  RecordingObserver straight;
  ASSERT_TRUE(RunOnCpu(spec, Root("straight"), straight).ok());

  for (const int64_t cut : {1, 7, 19}) {
    const std::string root = Root("cut" + std::to_string(cut));
    RecordingObserver first;
    first.stop_at = cut;
    const auto suspended = RunOnCpu(spec, root, first);
    ASSERT_TRUE(suspended.ok()) << suspended.status();
    EXPECT_TRUE(suspended->suspended);
    EXPECT_EQ(suspended->step, cut);
    ASSERT_THAT(first.checkpoints, SizeIs(1));
    EXPECT_FALSE(first.last_is_final);

    RecordingObserver second;
    const auto result =
        RunOnCpu(spec, root, second,
                 RestorePoint{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(second.restored_step, cut);
    EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
    EXPECT_EQ(second.checkpoints.back().manifest_sha256,
              straight.checkpoints.back().manifest_sha256);
    std::vector<double> losses = first.TrainLosses();
    for (double loss : second.TrainLosses()) losses.push_back(loss);
    EXPECT_EQ(losses, straight.TrainLosses());
  }
}

// Evaluations and checkpoints lie between the steps; a stop finds one step on its way.
TEST_F(RunTest, TheBitsAreTheSameWhereAStepIsOnItsWayBehindAnother) {
  for (const int64_t micro_batch : {8, 2}) {
    v1::JobSpec spec = SmallGpt(text_, 20);
    spec.mutable_training()->set_micro_batch_size(micro_batch);
    spec.mutable_training()->set_log_every(1);
    spec.mutable_evaluation()->set_every_steps(5);
    spec.mutable_checkpoint()->set_every_steps(7);
    const std::string root = Root(absl::StrCat("m", micro_batch));
    RecordingObserver at_once, late, cut, rest;
    ASSERT_TRUE(RunOnCpu(spec, root + "at_once", at_once).ok());
    LateDevice device(1);
    ASSERT_TRUE(RunOn(device, spec, root + "late", late).ok());
    EXPECT_GT(device.most_left(), 0);
    ASSERT_EQ(late.checkpoints.size(), at_once.checkpoints.size());
    for (size_t i = 0; i < late.checkpoints.size(); ++i) {
      EXPECT_EQ(late.checkpoints[i].manifest_sha256, at_once.checkpoints[i].manifest_sha256);
    }
    EXPECT_EQ(late.TrainLosses(), at_once.TrainLosses());
    EXPECT_THAT(late.Evaluations(), testing::SizeIs(4));
    EXPECT_EQ(late.Evaluations(), at_once.Evaluations());

    cut.stop_at = 2;
    const auto suspended = RunOn(device, spec, root + "cut", cut);
    ASSERT_TRUE(suspended.ok()) << suspended.status();
    EXPECT_EQ(suspended->step, micro_batch == 8 ? 3 : 2);  // of many micro-batches two are ahead
    ASSERT_TRUE(RunOn(device, spec, root + "cut", rest,
                      RestorePoint{cut.checkpoints[0].uri, cut.checkpoints[0].manifest_sha256})
                    .ok());
    EXPECT_EQ(rest.checkpoints.back().manifest_sha256, at_once.checkpoints.back().manifest_sha256);
  }
}

// What fails of a step is told after the step before it.
TEST_F(RunTest, AStepThatCannotBeLoadedDoesNotTakeTheOneBeforeWithIt) {
  // Of 4,000 tokens one is not in the vocabulary.
  const std::string tokens = folder_.path() + "/tokens.bin";
  std::ofstream out(tokens, std::ios::binary);
  for (int i = 0; i < 4000; ++i) out.put(static_cast<char>(i == 2000 ? 20 : i % 20)).put('\0');
  out.close();
  v1::JobSpec spec = SmallGpt(text_, 200);
  v1::TokenData& data = *spec.mutable_data()->mutable_tokens();
  data.add_train(tokens);
  data.set_vocab_size(20);
  spec.mutable_training()->set_log_every(1);
  RecordingObserver at_once, late;
  const auto expected = RunOnCpu(spec, Root("at_once"), at_once);
  LateDevice device(1);
  const auto found = RunOn(device, spec, Root("late"), late);
  EXPECT_FALSE(expected.ok());
  EXPECT_EQ(found.status(), expected.status());
  EXPECT_GT(at_once.TrainLosses().size(), 2);
  EXPECT_EQ(late.TrainLosses(), at_once.TrainLosses());
}

// Its queries, keys and values are one tensor here and three in a checkpoint.
TEST_F(RunTest, ALlamaResumesWithTheSameBitsFromTensorsOfTransformers) {
  v1::JobSpec spec = SmallGpt(text_, 6);
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(1);
  llama.set_heads(4);
  llama.set_kv_heads(2);
  llama.set_width(16);
  llama.set_context(8);
  RecordingObserver straight, first, second;
  ASSERT_TRUE(RunOnCpu(spec, Root("straight"), straight).ok());
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("cut"), first).ok());
  ASSERT_THAT(first.checkpoints, SizeIs(1));
  ASSERT_TRUE(RunOnCpu(spec, Root("cut"), second,
                       RestorePoint{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256})
                  .ok());
  EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);

  const std::unique_ptr<ObjectStore> store = MakeFileStore();
  const auto checkpoint = Checkpoint::Open(*store, first.checkpoints[0].uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string layer = "model.layers.0.";
  for (const auto& [name, dims] :
       std::map<std::string, std::vector<int64_t>>{{"self_attn.q_proj.weight", {16, 16}},
                                                   {"self_attn.k_proj.weight", {8, 16}},
                                                   {"self_attn.v_proj.weight", {8, 16}},
                                                   {"self_attn.o_proj.weight", {16, 16}},
                                                   {"mlp.gate_proj.weight", {64, 16}},
                                                   {"mlp.up_proj.weight", {64, 16}},
                                                   {"mlp.down_proj.weight", {16, 64}},
                                                   {"input_layernorm.weight", {16}},
                                                   {"post_attention_layernorm.weight", {16}}}) {
    EXPECT_TRUE(checkpoint->model.Find(layer + name, dims).ok()) << name;
    EXPECT_TRUE(checkpoint->optimizer.Find("exp_avg." + layer + name, dims).ok()) << name;
  }
}

TEST_F(RunTest, TheNumberOfThreadsDoesNotChangeTheBits) {
  const v1::JobSpec spec = SmallGpt(text_, 5);
  RecordingObserver one, two;
  ASSERT_TRUE(RunOnCpu(spec, Root("a"), one, std::nullopt, 1).ok());
  ASSERT_TRUE(RunOnCpu(spec, Root("b"), two, std::nullopt, 2).ok());
  EXPECT_EQ(one.TrainLosses(), two.TrainLosses());
}

TEST_F(RunTest, StoppedBeforeTheFirstStepLeavesNoCheckpoint) {
  RecordingObserver seen;
  seen.stop = true;
  const auto result = RunOnCpu(SmallGpt(text_, 5), Root("r"), seen);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->suspended);
  EXPECT_EQ(result->step, 0);
  EXPECT_THAT(seen.checkpoints, IsEmpty());
}

TEST_F(RunTest, KeepsTheTwoNewestOnceTheNewestIsKnown) {
  v1::JobSpec spec = SmallGpt(text_, 10);
  spec.mutable_checkpoint()->set_every_steps(2);
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), seen).ok());
  EXPECT_THAT(seen.checkpoints, SizeIs(5));
  EXPECT_THAT(seen.removed, ElementsAre(HasSubstr("02"), HasSubstr("04"), HasSubstr("06")));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(Root("r"))) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("step-00000008", "step-00000010"));
}

TEST_F(RunTest, KeepsEverythingWhileNobodyKnowsOfIt) {
  v1::JobSpec spec = SmallGpt(text_, 6);
  spec.mutable_checkpoint()->set_every_steps(2);
  spec.mutable_checkpoint()->set_keep(2);
  RecordingObserver seen;
  seen.settle = false;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), seen).ok());
  EXPECT_TRUE(std::filesystem::exists(Root("r") + "/step-00000002/manifest.json"));
}

TEST_F(RunTest, ADamagedCheckpointGivesWayToTheOlderOne) {
  v1::JobSpec spec = SmallGpt(text_, 10);
  spec.mutable_checkpoint()->set_every_steps(4);
  RecordingObserver straight;
  ASSERT_TRUE(RunOnCpu(spec, Root("straight"), straight).ok());

  RecordingObserver first;
  first.stop_at = 8;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  ASSERT_THAT(first.checkpoints, SizeIs(2));
  {
    std::fstream file(first.checkpoints[1].uri + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }
  RecordingObserver second;
  const auto result = RunOnCpu(spec, Root("r"), second, RestorePoint{first.checkpoints[1].uri, ""});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(second.restored_step, 4);
  ASSERT_THAT(second.warnings, SizeIs(2));
  EXPECT_THAT(second.warnings[0], HasSubstr("model.safetensors has SHA-256"));
  EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
}

// Writes the manifest of a checkpoint anew, as if it had been computed with `arithmetic`.
void ComputedWith(const std::string& uri, const Arithmetic& arithmetic) {
  std::ifstream in(uri + "/" + kManifestFile);
  Manifest manifest = ManifestFromJson(std::string(std::istreambuf_iterator<char>(in), {})).value();
  manifest.arithmetic = arithmetic;
  std::ofstream(uri + "/" + kManifestFile) << ManifestToJson(manifest);
}

TEST_F(RunTest, ACheckpointOfAnotherArithmeticGoesOnWithANotice) {
  const v1::JobSpec spec = SmallGpt(text_, 6);
  const Arithmetic mine = ArithmeticOf(*kernels::OpenCpu(1).value());
  RecordingObserver first;
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  const std::string uri = first.checkpoints[0].uri;
  EXPECT_EQ(Checkpoint::Open(*MakeFileStore(), uri, "").value().arithmetic, mine);
  EXPECT_THAT(first.notices, IsEmpty());

  Arithmetic other = mine;
  other["loops"] = "of another machine";
  ComputedWith(uri, other);
  RecordingObserver second;
  second.stop_at = 4;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), second, RestorePoint{uri, ""}).ok());
  EXPECT_THAT(second.notices,
              ElementsAre("after step 3 the arithmetic is another, and results may differ in their "
                          "last digits: loops: of another machine before, " +
                          mine.at("loops") + " now"));

  // What was written since then tells of the machine that wrote it.
  RecordingObserver third;
  ASSERT_TRUE(
      RunOnCpu(spec, Root("r"), third, RestorePoint{second.checkpoints.back().uri, ""}).ok());
  EXPECT_THAT(third.notices, IsEmpty());
}

TEST_F(RunTest, AJobOfOneArithmeticDoesNotGoOnFromACheckpointOfAnother) {
  v1::JobSpec spec = SmallGpt(text_, 6);
  spec.mutable_parallel()->set_arithmetic(v1::Parallel::SAME);
  const Arithmetic mine = ArithmeticOf(*kernels::OpenCpu(1).value());
  RecordingObserver first;
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  EXPECT_EQ(first.arithmetic, mine) << "what the server is told";
  const std::string uri = first.checkpoints[0].uri;

  Arithmetic other = mine;
  other["loops"] = "of another machine";
  ComputedWith(uri, other);
  RecordingObserver second;
  const auto refused = RunOnCpu(spec, Root("r"), second, RestorePoint{uri, ""});
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(Retryable(refused.status())) << "another node may do";
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("the arithmetic is not that of the checkpoint of step 3, and "
                        "spec.parallel.arithmetic is SAME: loops: of another machine before, " +
                        mine.at("loops") + " now"));
  EXPECT_THAT(second.checkpoints, IsEmpty());

  other = mine;
  other["caches"] = "of another size";
  ComputedWith(uri, other);
  RecordingObserver third;
  EXPECT_TRUE(RunOnCpu(spec, Root("r"), third, RestorePoint{uri, ""}).ok());
  EXPECT_THAT(third.notices, SizeIs(1)) << "which is not known to change bits";
}

TEST_F(RunTest, ACheckpointThatDoesNotTellItsArithmeticGoesOnWithANotice) {
  const v1::JobSpec spec = SmallGpt(text_, 6);
  RecordingObserver first;
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  ComputedWith(first.checkpoints[0].uri, {});
  RecordingObserver second;
  const auto result = RunOnCpu(spec, Root("r"), second, RestorePoint{first.checkpoints[0].uri, ""});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(second.notices, SizeIs(1));
  EXPECT_THAT(second.notices[0], HasSubstr("may be another"));
  EXPECT_THAT(second.notices[0], HasSubstr("unknown before"));
}

TEST_F(RunTest, AMissingRestorePointIsAStorageFailure) {
  RecordingObserver seen;
  const auto result =
      RunOnCpu(SmallGpt(text_, 5), Root("r"), seen, RestorePoint{Root("r") + "/step-00000003", ""});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kStorage);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step-00000003"));
}

TEST_F(RunTest, AnotherSpecDoesNotResumeAndSaysWhatDiffers) {
  v1::JobSpec spec = SmallGpt(text_, 10);
  RecordingObserver first;
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  spec.mutable_training()->set_seed(7);
  RecordingObserver second;
  const auto result = RunOnCpu(spec, Root("r"), second, RestorePoint{first.checkpoints[0].uri, ""});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kSpec);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("training.seed: 1337 -> 7"));
}

TEST_F(RunTest, OtherDataDoesNotResume) {
  const v1::JobSpec spec = SmallGpt(text_, 10);
  RecordingObserver first;
  first.stop_at = 3;
  ASSERT_TRUE(RunOnCpu(spec, Root("r"), first).ok());
  std::ofstream(text_, std::ios::app) << "one more line\n";
  RecordingObserver second;
  const auto result = RunOnCpu(spec, Root("r"), second, RestorePoint{first.checkpoints[0].uri, ""});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kData);
}

TEST_F(RunTest, AnExplodingLossNamesTheStepAndIsNotRetried) {
  v1::JobSpec spec = SmallGpt(text_, 50);
  spec.mutable_optimizer()->Clear();
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_schedule()->Clear();
  spec.mutable_schedule()->set_learning_rate(1e30);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kNumeric) << result.status();
  EXPECT_FALSE(Retryable(result.status()));
  EXPECT_THAT(std::string(result.status().message()), ::testing::StartsWith("step "));
}

TEST_F(RunTest, MissingDataIsTheUsersAndNotRetried) {
  RecordingObserver seen;
  const auto result = RunOnCpu(SmallGpt(folder_.path() + "/absent", 5), Root("r"), seen);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kData);
  EXPECT_FALSE(Retryable(result.status()));
}

TEST_F(RunTest, AWrongSpecIsTheUsers) {
  v1::JobSpec spec = SmallGpt(text_, 5);
  spec.mutable_training()->set_micro_batch_size(3);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(FaultOf(result.status()), Fault::kSpec);
  spec = SmallGpt(text_, 5);
  spec.mutable_parallel()->set_sequence(2);
  const auto later = RunOnCpu(spec, Root("r"), seen);
  EXPECT_EQ(FaultOf(later.status()), Fault::kUnimplemented);
}

}  // namespace
}  // namespace trainyard::engine
