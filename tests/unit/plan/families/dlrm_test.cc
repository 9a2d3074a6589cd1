// The recommender: its gradient against central differences, and tables whose gradient is kept by
// row against tables that are dense.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;
using testing::ElementsAre;

constexpr int64_t kDense = 3, kTables = 3, kBuckets = 4;

// Random parameters, the same for each plan of one model, and a batch of random samples.
class DlrmModel {
 public:
  explicit DlrmModel(const v1::JobSpec& spec)
      : plan(PlanOf(spec, ClickFacts(kDense, kTables, kBuckets))), machine(plan) {
    for (const TensorId id : plan.parameters) {
      std::mt19937_64 random(std::hash<std::string>()(plan.tensors[id].name));
      std::normal_distribution<double> normal(0, 0.5);
      Vec w(plan.tensors[id].elements());
      for (double& v : w) v = normal(random);
      machine.Write(id, w);
    }
    std::mt19937_64 random(7);
    const int64_t samples = plan.micro_batch * plan.micro_batches;
    std::normal_distribution<double> normal;
    dense.resize(samples * kDense);
    ids.resize(samples * kTables);
    targets.resize(samples);
    for (double& v : dense) v = normal(random);
    for (double& v : ids) v = static_cast<double>(random() % kBuckets);
    for (double& v : targets) v = static_cast<double>(random() % 2);
    machine.state = {.seed = 5, .step = 0};
  }

  double Step() {
    machine.Run(plan.copy);
    machine.Run(plan.begin);
    machine.Run(plan.zero);
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      machine.state.first_sample = i * plan.micro_batch;
      machine.Write(plan.input, Part(dense, i));
      machine.Write(plan.ids, Part(ids, i));
      machine.Write(plan.target, Part(targets, i));
      machine.Run(plan.micro);
    }
    return machine.Read(plan.loss_sum)[0] / static_cast<double>(targets.size());
  }

  Vec Part(const Vec& all, int64_t i) const {
    const auto n = static_cast<int64_t>(all.size()) / plan.micro_batches;
    return Vec(all.begin() + i * n, all.begin() + (i + 1) * n);
  }

  std::map<std::string, Vec> Weights() const {
    std::map<std::string, Vec> weights;
    for (const TensorId id : plan.parameters) weights[plan.tensors[id].name] = machine.Read(id);
    return weights;
  }

  const Plan plan;
  Interpreter machine;
  Vec dense, ids, targets;
};

TEST(Dlrm, GradientMatchesDifferences) {
  for (const int micro : {6, 2}) {
    v1::JobSpec spec = DlrmSpec();
    spec.mutable_training()->set_micro_batch_size(micro);
    DlrmModel model(spec);
    model.Step();
    std::vector<Vec> gradients;
    for (const TensorId id : model.plan.gradients) gradients.push_back(model.machine.Read(id));
    ASSERT_EQ(gradients.size(), model.plan.parameters.size());
    constexpr double kStep = 1e-6;
    for (size_t p = 0; p < gradients.size(); ++p) {
      const TensorId id = model.plan.parameters[p];
      const Vec w = model.machine.Read(id);
      double norm = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        Vec moved = w;
        moved[i] = w[i] + kStep;
        model.machine.Write(id, moved);
        const double above = model.Step();
        moved[i] = w[i] - kStep;
        model.machine.Write(id, moved);
        const double expected = (above - model.Step()) / (2 * kStep);
        ASSERT_NEAR(gradients[p][i], expected, 1e-8 + 1e-5 * std::abs(expected))
            << model.plan.tensors[id].name << "[" << i << "]";
        norm += std::abs(expected);
      }
      model.machine.Write(id, w);
      EXPECT_GT(norm, 0) << model.plan.tensors[id].name;
    }
  }
}

// At step 0 momentum changes nothing yet, but whole tables are updated.
TEST(Dlrm, StepOnRowsIsTheStepOnWholeTables) {
  for (const int micro : {6, 2}) {
    for (const bool clips : {false, true}) {
      v1::JobSpec spec = DlrmSpec();
      spec.mutable_training()->set_micro_batch_size(micro);
      if (clips) spec.mutable_optimizer()->set_clip_norm(0.05);
      spec.mutable_optimizer()->mutable_sgd();
      DlrmModel rows(spec);
      spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
      DlrmModel dense(spec);
      EXPECT_EQ(rows.plan.gradients.size() + kTables, dense.plan.gradients.size());
      for (DlrmModel* model : {&rows, &dense}) {
        model->machine.state.learning_rate = 0.1f;
        model->Step();
        model->machine.Run(model->plan.norm);
        model->machine.Run(model->plan.end);
      }
      EXPECT_NEAR(rows.machine.Read(rows.plan.grad_norm)[0],
                  dense.machine.Read(dense.plan.grad_norm)[0], 1e-12);
      const auto a = rows.Weights(), b = dense.Weights();
      for (const auto& [name, weights] : a) {
        for (size_t i = 0; i < weights.size(); ++i) {
          ASSERT_NEAR(weights[i], b.at(name)[i], 1e-12) << name << "[" << i << "]";
        }
      }
    }
  }
}

TEST(Dlrm, LazyAdamWMovesTouchedRowsAsAdamWDoesInItsFirstStep) {
  v1::JobSpec spec = DlrmSpec();
  DlrmModel dense(spec);
  spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  DlrmModel lazy(spec);
  const Vec before = lazy.Weights().at("emb_l.1.weight");
  for (DlrmModel* model : {&lazy, &dense}) {
    // No sample has row 2 of table 1.
    for (size_t i = 1; i < model->ids.size(); i += kTables) {
      if (model->ids[i] == 2) model->ids[i] = 3;
    }
    model->machine.state.learning_rate = 0.1f;
    model->Step();
    model->machine.Run(model->plan.norm);
    model->machine.Run(model->plan.end);
  }
  const Vec a = lazy.Weights().at("emb_l.1.weight"), b = dense.Weights().at("emb_l.1.weight");
  for (size_t i = 0; i < a.size(); ++i) {
    bool touched = false;
    for (size_t s = 1; s < lazy.ids.size(); s += kTables) touched |= lazy.ids[s] == i / 4;
    if (!touched) {
      EXPECT_EQ(a[i], before[i]);
      EXPECT_NE(b[i], before[i]);  // decayed
    } else {
      EXPECT_NEAR(a[i], b[i], 1e-12);
    }
  }
}

TEST(Dlrm, TablesKeptByRowTakeNoGradientMemory) {
  v1::JobSpec spec = DlrmSpec();
  spec.mutable_model()->mutable_dlrm()->set_embedding_width(16);
  const DataFacts facts = ClickFacts(13, 26, 100'000);
  const int64_t tables = int64_t{26} * 100'000 * 16 * 4;
  const Plan dense = PlanOf(spec, facts);
  EXPECT_GT(dense.gradient_region.bytes, tables);
  spec.mutable_optimizer()->mutable_sgd();
  const Plan rows = PlanOf(spec, facts);
  EXPECT_GT(rows.parameter_region.bytes, tables);
  EXPECT_LT(rows.summary.gradient_bytes(), tables / 1000);
  EXPECT_EQ(rows.optimizer_region.bytes, 0);
  // Of several logical ranks those of all are there, and sent.
  spec.mutable_optimizer()->mutable_sgd()->set_lazy_tables(true);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_resources()->set_min_slots(2);
  const Plan of_ranks = PlanOf(spec, facts);
  EXPECT_EQ(of_ranks.rows_region.bytes, rows.rows_region.bytes);
  EXPECT_LT(of_ranks.summary.gradient_bytes(), tables / 1000);
  EXPECT_LT(of_ranks.summary.sent_bytes_per_step(), tables / 1000);
  spec.mutable_parallel()->clear_logical_ranks();
  spec.mutable_resources()->clear_min_slots();
  spec.mutable_optimizer()->mutable_sgd()->set_lazy_tables(false);
  // Weight decay moves rows that no sample has.
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.1);
  EXPECT_GT(PlanOf(spec, facts).gradient_region.bytes, tables);
}

TEST(Dlrm, NamesAndLayoutsAreThoseOfTheReference) {
  const Plan plan = PlanOf(DlrmSpec(), ClickFacts(5, 2, 7));
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) names.push_back(plan.tensors[id].name);
  EXPECT_THAT(names, ElementsAre("bot_l.0.weight", "bot_l.2.weight", "emb_l.0.weight",
                                 "emb_l.1.weight", "top_l.0.weight", "top_l.2.weight",
                                 "bot_l.0.bias", "bot_l.2.bias", "top_l.0.bias", "top_l.2.bias"));
  const auto dims = [&](int i) { return plan.tensors[plan.parameters[i]].dims; };
  EXPECT_THAT(dims(0), ElementsAre(6, 5));
  EXPECT_THAT(dims(1), ElementsAre(4, 6));
  EXPECT_THAT(dims(3), ElementsAre(7, 4));
  EXPECT_THAT(dims(4), ElementsAre(5, 4 + 3));
  EXPECT_THAT(dims(5), ElementsAre(1, 5));
}

TEST(Dlrm, TableRowsMustFitTheData) {
  const auto error = [](std::vector<int64_t> rows, const DataFacts& facts) {
    v1::JobSpec spec = DlrmSpec();
    for (const int64_t n : rows) spec.mutable_model()->mutable_dlrm()->add_table_rows(n);
    const absl::StatusOr<Plan> plan = BuildPlan(*ResolveSpec(spec), facts);
    return plan.ok() ? std::string() : std::string(plan.status().message());
  };
  EXPECT_EQ(error({8, 9}, ClickFacts(5, 2, 7)), "");
  EXPECT_EQ(error({8, 6}, ClickFacts(5, 2, 7)),
            "spec.model.dlrm.table_rows[1]: 6 is less than the 7 values that the data makes");
  EXPECT_EQ(error({8}, ClickFacts(5, 2, 7)),
            "spec.model.dlrm.table_rows: 1 tables for the 2 categorical features of the data");
  EXPECT_EQ(error({}, ImageFacts(4, 4, 1, 2)),
            "spec.model: this family trains on clicks, but spec.data holds images");
}

}  // namespace
}  // namespace trainyard::plan
