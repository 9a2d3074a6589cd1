// What the first op of every model of images does to them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ImageSpec, CropsOfIdxImagesAreMadeByTheFirstOpOfTraining) {
  const DataFacts facts = ImageFacts(28, 20, 1, 10);
  for (const auto& [padding, flip] : {std::pair{0, false}, {2, false}, {0, true}}) {
    v1::JobSpec spec = MlpSpec();
    spec.mutable_data()->mutable_idx()->set_crop_padding(padding);
    spec.mutable_data()->mutable_idx()->set_flip(flip);
    const Plan plan = PlanOf(spec, facts);
    const auto op = OpsOf<NormalizeImages>(plan.micro)[0];
    EXPECT_EQ(op.places, plan.ids);
    EXPECT_EQ(OpsOf<NormalizeImages>(plan.evaluate)[0].places, kNone);
    EXPECT_EQ(plan.eval_ids, kNone);
    if (padding == 0 && !flip) {
      EXPECT_EQ(op.places, kNone);
      continue;
    }
    EXPECT_EQ(plan.tensors[op.places].dims, (std::vector<int64_t>{plan.micro_batch, kPlace}));
    EXPECT_EQ(op.height, 28);
    EXPECT_EQ(op.width, 20);
  }
}

TEST(ImageSpec, ItsMeansAndDeviationsAreThoseOfTheFirstOp) {
  v1::JobSpec spec = FolderSpec();
  const auto op = [&](const DataFacts& facts) {
    const Plan plan = PlanOf(spec, facts);
    EXPECT_EQ(plan.tensors[plan.input].type, ElementType::kU8);
    EXPECT_TRUE(std::holds_alternative<NormalizeImages>(plan.micro[0]));
    EXPECT_TRUE(std::holds_alternative<NormalizeImages>(plan.evaluate[0]));
    const auto first = OpsOf<NormalizeImages>(plan.evaluate)[0];
    EXPECT_EQ(first.x, plan.eval_input);
    EXPECT_EQ(first.pixels, plan.evaluation_batch * facts.height * facts.width);
    EXPECT_EQ(OpsOf<NormalizeImages>(plan.micro)[0].mean, first.mean);
    return first;
  };
  EXPECT_THAT(op(ImageFacts(224, 224, 3, 10)).mean, ElementsAre(0.485, 0.456, 0.406));
  for (const double v : {0.5, 0.25, 2.0}) TransformOf(spec).add_std(v);
  EXPECT_THAT(op(ImageFacts(224, 224, 3, 10)).std, ElementsAre(0.5, 0.25, 2));
  EXPECT_THAT(std::string(PlanStatus(spec, ImageFacts(224, 224, 1, 10)).message()),
              HasSubstr("spec.data: the transform has 3 means and 3 deviations for images of 1"));
  EXPECT_THAT(std::string(PlanStatus(spec, ImageFacts(224, 224, 4, 10)).message()),
              HasSubstr("spec.data: images of 224x224x4 with 10 classes cannot be trained on"));
  spec.mutable_data()->mutable_idx()->set_train_images("/images");
  spec.mutable_data()->mutable_idx()->set_train_labels("/labels");
  spec.mutable_data()->mutable_idx()->set_mean(0.1);
  EXPECT_EQ(op(ImageFacts(28, 28, 1, 10)).mean[0], 0.1);
  EXPECT_EQ(op(ImageFacts(28, 28, 1, 10)).std[0], 1);
  EXPECT_THAT(op(ImageFacts(28, 28, 3, 10)).mean, ElementsAre(0.1, 0.1, 0.1));
}

}  // namespace
}  // namespace trainyard::plan
