// PlanLayouts: a job on other numbers of slots.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class LayoutsTest : public ::testing::Test {
 protected:
  static v1::PlanLayoutsRequest Request() {
    v1::PlanLayoutsRequest request;
    request.set_parent("projects/default");
    v1::Job& job = *request.mutable_job();
    job = SmallJob("cut");
    job.mutable_spec()->mutable_training()->set_batch_size(8);
    job.mutable_spec()->mutable_parallel()->set_logical_ranks(8);
    return request;
  }
  grpc::Status Plan(const v1::PlanLayoutsRequest& request, const std::string& token = kAdminToken) {
    response_.Clear();
    return rig_.jobs().PlanLayouts(Rig::Context(token).get(), request, &response_);
  }
  std::vector<int> Slots() const {
    std::vector<int> slots;
    for (const v1::LayoutPlan& layout : response_.layouts()) slots.push_back(layout.slots());
    return slots;
  }

  Rig rig_;
  v1::PlanLayoutsResponse response_;
};

TEST_F(LayoutsTest, TellsOfThoseWorthHavingAndWritesNothing) {
  const grpc::Status status = Plan(Request());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(Slots(), ElementsAre(1, 2, 3, 4, 8));
  EXPECT_EQ(response_.layouts(0).sent_bytes_per_step(), 0);
  EXPECT_GT(response_.layouts(1).sent_bytes_per_step(), 0);
  EXPECT_GT(response_.job().plan().parameters(), 0);
  EXPECT_EQ(response_.layouts(0).bytes_per_slot(), response_.job().plan().bytes_per_slot())
      << "the job asks for one slot";
  EXPECT_TRUE(response_.job().uid().empty());
  EXPECT_TRUE(rig_.stores().jobs().List("-", {}, 10, "")->jobs.empty());
}

TEST_F(LayoutsTest, TellsOfThoseThatAreAskedFor) {
  v1::PlanLayoutsRequest request = Request();
  for (const int slots : {5, 2, 5}) request.add_slots(slots);
  request.set_slot_flops_per_second(1e12);
  request.set_link_bytes_per_second(1e9);
  request.mutable_job()->mutable_spec()->mutable_resources()->set_min_slots(5);
  ASSERT_TRUE(Plan(request).ok());
  EXPECT_THAT(Slots(), ElementsAre(5, 2, 5));
  EXPECT_GT(response_.layouts(0).step_seconds(), 0);
  EXPECT_THAT(response_.advice(), HasSubstr("8 logical ranks on 5 slots"));
}

TEST_F(LayoutsTest, VaryHowManyRanksShareShardsForWhoAsks) {
  v1::PlanLayoutsRequest request = Request();
  v1::JobSpec& spec = *request.mutable_job()->mutable_spec();
  spec.mutable_model()->mutable_gpt()->set_heads(2);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_parallel()->set_tensor(2);
  const auto layouts = [&] {
    const grpc::Status status = Plan(request);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::pair<int, int>> all;
    for (const v1::LayoutPlan& layout : response_.layouts()) {
      all.emplace_back(layout.slots(), layout.layout().tensor());
      EXPECT_GT(layout.bytes_per_slot(), 0);
    }
    return all;
  };
  EXPECT_THAT(layouts(), ElementsAre(Pair(1, 1), Pair(2, 1))) << "a client of before";
  request.set_vary_layout(true);
  EXPECT_THAT(layouts(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(2, 2), Pair(4, 2)));
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  spec.mutable_resources()->set_min_slots(4);
  EXPECT_THAT(layouts(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(2, 2), Pair(4, 2)));
  request.set_vary_layout(false);
  EXPECT_THAT(layouts(), ElementsAre(Pair(2, 2), Pair(4, 2))) << "as the job asks";
  request.add_slots(3);
  ASSERT_TRUE(Plan(request).ok());
  EXPECT_THAT(response_.layouts(0).refused(), HasSubstr("2 does not divide the 3 slots"));
  request.set_slots(0, 5);
  EXPECT_THAT(Plan(request).error_message(),
              HasSubstr("slots: found 5, expected 1 to 4, the logical ranks of the job "
                        "(spec.parallel.logical_ranks) times 2 ranks that share each"));
}

TEST_F(LayoutsTest, RefusesWithTheFieldAndWhatWasExpected) {
  const auto refused = [&](const v1::PlanLayoutsRequest& request, grpc::StatusCode code,
                           const std::string& words, const std::string& token = kAdminToken) {
    const grpc::Status status = Plan(request, token);
    EXPECT_EQ(status.error_code(), code);
    EXPECT_THAT(status.error_message(), HasSubstr(words));
  };
  v1::PlanLayoutsRequest request = Request();
  request.add_slots(9);
  refused(request, grpc::INVALID_ARGUMENT, "slots: found 9, expected 1 to 8, the logical ranks");
  request.set_slots(0, -1);
  refused(request, grpc::INVALID_ARGUMENT, "slots: found -1, expected 1 to 8");
  for (int i = 0; i < 64; ++i) request.add_slots(1);
  refused(request, grpc::INVALID_ARGUMENT, "slots: found 65 numbers, expected at most 64");
  request = Request();
  request.mutable_job()->mutable_spec()->mutable_training()->set_batch_size(4096);
  request.mutable_job()->mutable_spec()->mutable_parallel()->set_logical_ranks(4096);
  request.add_slots(1025);
  refused(request, grpc::INVALID_ARGUMENT, "slots: found 1025, expected 1 to 1024");
  request = Request();
  request.set_slot_flops_per_second(std::numeric_limits<double>::quiet_NaN());
  refused(request, grpc::INVALID_ARGUMENT, "slot_flops_per_second: found nan");
  request = Request();
  request.set_link_bytes_per_second(-1);
  refused(request, grpc::INVALID_ARGUMENT, "link_bytes_per_second: found -1");
  request = Request();
  request.mutable_job()->mutable_spec()->clear_model();
  refused(request, grpc::INVALID_ARGUMENT, "spec.model");
  request = Request();
  request.set_parent("nowhere");
  refused(request, grpc::INVALID_ARGUMENT, "parent");
  refused(Request(), grpc::UNAUTHENTICATED, "", "wrong");
}

}  // namespace
}  // namespace trainyard
