// Runs whose layers are cut into the shards of tensor parallelism.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "executor/engine/fault.h"
#include "storage/base/file.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

class TensorRun : public testing::TestWithParam<Family> {
 protected:
  v1::JobSpec Spec(int64_t steps, int tensor) const {
    v1::JobSpec spec = SmallJob(GetParam(), folder_.path(), steps);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_parallel()->set_tensor(tensor);
    spec.mutable_training()->set_log_every(1);
    return spec;
  }

  std::string Root(const std::string& name) const { return folder_.path() + "/" + name; }

  RunResult MustRun(const v1::JobSpec& spec, const std::string& name, RecordingObserver& seen,
                    std::optional<RestorePoint> restore = std::nullopt, int threads = 1) {
    const auto result = RunOnCpu(spec, Root(name), seen, std::move(restore), threads);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(RunResult());
  }

  static std::string FileOf(const WrittenCheckpoint& checkpoint, const std::string& name) {
    return ReadFile(checkpoint.uri + "/" + name, int64_t{1} << 24).value_or("");
  }

  TempFolder folder_;
};

// The weights that training begins with are those of the whole, bit for bit, and so is the file.
TEST_P(TensorRun, BeginsWithTheDrawsOfTheWhole) {
  std::vector<std::string> files;
  std::vector<nlohmann::json> vocabularies;
  for (const int tensor : {1, 2, 3}) {
    v1::JobSpec spec = Spec(1, tensor);
    spec.mutable_schedule()->set_learning_rate(1e-60);  // of a step that changes nothing
    spec.mutable_schedule()->set_warmup_steps(0);
    RecordingObserver seen;
    MustRun(spec, "begin" + std::to_string(tensor), seen);
    ASSERT_FALSE(seen.checkpoints.empty());
    files.push_back(FileOf(seen.checkpoints.back(), "model.safetensors"));
    EXPECT_FALSE(files.back().empty());
    EXPECT_TRUE(files.back() == files.front()) << tensor << " shards";
    const std::string config = FileOf(seen.checkpoints.back(), "config.json");
    vocabularies.push_back(nlohmann::json::parse(config).value("vocab_size", nlohmann::json()));
    EXPECT_EQ(vocabularies.back(), vocabularies.front()) << tensor << " shards";
  }
}

TEST_P(TensorRun, FollowsTheCurveOfOneShard) {
  RecordingObserver whole;
  MustRun(Spec(50, 1), "whole", whole);
  for (const int tensor : {2, 3, 4}) {
    RecordingObserver cut;
    MustRun(Spec(50, tensor), "cut" + std::to_string(tensor), cut);
    const std::vector<double> expected = whole.TrainLosses(), found = cut.TrainLosses();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << "step " << i << ", " << tensor;
    }
    EXPECT_LT(found.back(), 0.97 * found.front()) << "nothing is learned: the test shows nothing";
    ASSERT_EQ(cut.Evaluations().size(), whole.Evaluations().size());
    for (size_t i = 0; i < cut.Evaluations().size(); ++i) {
      const double loss = whole.Evaluations()[i].at("loss");
      EXPECT_NEAR(cut.Evaluations()[i].at("loss"), loss, 1e-4 * loss);
    }
  }
}

TEST_P(TensorRun, GoesOnFromACheckpointWithTheSameBits) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Spec(6, 3);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(3);
    const std::string name = "whole" + std::to_string(compute);
    RecordingObserver whole;
    MustRun(spec, name, whole);
    ASSERT_EQ(whole.checkpoints.size(), 2u);
    for (const double loss : whole.TrainLosses()) EXPECT_TRUE(std::isfinite(loss));

    RecordingObserver stopped, resumed;
    stopped.stop_at = 3;
    EXPECT_TRUE(MustRun(spec, name + "stopped", stopped).suspended);
    ASSERT_FALSE(stopped.checkpoints.empty());
    const WrittenCheckpoint& middle = stopped.checkpoints.back();
    MustRun(spec, name + "stopped", resumed,
            RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256},
            /*threads=*/2);
    ASSERT_FALSE(resumed.checkpoints.empty());
    EXPECT_EQ(resumed.checkpoints.back().weights_sha256, whole.checkpoints.back().weights_sha256);
    for (const char* file :
         {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
      const std::string expected = FileOf(whole.checkpoints.back(), file);
      EXPECT_FALSE(expected.empty()) << file;
      EXPECT_TRUE(FileOf(resumed.checkpoints.back(), file) == expected) << file;
    }
  }
}

// The first layer is drawn anew, and all else is that of a folder of whole tensors.
TEST_P(TensorRun, BeginsWithTheWeightsOfAnotherModel) {
  RecordingObserver source;
  MustRun(Spec(3, 1), "source", source);
  ASSERT_FALSE(source.checkpoints.empty());
  const auto from_source = [&](int tensor) {
    v1::JobSpec spec = Spec(3, tensor);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_fine_tune()->set_from(source.checkpoints.back().uri);
    spec.mutable_fine_tune()->add_reinitialize("*.0.*");
    return spec;
  };
  RecordingObserver one, cut;
  MustRun(from_source(1), "one", one);
  MustRun(from_source(4), "cut", cut);
  ASSERT_FALSE(cut.checkpoints.empty());
  ASSERT_EQ(cut.TrainLosses().size(), one.TrainLosses().size());
  for (size_t i = 0; i < one.TrainLosses().size(); ++i) {
    EXPECT_NEAR(cut.TrainLosses()[i], one.TrainLosses()[i], 1e-4 * one.TrainLosses()[i]) << i;
  }
  for (const auto& [ranks, sharing] : {std::pair{4, 2}, {4, 4}}) {
    const OnRanks gang(from_source(4), Root("on" + std::to_string(sharing)), ranks, sharing);
    gang.ExpectOk();
    ASSERT_FALSE(gang.seen.checkpoints.empty());
    EXPECT_EQ(gang.seen.TrainLosses(), cut.TrainLosses());
    EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256, cut.checkpoints.back().weights_sha256);
    EXPECT_EQ(gang.seen.notices, cut.notices) << "which tell what was read";
  }
}

TEST_P(TensorRun, RecomputesWithTheSameBits) {
  v1::JobSpec spec = Spec(3, 2);
  RecordingObserver kept, recomputed;
  MustRun(spec, "kept", kept);
  spec.mutable_training()->mutable_recompute()->set_activation_share(0.7);
  MustRun(spec, "recomputed", recomputed);
  ASSERT_FALSE(recomputed.checkpoints.empty());
  EXPECT_EQ(recomputed.checkpoints.back().weights_sha256, kept.checkpoints.back().weights_sha256);
  EXPECT_EQ(recomputed.TrainLosses(), kept.TrainLosses());
}

// Each rank chooses by what it hosts, the first one something at least; what others made is
// exchanged once.
TEST_P(TensorRun, RecomputesWithTheSameBitsOnRanksThatShareTheShards) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Spec(3, 4);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_precision()->set_compute(compute);
    const std::string name = "kept" + std::to_string(compute);
    RecordingObserver kept;
    MustRun(spec, name, kept);
    spec.mutable_evaluation()->set_batch_size(1);  // or that is what takes most
    spec.mutable_training()->mutable_recompute()->set_activation_share(0.8);
    for (const auto& [ranks, sharing] : {std::pair{2, 2}, {3, 3}, {4, 2}}) {
      const std::string of = absl::StrCat(name, " on ", ranks, " by ", sharing);
      const OnRanks gang(spec, Root(of), ranks, sharing);
      gang.ExpectOk();
      ASSERT_FALSE(gang.seen.checkpoints.empty()) << of;
      EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256, kept.checkpoints.back().weights_sha256)
          << of;
      EXPECT_EQ(gang.seen.TrainLosses(), kept.TrainLosses()) << of;
    }
  }
}

// Four micro-batches of one sample, whose tokens three ranks cannot share out evenly.
TEST_P(TensorRun, HasTheSameBitsOnRanksThatShareTheTokensToo) {
  for (const int tensor : {2, 3, 4}) {
    for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
      v1::JobSpec spec = Spec(4, tensor);
      spec.mutable_parallel()->set_logical_ranks(2);
      spec.mutable_training()->set_micro_batch_size(1);
      spec.mutable_precision()->set_compute(compute);
      spec.mutable_training()->set_ema_decay(0.9);
      spec.mutable_checkpoint()->set_every_steps(2);
      spec.mutable_evaluation()->set_every_steps(2);
      const std::string name = absl::StrCat(tensor, " in ", compute);
      RecordingObserver whole;
      MustRun(spec, name, whole);
      ASSERT_EQ(whole.checkpoints.size(), 2u);
      const auto expect_same = [&](const WrittenCheckpoint& found, size_t number) {
        for (const char* file :
             {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
          const std::string expected = FileOf(whole.checkpoints[number], file);
          EXPECT_FALSE(expected.empty()) << file;
          EXPECT_TRUE(FileOf(found, file) == expected) << file << name;
        }
      };
      for (const int groups : {1, 2}) {
        const Layout shared{.ranks = groups * tensor, .sharing = tensor, .sequence = true};
        const OnRanks gang(spec, Root(absl::StrCat(name, " on ", groups)), shared);
        gang.ExpectOk();
        EXPECT_EQ(gang.seen.TrainLosses(), whole.TrainLosses()) << name;
        EXPECT_EQ(gang.seen.Evaluations(), whole.Evaluations()) << name;
        ASSERT_EQ(gang.seen.checkpoints.size(), 2u) << name;
        for (const size_t i : {0, 1}) expect_same(gang.seen.checkpoints[i], i);
        if (groups == 2) continue;
        // One rank goes on from what these wrote, and they from what one rank wrote.
        const auto from = [](const WrittenCheckpoint& middle) {
          return RestorePoint{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256};
        };
        const OnRanks alone(spec, Root(name + " alone"), Layout{}, from(gang.seen.checkpoints[0]));
        const OnRanks resumed(spec, Root(name + " resumed"), shared, from(whole.checkpoints[0]));
        for (const OnRanks* run : {&alone, &resumed}) {
          run->ExpectOk();
          ASSERT_FALSE(run->seen.checkpoints.empty()) << name;
          expect_same(run->seen.checkpoints.back(), 1);
        }
      }
    }
  }
}

// Of a norm that is frozen nothing is summed over the tokens, or the gradient of one parameter.
TEST_P(TensorRun, HasTheSameBitsWithFrozenNormsOnRanksThatShareTheTokens) {
  for (const char* pattern : {"*.0.*weight", "*norm*", "*bias"}) {
    v1::JobSpec spec = Spec(3, 2);
    spec.mutable_parallel()->set_logical_ranks(1);
    v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
    frozen.set_pattern(pattern);
    frozen.set_frozen(true);
    RecordingObserver whole;
    const auto alone = RunOnCpu(spec, Root(absl::StrCat("alone ", pattern)), whole);
    if (absl::IsInvalidArgument(alone.status())) continue;  // the family has no such parameter
    ASSERT_TRUE(alone.ok()) << alone.status();
    const OnRanks gang(spec, Root(absl::StrCat("gang ", pattern)),
                       Layout{.ranks = 2, .sharing = 2, .sequence = true});
    gang.ExpectOk();
    ASSERT_FALSE(gang.seen.checkpoints.empty() || whole.checkpoints.empty()) << pattern;
    EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256, whole.checkpoints.back().weights_sha256)
        << pattern;
  }
}

// What is computed twice goes by each rank's own budget, in which it has fewer tokens.
TEST_P(TensorRun, RecomputesWithTheSameBitsOnRanksThatShareTheTokens) {
  v1::JobSpec spec = Spec(3, 4);
  spec.mutable_parallel()->set_logical_ranks(1);
  RecordingObserver kept;
  MustRun(spec, "kept", kept);
  spec.mutable_evaluation()->set_batch_size(1);  // or that is what takes most
  for (const double share : {0.9, 0.76}) {
    spec.mutable_training()->mutable_recompute()->set_activation_share(share);
    const OnRanks gang(spec, Root(absl::StrCat("recomputed ", share)),
                       Layout{.ranks = 4, .sharing = 4, .sequence = true});
    gang.ExpectOk();
    ASSERT_FALSE(gang.seen.checkpoints.empty());
    EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256, kept.checkpoints.back().weights_sha256);
    EXPECT_EQ(gang.seen.TrainLosses(), kept.TrainLosses());
  }
}

TEST_P(TensorRun, HasTheSameBitsOnRanksThatShareTheShards) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Spec(4, 4);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(2);
    spec.mutable_evaluation()->set_every_steps(2);
    const std::string name = "on" + std::to_string(compute);
    RecordingObserver whole;
    MustRun(spec, name, whole);
    ASSERT_EQ(whole.checkpoints.size(), 2u);
    const auto expect_same = [&](const WrittenCheckpoint& found, const WrittenCheckpoint& expected,
                                 const std::string& of) {
      EXPECT_EQ(found.weights_sha256, expected.weights_sha256) << of;
      for (const char* file :
           {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
        EXPECT_FALSE(FileOf(expected, file).empty()) << file;
        EXPECT_TRUE(FileOf(found, file) == FileOf(expected, file)) << file << of;
      }
    };
    for (const auto& [ranks, sharing] : {std::pair{2, 2}, {3, 3}, {4, 4}, {4, 2}, {2, 1}}) {
      const std::string of =
          " on " + std::to_string(ranks) + " of which " + std::to_string(sharing) + " share";
      const OnRanks gang(spec, Root(name + of), ranks, sharing);
      gang.ExpectOk();
      EXPECT_EQ(gang.seen.TrainLosses(), whole.TrainLosses()) << of;
      EXPECT_EQ(gang.seen.Evaluations(), whole.Evaluations()) << of;
      ASSERT_EQ(gang.seen.checkpoints.size(), 2u) << of;
      for (const size_t i : {0, 1}) expect_same(gang.seen.checkpoints[i], whole.checkpoints[i], of);
    }
    // From the middle, on another layout.
    const WrittenCheckpoint& middle = whole.checkpoints[0];
    const RestorePoint from{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256};
    const OnRanks resumed(spec, Root(name), 4, 4, from);
    resumed.ExpectOk();
    ASSERT_FALSE(resumed.seen.checkpoints.empty());
    expect_same(resumed.seen.checkpoints.back(), whole.checkpoints[1], "resumed");
    EXPECT_EQ(resumed.seen.TrainLosses(), LastOf(whole.TrainLosses(), resumed));
    // One rank from what a gang wrote.
    const OnRanks begun(spec, Root(name + "begun"), 4, 2);
    begun.ExpectOk();
    ASSERT_EQ(begun.seen.checkpoints.size(), 2u);
    const WrittenCheckpoint& of_gang = begun.seen.checkpoints[0];
    const OnRanks alone(
        spec, Root(name + "begun"), 1, 1,
        RestorePoint{.uri = of_gang.uri, .manifest_sha256 = of_gang.manifest_sha256});
    alone.ExpectOk();
    ASSERT_FALSE(alone.seen.checkpoints.empty());
    expect_same(alone.seen.checkpoints.back(), whole.checkpoints[1], "resumed alone");
    EXPECT_EQ(alone.seen.TrainLosses(), LastOf(whole.TrainLosses(), alone));
  }
}

// Each rank that hosts the same shards steps some of their elements alone, and a checkpoint is read
// from all of them.
TEST_P(TensorRun, HasTheSameBitsWithTheOptimizerInShares) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = Spec(4, 4);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_checkpoint()->set_every_steps(2);
    const std::string name = "shares" + std::to_string(compute);
    RecordingObserver whole;
    MustRun(spec, name, whole);
    ASSERT_EQ(whole.checkpoints.size(), 2u);
    v1::JobSpec sharded = spec;
    sharded.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
    const auto expect_same = [&](const OnRanks& gang, const std::string& of) {
      gang.ExpectOk();
      // A step after the restored one shows whether the state is there; a checkpoint that the
      // folder has already is not written again.
      EXPECT_EQ(gang.seen.TrainLosses(), LastOf(whole.TrainLosses(), gang)) << of;
      ASSERT_FALSE(gang.seen.checkpoints.empty()) << of;
      for (size_t i = 0; i < gang.seen.checkpoints.size(); ++i) {
        const WrittenCheckpoint& expected =
            whole.checkpoints[i + whole.checkpoints.size() - gang.seen.checkpoints.size()];
        EXPECT_EQ(gang.seen.checkpoints[i].weights_sha256, expected.weights_sha256) << of;
        for (const char* file :
             {"model.safetensors", "ema.safetensors", "trainer_state/optimizer.safetensors"}) {
          EXPECT_FALSE(FileOf(expected, file).empty()) << file;
          EXPECT_TRUE(FileOf(gang.seen.checkpoints[i], file) == FileOf(expected, file))
              << file << of << ", checkpoint " << i;
        }
      }
    };
    for (const auto& [ranks, sharing] : {std::pair{4, 2}, {2, 1}, {8, 4}}) {
      const std::string of =
          " on " + std::to_string(ranks) + " of which " + std::to_string(sharing) + " share";
      const OnRanks gang(sharded, Root(name + of), ranks, sharing);
      expect_same(gang, of);
      EXPECT_EQ(gang.seen.TrainLosses(), whole.TrainLosses()) << of;
      ASSERT_EQ(gang.seen.checkpoints.size(), 2u) << of;
      // One rank, which shares nothing out, goes on from what they wrote, and they from its.
      const WrittenCheckpoint& middle = gang.seen.checkpoints[0];
      const RestorePoint from{.uri = middle.uri, .manifest_sha256 = middle.manifest_sha256};
      expect_same(OnRanks(spec, Root(name + of), 1, 1, from), of + ", alone");
      const WrittenCheckpoint& own = whole.checkpoints[0];
      expect_same(OnRanks(sharded, Root(name), ranks, sharing,
                          RestorePoint{.uri = own.uri, .manifest_sha256 = own.manifest_sha256}),
                  of + ", resumed");
    }
  }
}

// Other ranks have other shares: each goes on from what those before it wrote.
TEST_P(TensorRun, TakesSharesOfTheOptimizerFromAnyNumberOfRanks) {
  v1::JobSpec spec = Spec(8, 2);
  spec.mutable_parallel()->set_logical_ranks(4);
  spec.mutable_training()->set_micro_batch_size(2);
  v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
  frozen.set_pattern("*.0.*weight");
  frozen.set_frozen(true);
  RecordingObserver whole;
  MustRun(spec, "whole", whole);
  ASSERT_FALSE(whole.checkpoints.empty());
  spec.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  spec.mutable_checkpoint()->set_every_steps(1);
  spec.mutable_checkpoint()->set_keep(8);
  const OnRanks begun(spec, Root("shares"), 4, 1);
  begun.ExpectOk();
  ASSERT_EQ(begun.seen.checkpoints.size(), 8u);
  WrittenCheckpoint from = begun.seen.checkpoints[0];
  for (const auto& [ranks, sharing] : {std::pair{3, 1}, {4, 2}, {6, 2}, {1, 1}, {2, 2}}) {
    const OnRanks gang(spec, Root("shares"), ranks, sharing,
                       RestorePoint{.uri = from.uri, .manifest_sha256 = from.manifest_sha256});
    gang.ExpectOk();
    ASSERT_FALSE(gang.seen.checkpoints.empty());
    EXPECT_EQ(gang.seen.TrainLosses(), LastOf(whole.TrainLosses(), gang))
        << ranks << " ranks, " << sharing << " share";
    from = gang.seen.checkpoints[0];  // one step later
  }
}

// A step that overflows fp16 is skipped by all, whichever of them has the shard that overflows.
TEST_P(TensorRun, SkipsTheSameStepsOnRanksThatShareTheShards) {
  v1::JobSpec spec = Spec(8, 4);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  spec.mutable_precision()->mutable_loss_scale()->set_initial(0x1p30);
  RecordingObserver whole;
  MustRun(spec, "whole", whole);
  ASSERT_FALSE(whole.checkpoints.empty());
  double skipped = 0;
  for (const auto& m : whole.metrics) {
    if (m.values.contains("skipped_steps")) skipped = m.values.at("skipped_steps");
  }
  EXPECT_GT(skipped, 0) << "the loss scale is too low for this test";
  for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER}) {
    spec.mutable_parallel()->set_shard(shard);
    for (const Layout& layout : {Layout{.ranks = 2, .sharing = 2}, Layout{.ranks = 4, .sharing = 2},
                                 Layout{.ranks = 4, .sharing = 4, .sequence = true}}) {
      const OnRanks gang(spec, Root(layout.Words()), layout);
      gang.ExpectOk();
      ASSERT_FALSE(gang.seen.checkpoints.empty());
      EXPECT_EQ(gang.seen.TrainLosses(), whole.TrainLosses());
      EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256,
                whole.checkpoints.back().weights_sha256);
    }
  }
}

// All ranks end with what the first of them found, and none waits for another.
TEST_P(TensorRun, NamesWhatIsNotFiniteOnRanksThatShareTheShards) {
  v1::JobSpec spec = Spec(6, 4);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_schedule()->set_learning_rate(1e38);
  spec.mutable_schedule()->set_warmup_steps(0);
  for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER}) {
    spec.mutable_parallel()->set_shard(shard);
    for (const Layout& layout :
         {Layout{.ranks = 2, .sharing = 2}, Layout{.ranks = 4, .sharing = 2}, Layout{.ranks = 2},
          Layout{.ranks = 4, .sharing = 4, .sequence = true}}) {
      const OnRanks gang(spec, Root(layout.Words()), layout);
      EXPECT_EQ(FaultOf(gang.ended[0]), Fault::kNumeric) << gang.ended[0];
      EXPECT_THAT(std::string(gang.ended[0].message()), testing::HasSubstr("value "));
      for (const absl::Status& ended : gang.ended) EXPECT_EQ(ended, gang.ended[0]);
    }
  }
}

// Fewer tokens than ranks: some host no row of the vocabulary, and read no token.
TEST(TensorRunOfFewTokens, HasTheSameBits) {
  const TempFolder folder;
  const Family gpt = {
      "gpt", "model { gpt { layers: 1 heads: 2 width: 8 context: 8 } } parallel { tensor: 4 }"};
  v1::JobSpec spec = SmallJob(gpt, folder.path(), 3);
  ASSERT_TRUE(WriteFileAtomically(spec.data().text().path(), std::string(4000, 'a') + "b").ok());
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(1);
  RecordingObserver whole;
  ASSERT_TRUE(RunOnCpu(spec, folder.path() + "/whole", whole).ok());
  for (const bool sequence : {false, true}) {
    const OnRanks gang(spec, folder.path() + (sequence ? "/tokens too" : "/shared"),
                       Layout{.ranks = 4, .sharing = 4, .sequence = sequence});
    gang.ExpectOk();
    ASSERT_FALSE(gang.seen.checkpoints.empty());
    EXPECT_EQ(gang.seen.checkpoints.back().weights_sha256, whole.checkpoints.back().weights_sha256);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TensorRun,
    testing::Values(
        Family{"gpt", "model { gpt { layers: 2 heads: 3 width: 12 context: 8 dropout: 0.1 } }"},
        Family{
            "llama",
            "model { llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 mlp_width: 21 } "
            "}"},
        Family{"bert", "model { bert { layers: 2 heads: 2 width: 12 context: 9 dropout: 0.1 } }",
               Family::kDocuments},
        Family{"vit", "model { vit { layers: 2 heads: 3 width: 12 patch: 4 dropout: 0.1 } }",
               Family::kImages}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainyard::engine
