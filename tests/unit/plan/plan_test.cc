#include "executor/plan/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/parameters.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::HasSubstr;

// --- what must fit the data --------------------------------------------------------------------

TEST(Plan, RefusesWhatDoesNotFitTheData) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_vocab_size(10);
  EXPECT_EQ(PlanStatus(spec, TokenFacts(11)).message(),
            "spec.model.gpt.vocab_size: 10 is less than the 11 tokens of the data");

  EXPECT_THAT(std::string(PlanStatus(GptSpec(), ImageFacts(2, 2, 1, 2)).message()),
              HasSubstr("spec.model"));
  EXPECT_THAT(std::string(PlanStatus(MlpSpec(), TokenFacts(4)).message()), HasSubstr("spec.model"));

  spec = ConvnetSpec();
  spec.mutable_model()->mutable_convnet()->mutable_stages(0)->set_pool(3);
  spec.mutable_model()->mutable_convnet()->add_stages()->set_channels(2);
  EXPECT_THAT(
      std::string(PlanStatus(spec, ImageFacts(5, 5, 1, 2)).message()),
      HasSubstr("spec.model.convnet.stages[1].pool: a window of 2 does not fit the 1x1 image"));

  DataFacts few = TokenFacts(11);
  few.train_size = 5;
  EXPECT_EQ(PlanStatus(GptSpec(), few).message(),
            "spec.model.gpt.context: 5 needs at least 6 training tokens; the data has 5");

  DataFacts nothing;
  EXPECT_EQ(PlanStatus(MlpSpec(), nothing).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Plan, RefusesATensorThatNoMachineHolds) {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_context(1 << 20);
  gpt.set_width(65536);
  gpt.set_vocab_size(1 << 24);
  spec.mutable_training()->set_batch_size(1 << 24);
  DataFacts facts = TokenFacts(11);
  facts.train_size = 0;
  const absl::Status error = PlanStatus(spec, facts);
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error.message()), HasSubstr("is larger than any machine's memory"));
}

TEST(Plan, CountsStepsFromEpochs) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_training()->clear_steps();
  spec.mutable_training()->set_epochs(2);
  EXPECT_EQ(PlanOf(spec, ImageFacts(2, 2, 1, 2)).total_steps, 34);  // 200 samples in batches of 6

  spec = GptSpec();
  spec.mutable_training()->clear_steps();
  spec.mutable_training()->set_epochs(0.5);
  EXPECT_EQ(PlanOf(spec, TokenFacts(11)).total_steps, 16667);  // 100,000 samples of 5 tokens

  DataFacts unknown = TokenFacts(11);
  unknown.train_size = 0;
  EXPECT_THAT(std::string(PlanStatus(spec, unknown).message()), HasSubstr("spec.training.epochs"));

  spec.mutable_schedule()->set_shape(v1::Schedule::COSINE);
  spec.mutable_schedule()->set_warmup_steps(20000);
  EXPECT_THAT(std::string(PlanStatus(spec, TokenFacts(11)).message()),
              HasSubstr("spec.schedule.warmup_steps: 20000 leaves nothing of the 16667 steps"));
}

// --- inference ---------------------------------------------------------------------------------

TEST(InferencePlan, HoldsParametersAndOneForwardPassOnly) {
  const v1::JobSpec spec = *ResolveSpec(CharGptSpec());
  const Plan trained = *BuildPlan(spec, TokenFacts(65));
  const Plan plan = *BuildInferencePlan(spec, TokenFacts(65), 1);
  EXPECT_THAT(NamesOf(plan), testing::UnorderedElementsAreArray(NamesOf(trained)));
  EXPECT_TRUE(plan.begin.empty() && plan.micro.empty() && plan.norm.empty() && plan.end.empty());
  EXPECT_EQ(plan.evaluate.size(), trained.evaluate.size());
  EXPECT_EQ(plan.gradient_region.bytes + plan.optimizer_region.bytes, 0);
  EXPECT_EQ(plan.evaluation_batch, 1);
  EXPECT_LT(plan.arena_bytes, trained.arena_bytes / 4);
  EXPECT_FALSE(BuildInferencePlan(spec, TokenFacts(65), 0).ok());
  // A job that trained on several ranks is sampled by one process.
  v1::JobSpec shared = spec;
  shared.mutable_parallel()->set_logical_ranks(4);
  shared.mutable_resources()->set_max_slots(2);
  EXPECT_TRUE(BuildInferencePlan(shared, TokenFacts(65), 1).ok());
}

}  // namespace
}  // namespace trainyard::plan
