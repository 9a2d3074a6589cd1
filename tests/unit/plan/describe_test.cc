#include "executor/plan/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::HasSubstr;

TEST(Describe, TellsAGpusMemoryFromItsHosts) {
  v1::JobSpec spec = GptSpec();
  EXPECT_THAT(Describe(PlanOf(spec, TokenFacts(11))),
              testing::AllOf(HasSubstr("\n  staging "), HasSubstr("\n  process "),
                             testing::Not(HasSubstr("host staging"))));
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  EXPECT_THAT(
      Describe(PlanOf(spec, TokenFacts(11))),
      testing::AllOf(HasSubstr("\n  inbox "), HasSubstr("\n  context       600.0 MiB\n"),
                     HasSubstr("\nhost staging    "), testing::Not(HasSubstr("\n  staging "))));
}

TEST(Describe, NamesTheFiguresAndEveryKernel) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  const std::string text = Describe(plan);
  EXPECT_THAT(text, HasSubstr("parameters      1888"));
  EXPECT_THAT(text, HasSubstr("each micro-batch: 59 kernels"));
  EXPECT_THAT(text, HasSubstr("\npass residual_norm: "));
  EXPECT_THAT(text, HasSubstr(", kernels of a micro-batch 63 -> 59\n"));
  EXPECT_THAT(text, HasSubstr("\npass share_gradients: "));
  EXPECT_THAT(text, HasSubstr("  add_layer_norm       transformer.embedding[30, 8] "));
  EXPECT_THAT(text, HasSubstr("+transformer.wte.weight.grad[11, 8]"));
  EXPECT_THAT(Describe(PlanOf(MlpSpec(), ImageFacts(5, 4, 3, 7))),
              HasSubstr("normalize_images     input[6, 5, 4, 3]:u8 -> images[6, 5, 4, 3]\n"));
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_EQ(lines, 17 + 2 * 5 +
                       static_cast<int64_t>(plan.begin.size() + plan.zero.size() +
                                            plan.micro.size() + plan.norm.size() + plan.end.size() +
                                            plan.evaluate_begin.size() + plan.evaluate.size()));
}

}  // namespace
}  // namespace trainyard::plan
