// Whole runs with every optimizer, moving averages, groups and schedules.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "executor/engine/checkpoint/read_checkpoint.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::SizeIs;

struct Case {
  const char* name;
  std::function<void(v1::Optimizer&)> choose;
};

std::vector<Case> Cases() {
  return {{"nesterov",
           [](v1::Optimizer& o) {
             o.mutable_sgd()->set_momentum(0.9);
             o.mutable_sgd()->set_nesterov(true);
           }},
          {"adamw", [](v1::Optimizer& o) { o.mutable_adamw(); }},
          {"lamb", [](v1::Optimizer& o) { o.mutable_lamb(); }},
          {"muon", [](v1::Optimizer& o) { o.mutable_muon(); }}};
}

class OptimizerRunTest : public ::testing::Test {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }

  // A GPT with averages, a frozen embedding, a group of its own and a schedule of every phase.
  v1::JobSpec Spec(const Case& c, int64_t steps) {
    v1::JobSpec spec = SmallGpt(text_, steps);
    c.choose(*spec.mutable_optimizer());
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_training()->set_ema_warmup(true);
    v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
    frozen.set_pattern("transformer.wpe.*");
    frozen.set_frozen(true);
    v1::ParameterGroup& slow = *spec.mutable_optimizer()->add_groups();
    slow.set_pattern("*.h.0.*");
    slow.set_learning_rate_scale(0.5);
    spec.mutable_schedule()->set_shape(v1::Schedule::WARMUP_STABLE_DECAY);
    spec.mutable_schedule()->set_decay_start(5);
    return spec;
  }

  absl::StatusOr<Checkpoint> Open(const RecordingObserver& seen) {
    return Checkpoint::Open(*store_, seen.checkpoints.back().uri, "");
  }

  static std::string BytesOf(const weights::SafetensorsFile& file, const std::string& name) {
    const weights::TensorEntry& entry = file.header().tensors.at(name);
    std::string bytes(entry.bytes(), '\0');
    EXPECT_TRUE(file.Read(entry, 0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  TempFolder folder_;
  const std::string text_ = WriteText(folder_.path());
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
};

TEST_F(OptimizerRunTest, EveryOptimizerResumesWithTheSameBits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = Spec(c, 9);
    RecordingObserver straight;
    const auto done = RunOnCpu(spec, Root(std::string(c.name) + "-straight"), straight);
    ASSERT_TRUE(done.ok()) << done.status();
    for (const int64_t cut : {1, 6}) {
      const std::string root = Root(c.name + std::to_string(cut));
      RecordingObserver first, second;
      first.stop_at = cut;
      ASSERT_TRUE(RunOnCpu(spec, root, first).ok());
      const auto resumed =
          RunOnCpu(spec, root, second,
                   RestorePoint{first.checkpoints[0].uri, first.checkpoints[0].manifest_sha256});
      ASSERT_TRUE(resumed.ok()) << resumed.status();
      EXPECT_EQ(second.restored_step, cut);
      // The manifest holds the digests of weights, averages and optimizer state.
      EXPECT_EQ(second.checkpoints.back().manifest_sha256,
                straight.checkpoints.back().manifest_sha256);
      std::vector<double> losses = first.TrainLosses();
      for (double loss : second.TrainLosses()) losses.push_back(loss);
      EXPECT_EQ(losses, straight.TrainLosses());
    }
  }
}

TEST_F(OptimizerRunTest, TheNumberOfThreadsDoesNotChangeTheBits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const v1::JobSpec spec = Spec(c, 7);
    RecordingObserver one, two;
    ASSERT_TRUE(RunOnCpu(spec, Root(std::string(c.name) + "-a"), one, std::nullopt, 1).ok());
    ASSERT_TRUE(RunOnCpu(spec, Root(std::string(c.name) + "-b"), two, std::nullopt, 2).ok());
    EXPECT_EQ(one.checkpoints.back().manifest_sha256, two.checkpoints.back().manifest_sha256);
  }
}

TEST_F(OptimizerRunTest, EveryOptimizerLearns) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    RecordingObserver seen;
    ASSERT_TRUE(RunOnCpu(Spec(c, 60), Root(c.name), seen).ok());
    const std::vector<double> losses = seen.TrainLosses();
    EXPECT_LT(losses.back(), 0.97 * losses.front());
  }
}

TEST_F(OptimizerRunTest, FrozenParametersStayAsTheyBeganAndHaveNoState) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    v1::JobSpec spec = Spec(c, 6);
    RecordingObserver first, last;
    first.stop_at = 1;
    ASSERT_TRUE(RunOnCpu(spec, Root(std::string(c.name) + "-first"), first).ok());
    ASSERT_TRUE(RunOnCpu(spec, Root(std::string(c.name) + "-last"), last).ok());
    const auto begin = Open(first), end = Open(last);
    ASSERT_TRUE(begin.ok() && end.ok()) << begin.status() << end.status();
    for (const auto& [name, entry] : begin->model.header().tensors) {
      const bool frozen = name == "transformer.wpe.weight";
      EXPECT_EQ(BytesOf(begin->model, name) == BytesOf(end->model, name), frozen) << name;
      EXPECT_EQ(BytesOf(*end->ema, name) == BytesOf(end->model, name), frozen) << name;
    }
    for (const auto& [name, entry] : end->optimizer.header().tensors) {
      EXPECT_EQ(name.find("wpe"), std::string::npos) << name;
    }
  }
}

TEST_F(OptimizerRunTest, StateIsNamedAfterTheParameterAndItsOptimizer) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(Cases()[3], 6), Root("r"), seen).ok());
  const auto checkpoint = Open(seen);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto& state = checkpoint->optimizer.header().tensors;
  EXPECT_TRUE(state.count("momentum_buffer.transformer.h.0.attn.c_attn.weight"));
  EXPECT_FALSE(state.count("exp_avg.transformer.h.0.attn.c_attn.weight"));
  EXPECT_TRUE(state.count("exp_avg.transformer.wte.weight"));
  EXPECT_TRUE(state.count("exp_avg_sq.transformer.h.0.attn.c_attn.bias"));
  EXPECT_FALSE(state.count("momentum_buffer.transformer.wte.weight"));
}

TEST_F(OptimizerRunTest, AveragesAreStoredUnderTheNamesOfTheModel) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Spec(Cases()[1], 6), Root("r"), seen).ok());
  const auto checkpoint = Open(seen);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(checkpoint->ema.has_value());
  const auto& model = checkpoint->model.header().tensors;
  EXPECT_THAT(checkpoint->ema->header().tensors, SizeIs(model.size()));
  for (const auto& [name, entry] : model) {
    EXPECT_TRUE(checkpoint->ema->Find(name, entry.shape).ok()) << name;
  }
  v1::JobSpec plain = Spec(Cases()[1], 6);
  plain.mutable_training()->clear_ema_decay();
  plain.mutable_training()->clear_ema_warmup();
  ASSERT_TRUE(RunOnCpu(plain, Root("plain"), seen).ok());
  EXPECT_FALSE(Open(seen)->ema.has_value());
}

// An average that hardly moves is the model as it began: what is evaluated is the average.
TEST_F(OptimizerRunTest, EvaluationTakesTheAverageAndSaysSo) {
  v1::JobSpec spec = SmallGpt(text_, 60);
  spec.mutable_evaluation()->set_every_steps(30);
  RecordingObserver plain, averaged;
  ASSERT_TRUE(RunOnCpu(spec, Root("plain"), plain).ok());
  spec.mutable_training()->set_ema_decay(0.9999999);
  ASSERT_TRUE(RunOnCpu(spec, Root("averaged"), averaged).ok());
  EXPECT_EQ(averaged.TrainLosses(), plain.TrainLosses());
  std::vector<double> with, without;
  for (const auto& m : averaged.metrics) {
    EXPECT_EQ(m.values.count("ema_decay"), m.split == RunObserver::Split::kValidation ? 1u : 0u);
    if (m.split != RunObserver::Split::kValidation) continue;
    EXPECT_EQ(m.values.at("ema_decay"), 0.9999999);
    with.push_back(m.values.at("loss"));
  }
  for (const auto& m : plain.metrics) {
    if (m.split == RunObserver::Split::kValidation) without.push_back(m.values.at("loss"));
  }
  ASSERT_THAT(with, SizeIs(2));
  ASSERT_THAT(without, SizeIs(2));
  EXPECT_NEAR(with[0], with[1], 1e-4);
  EXPECT_LT(without[1], with[1] - 0.1);
}

}  // namespace
}  // namespace trainyard::engine
