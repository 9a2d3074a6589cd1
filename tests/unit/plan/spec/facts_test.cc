// Which data can be trained on, and for how many steps.

#include "executor/plan/spec/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;
using Kind = DataFacts::Kind;

const DataFacts kSixtyImages = {
    .height = 4, .width = 4, .channels = 1, .classes = 2, .train_size = 60};

v1::JobSpec InEpochs(double epochs, int64_t batch) {
  v1::JobSpec spec;
  spec.mutable_training()->set_epochs(epochs);
  spec.mutable_training()->set_batch_size(batch);
  return spec;
}

TEST(CheckFacts, NamesWhatIsMissingOrOdd) {
  EXPECT_TRUE(CheckFacts(kSixtyImages).ok());
  EXPECT_TRUE(CheckFacts({.kind = Kind::kTokens, .vocab = 1}).ok());
  EXPECT_TRUE(CheckFacts({.kind = Kind::kClicks, .dense = 1, .categorical = 1, .buckets = 1}).ok());
  for (const Kind kind : {Kind::kTokens, Kind::kDocuments}) {
    EXPECT_THAT(CheckFacts({.kind = kind}).message(), HasSubstr("tokens in the vocabulary"));
  }
  EXPECT_THAT(CheckFacts({.kind = Kind::kClicks, .dense = 13, .categorical = 26}).message(),
              HasSubstr("13 dense and 26 categorical features of 0 values"));
  DataFacts four = kSixtyImages;
  four.channels = 4;
  EXPECT_THAT(CheckFacts(four).message(), HasSubstr("images of 4x4x4 with 2 classes"));
}

TEST(TotalSteps, AreThoseGivenWhateverTheEpochs) {
  v1::JobSpec spec = InEpochs(3, 10);
  spec.mutable_training()->set_steps(7);
  EXPECT_EQ(TotalSteps(spec, kSixtyImages).value(), 7);
  EXPECT_EQ(TotalSteps(spec, {}).value(), 7) << "of data whose size nobody knows";
}

TEST(TotalSteps, CoverTheEpochsWithTheLastBatchBegun) {
  EXPECT_EQ(TotalSteps(InEpochs(2, 10), kSixtyImages).value(), 12);
  EXPECT_EQ(TotalSteps(InEpochs(1, 50), kSixtyImages).value(), 2);
  EXPECT_EQ(TotalSteps(InEpochs(0.001, 50), kSixtyImages).value(), 1);
}

TEST(TotalSteps, OfTokensGoByWindows) {
  v1::JobSpec spec = InEpochs(1, 5);
  spec.mutable_model()->mutable_gpt()->set_context(8);
  EXPECT_EQ(TotalSteps(spec, {.kind = Kind::kTokens, .vocab = 2, .train_size = 400}).value(), 10);
}

TEST(TotalSteps, ThatCannotBeCountedAreRefused) {
  EXPECT_THAT(TotalSteps(InEpochs(1, 10), {}).status().message(),
              HasSubstr("spec.training.epochs: the size of the data is unknown here"));
  const DataFacts most = {.train_size = 4294967295};
  EXPECT_EQ(TotalSteps(InEpochs(1, 1), most).value(), 4294967295);
  for (const double epochs : {1.0001, 1e300}) {
    EXPECT_THAT(TotalSteps(InEpochs(epochs, 1), most).status().message(),
                HasSubstr("steps; at most 4294967295"));
  }
}

}  // namespace
}  // namespace trainyard::plan
