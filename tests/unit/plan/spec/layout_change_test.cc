#include "executor/plan/spec/layout_change.h"

#include <gtest/gtest.h>

namespace trainyard::plan {
namespace {

v1::JobSpec Laid(v1::Parallel::Shard shard, int tensor, int pipeline) {
  v1::JobSpec spec;
  v1::Parallel& parallel = *spec.mutable_parallel();
  parallel.set_logical_ranks(8);
  parallel.set_tensor(4);
  parallel.set_shard(shard);
  if (tensor > 1) parallel.mutable_layout()->set_tensor(tensor);
  if (pipeline > 1) parallel.mutable_layout()->set_pipeline(pipeline);
  return spec;
}

TEST(LayoutChange, IsStoredAsTextThatHoldsTheLayoutAlone) {
  EXPECT_EQ(LayoutText(Laid(v1::Parallel::NONE, 1, 1)), R"({"shard":"NONE"})");
  EXPECT_EQ(LayoutText(Laid(v1::Parallel::OPTIMIZER, 2, 4)),
            R"({"shard":"OPTIMIZER","layout":{"tensor":2,"pipeline":4}})");
}

TEST(LayoutChange, OfOneRankIsTheSameWhetherItIsSaidOrNot) {
  v1::JobSpec spec = Laid(v1::Parallel::NONE, 1, 1);
  spec.mutable_parallel()->mutable_layout()->set_tensor(1);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(1);
  spec.mutable_parallel()->mutable_layout()->set_sequence(false);
  EXPECT_EQ(LayoutText(spec), R"({"shard":"NONE"})");
}

TEST(LayoutChange, WritesTheDefaultDown) {
  v1::JobSpec spec = Laid(v1::Parallel::SHARD_UNSPECIFIED, 1, 1);
  EXPECT_EQ(LayoutText(spec), R"({"shard":"NONE"})") << "its norm is one of shards";
  spec.mutable_parallel()->set_tensor(1);
  EXPECT_EQ(LayoutText(spec), R"({"shard":"OPTIMIZER"})");
  spec.mutable_parallel()->set_second_owner(true);
  EXPECT_EQ(LayoutText(spec), R"({"shard":"NONE"})");
  spec.mutable_parallel()->clear_second_owner();
  spec.mutable_optimizer()->mutable_muon();
  EXPECT_EQ(LayoutText(spec), R"({"shard":"NONE"})");
}

TEST(LayoutChange, ReplacesTheLayoutAsAWholeAndNothingElse) {
  const v1::JobSpec wanted = Laid(v1::Parallel::OPTIMIZER, 1, 2);
  v1::JobSpec spec = Laid(v1::Parallel::NONE, 4, 1);
  v1::Parallel& parallel = *spec.mutable_parallel();
  ASSERT_TRUE(SetLayout(LayoutText(wanted), parallel).ok());
  EXPECT_EQ(spec.SerializeAsString(), wanted.SerializeAsString());
  ASSERT_TRUE(SetLayout("", parallel).ok());
  EXPECT_EQ(spec.SerializeAsString(), wanted.SerializeAsString()) << "no text says nothing";
  ASSERT_TRUE(SetLayout(R"({"shard":"NONE","of_a_newer_server":1})", parallel).ok());
  EXPECT_FALSE(parallel.has_layout());
  EXPECT_EQ(parallel.logical_ranks(), 8);
}

TEST(LayoutChange, WhatCannotBeReadIsSaid) {
  v1::Parallel parallel;
  const absl::Status read = SetLayout("{tensor", parallel);
  EXPECT_TRUE(absl::IsInternal(read));
  EXPECT_EQ(read.message(), "the stored layout '{tensor' cannot be read");
}

TEST(LayoutChange, IsDescribedWithWhatHasAnEffect) {
  EXPECT_EQ(DescribeLayout(Laid(v1::Parallel::NONE, 1, 1)), "tensor 1, pipeline 1, shard NONE");
  v1::JobSpec spec = Laid(v1::Parallel::OPTIMIZER, 2, 2);
  spec.mutable_parallel()->mutable_layout()->set_chunks(3);
  spec.mutable_parallel()->mutable_layout()->set_sequence(true);
  EXPECT_EQ(DescribeLayout(spec), "tensor 2, pipeline 2 of 3 chunks, sequence, shard OPTIMIZER");
}

}  // namespace
}  // namespace trainyard::plan
