// A plan whose residual sums are in the norms behind them trains and evaluates to the bits of the
// same plan with each sum in a kernel of its own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/plan/sums_apart.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSteps = 3;

// Losses, norms of the gradient, the metrics of an evaluation, and the bytes of the parameters.
struct Left {
  std::vector<double> numbers;
  std::string parameters;
};

class ResidualNormRun
    : public ::testing::TestWithParam<std::tuple<Family, v1::Precision::Compute>> {
 protected:
  v1::JobSpec Spec() const {
    const auto& [family, compute] = GetParam();
    v1::JobSpec spec = SmallJob(family, folder_.path(), kSteps);
    spec.mutable_precision()->set_compute(compute);
    if (spec.data().has_idx()) spec.mutable_data()->mutable_idx()->set_validation_fraction(0.2);
    return plan::ResolveSpec(spec).value();
  }

  static Left Train(const v1::JobSpec& spec, const plan::Plan& plan, data::Dataset& dataset) {
    const auto device = kernels::OpenCpu(2).value();
    const auto session = Session::Open(*device, plan).value();
    const auto trainer = Trainer::Create(*session, spec).value();
    EXPECT_TRUE(trainer->Initialize().ok());
    data::Loader loader(dataset, {.seed = 1,
                                  .batch_size = spec.training().batch_size(),
                                  .samples = spec.training().batch_size(),
                                  .micro_batch = plan.micro_batch});
    Left left;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto result = trainer->Step([&] { return loader.Next(); });
      EXPECT_TRUE(result.ok() && result->finite) << result.status();
      left.numbers.insert(left.numbers.end(), {result->loss, result->grad_norm});
    }
    Evaluator evaluator(*session, dataset);
    const auto evaluated = evaluator.Run(0);
    EXPECT_TRUE(evaluated.ok()) << evaluated.status();
    for (const auto& [name, value] : *evaluated) left.numbers.push_back(value);
    left.parameters.resize(plan.parameter_region.bytes);
    session->ReadRegion(plan.parameter_region, left.parameters.data());
    EXPECT_TRUE(session->Synchronize().ok());
    return left;
  }

  TempFolder folder_;
};

TEST_P(ResidualNormRun, LeavesTheBitsOfSumsApart) {
  for (const int micro_batch : {8, 4}) {
    for (const double share : {0.0, 0.7}) {
      v1::JobSpec spec = Spec();
      spec.mutable_training()->set_micro_batch_size(micro_batch);
      if (share > 0) spec.mutable_training()->mutable_recompute()->set_activation_share(share);
      const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
      const plan::Plan joined = plan::BuildPlan(spec, dataset->facts()).value();
      const plan::Plan apart = plan::SumsApart(joined);
      ASSERT_GT(apart.micro.size(), joined.micro.size()) << "no sum is in a norm";
      ASSERT_GT(apart.evaluate.size(), joined.evaluate.size()) << "no sum is in a norm";
      const Left with = Train(spec, joined, *dataset), without = Train(spec, apart, *dataset);
      EXPECT_EQ(with.numbers, without.numbers);
      EXPECT_TRUE(with.parameters == without.parameters) << "other weights";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, ResidualNormRun,
    ::testing::Combine(
        ::testing::Values(
            Family{"gpt", "model { gpt { layers: 3 heads: 2 width: 16 context: 8 dropout: 0.1 } }"},
            Family{"llama",
                   "model { llama { layers: 3 heads: 4 kv_heads: 2 width: 16 context: 8 } }"},
            Family{"adapted",
                   "model { llama { layers: 2 heads: 2 width: 16 context: 8 } }"
                   "fine_tune { lora { rank: 2 dropout: 0.1 } }"},
            Family{"bert", "model { bert { layers: 3 heads: 2 width: 8 context: 9 dropout: 0.1 } }",
                   Family::kDocuments},
            Family{"vit", "model { vit { layers: 3 heads: 2 width: 8 patch: 4 dropout: 0.1 } }",
                   Family::kImages}),
        ::testing::Values(v1::Precision::FP32, v1::Precision::BF16)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" +
             v1::Precision::Compute_Name(std::get<1>(info.param));
    });

}  // namespace
}  // namespace trainyard::engine
