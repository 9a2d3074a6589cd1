// A recommender trains, evaluates, resumes with the same bits, and becomes as good as can be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

v1::JobSpec SmallDlrm(int64_t steps) {
  v1::JobSpec spec;
  v1::Dlrm& dlrm = *spec.mutable_model()->mutable_dlrm();
  dlrm.set_embedding_width(8);
  dlrm.add_bottom(16);
  dlrm.add_top(32);
  v1::ClicksData& clicks = *spec.mutable_data()->mutable_clicks();
  clicks.set_train_samples(200'000);
  clicks.set_validation_samples(20'000);
  clicks.set_dense(4);
  clicks.set_categorical(6);
  clicks.set_categories(20);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_training()->set_batch_size(256);
  spec.mutable_training()->set_log_every(100);
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  spec.mutable_schedule()->set_learning_rate(1e-2);
  spec.mutable_schedule()->set_shape(v1::Schedule::COSINE);
  spec.mutable_evaluation()->set_batch_size(1000);
  return spec;
}

class ClicksTest : public ::testing::Test {
 protected:
  std::string Root(const std::string& name) { return folder_.path() + "/" + name; }
  TempFolder folder_;
};

TEST_F(ClicksTest, ReachTheBestPossibleAuc) {
  for (const bool lazy : {false, true}) {
    v1::JobSpec spec = SmallDlrm(2000);
    spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(lazy);
    RecordingObserver seen;
    const auto result = RunOnCpu(spec, Root(lazy ? "lazy" : "dense"), seen, std::nullopt, 2);
    ASSERT_TRUE(result.ok()) << result.status();
    const auto& values = seen.metrics.back().values;
    RecordProperty(lazy ? "lazy auc" : "auc", std::to_string(values.at("auc")));
    RecordProperty("best auc", std::to_string(values.at("best_auc")));
    EXPECT_GT(values.at("auc"), values.at("best_auc") - 0.005);
    EXPECT_LT(values.at("auc"), values.at("best_auc") + 0.005);
    EXPECT_GT(values.at("accuracy"), 0.7);
  }
}

TEST_F(ClicksTest, EvaluationDoesNotDependOnItsBatch) {
  std::map<std::string, double> first;
  for (const int batch : {1000, 37}) {
    v1::JobSpec spec = SmallDlrm(5);
    spec.mutable_data()->mutable_clicks()->set_validation_samples(999);
    spec.mutable_evaluation()->set_batch_size(batch);
    RecordingObserver seen;
    ASSERT_TRUE(RunOnCpu(spec, Root(std::to_string(batch)), seen).ok());
    if (first.empty()) first = seen.metrics.back().values;
    for (const char* name : {"auc", "best_auc", "accuracy"}) {
      EXPECT_NEAR(seen.metrics.back().values.at(name), first.at(name), 1e-3) << name;
    }
    EXPECT_NEAR(seen.metrics.back().values.at("loss"), first.at("loss"), 1e-6);
  }
}

// Rows, rows with moments, and whole tables; several micro-batches.
TEST_F(ClicksTest, ResumeWithTheSameBits) {
  for (int kind = 0; kind < 3; ++kind) {
    v1::JobSpec spec = SmallDlrm(12);
    spec.mutable_training()->set_micro_batch_size(64);
    spec.mutable_optimizer()->set_clip_norm(0.1);
    if (kind == 0) spec.mutable_optimizer()->mutable_sgd();
    if (kind == 1) spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
    const std::string name = std::to_string(kind);
    RecordingObserver straight;
    ASSERT_TRUE(RunOnCpu(spec, Root(name + "straight"), straight).ok());
    RecordingObserver first;
    first.stop_at = 1;
    ASSERT_TRUE(RunOnCpu(spec, Root(name + "cut"), first).ok());
    ASSERT_THAT(first.checkpoints, SizeIs(1));
    RecordingObserver second;
    const auto result = RunOnCpu(spec, Root(name + "cut"), second,
                                 RestorePoint{first.checkpoints[0].uri, ""}, /*threads=*/1);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(second.restored_step, 1);
    EXPECT_EQ(second.checkpoints.back().weights_sha256, straight.checkpoints.back().weights_sha256);
  }
}

// A row is the sum of the logical ranks that have it, in the order in which whole tables are
// summed.
TEST_F(ClicksTest, LazySgdOfLogicalRanksHasTheWeightsOfASweep) {
  for (const int logical_ranks : {2, 5, 8}) {
    SCOPED_TRACE(logical_ranks);
    v1::JobSpec spec = SmallDlrm(6);
    spec.mutable_training()->set_batch_size(32 * logical_ranks);
    spec.mutable_training()->set_micro_batch_size(16);
    spec.mutable_parallel()->set_logical_ranks(logical_ranks);
    spec.mutable_schedule()->set_learning_rate(10);  // so that last digits of a sum reach weights
    std::vector<std::string> weights;
    for (const bool lazy : {false, true}) {
      spec.mutable_optimizer()->mutable_sgd()->set_lazy_tables(lazy);
      RecordingObserver seen;
      const std::string root = Root(absl::StrCat(logical_ranks, lazy ? "lazy" : "swept"));
      const auto result = RunOnCpu(spec, root, seen);
      ASSERT_TRUE(result.ok()) << result.status();
      weights.push_back(seen.checkpoints.back().weights_sha256);
    }
    EXPECT_EQ(weights[0], weights[1]);
  }
}

TEST_F(ClicksTest, SkippedRowsAreAWarningOfTheRun) {
  const std::string path = folder_.path() + "/clicks.csv";
  std::ofstream out(path);
  out << "click,price,city\n1\n";
  for (int i = 0; i < 64; ++i) out << i % 2 << "," << i << ",c" << i % 5 << "\n";
  out.close();
  v1::JobSpec spec = SmallDlrm(2);
  v1::CsvData& csv = *spec.mutable_data()->mutable_csv();
  csv.set_train(path);
  csv.set_label("click");
  csv.add_dense("price");
  csv.add_categorical("city");
  csv.set_hash_buckets(10);
  csv.set_bad_records(v1::SKIP_BAD_RECORDS);
  RecordingObserver seen;
  const auto result = RunOnCpu(spec, Root("r"), seen);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(seen.warnings, SizeIs(1));
  EXPECT_THAT(seen.warnings[0], HasSubstr("skipped 1 of 65 rows; the first is line 2"));
  EXPECT_EQ(seen.metrics.back().values.count("auc"), 1u);
  EXPECT_EQ(seen.metrics.back().values.count("best_auc"), 0u);
}

}  // namespace
}  // namespace trainyard::engine
