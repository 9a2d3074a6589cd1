// Jobs that leave their mesh to the service (parallel.auto), by the memory of the slots that there
// are.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class MeshChoiceTest : public ::testing::Test {
 protected:
  // Wide, on four slots, so that what ranks can share out is most of what they need.
  static v1::SubmitJobRequest Request(v1::Parallel::Shard shard) {
    v1::SubmitJobRequest request;
    request.set_parent("projects/default");
    v1::Job& job = *request.mutable_job();
    job = SmallJob("open");
    v1::JobSpec& spec = *job.mutable_spec();
    spec.mutable_model()->mutable_gpt()->set_width(512);
    spec.mutable_model()->mutable_gpt()->set_layers(4);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_resources()->set_min_slots(4);
    spec.mutable_training()->set_batch_size(4);
    spec.mutable_training()->set_micro_batch_size(1);
    spec.mutable_parallel()->set_shard(shard);
    return request;
  }
  static v1::SubmitJobRequest Open() {
    v1::SubmitJobRequest request = Request(v1::Parallel::SHARD_UNSPECIFIED);
    request.mutable_job()->mutable_spec()->mutable_parallel()->set_auto_(true);
    return request;
  }
  grpc::Status Submit(const v1::SubmitJobRequest& request) {
    response_.Clear();
    return rig_.jobs().SubmitJob(Rig::Context().get(), request, &response_);
  }
  int64_t BytesWith(v1::Parallel::Shard shard) {
    v1::SubmitJobRequest request = Request(shard);
    request.set_validate_only(true);
    const grpc::Status status = Submit(request);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response_.plan().bytes_per_slot();
  }

  void AddNode(const std::string& name, int slots, int64_t slot_bytes) {
    agents_.push_back(std::make_unique<ScriptedAgent>(rig_));
    agents_.back()->Register(name, slots, "i1", slot_bytes);
    agents_.back()->Welcomed();
  }
  // Four slots that hold the job with its gradients in shards, and not as it is. Returns their
  // bytes.
  int64_t AddSmallSlots() {
    const int64_t gradients = BytesWith(v1::Parallel::GRADIENTS);
    EXPECT_LT(gradients, BytesWith(v1::Parallel::OPTIMIZER));
    AddNode("four", 4, gradients);
    return gradients;
  }

  explicit MeshChoiceTest(const ServerOptions& options = Rig::FastOptions()) : rig_(options) {}

  Rig rig_;
  std::vector<std::unique_ptr<ScriptedAgent>> agents_;
  v1::Job response_;
};

TEST_F(MeshChoiceTest, IsStoredWithTheJobAndToldWithItsPlan) {
  const int64_t gradients = AddSmallSlots();
  const grpc::Status status = Submit(Open());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.spec().parallel().shard(), v1::Parallel::GRADIENTS);
  EXPECT_FALSE(response_.spec().parallel().auto_());
  EXPECT_EQ(response_.plan().bytes_per_slot(), gradients);
  EXPECT_THAT(response_.plan().chosen(), StartsWith("shard GRADIENTS needs "));
  EXPECT_THAT(response_.plan().chosen(), HasSubstr("; the job as it is needs "));
}

TEST_F(MeshChoiceTest, IsThatOfTheFirstCallWhenItIsReplayed) {
  const int64_t gradients = AddSmallSlots();
  v1::SubmitJobRequest request = Open();
  request.set_request_id("the-same-call-again");
  request.mutable_job()->clear_job_id();
  ASSERT_TRUE(Submit(request).ok());
  const v1::Job first = response_;
  AddNode("larger", 4, 64 * gradients);
  const grpc::Status status = Submit(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.uid(), first.uid());
  EXPECT_EQ(response_.spec().parallel().shard(), v1::Parallel::GRADIENTS);
  // Another job under the same id is told so, as ever; what the caller says counts.
  request.mutable_job()->mutable_spec()->mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  EXPECT_EQ(Submit(request).error_code(), grpc::ALREADY_EXISTS);
  request.mutable_job()->mutable_spec()->mutable_parallel()->clear_shard();
  request.mutable_job()->mutable_spec()->mutable_training()->set_steps(4);
  EXPECT_EQ(Submit(request).error_code(), grpc::ALREADY_EXISTS);
}

TEST_F(MeshChoiceTest, IsMadeForEachOfABatch) {
  AddSmallSlots();
  v1::BatchSubmitJobsRequest batch;
  batch.set_parent("projects/default");
  *batch.add_requests() = Open();
  *batch.add_requests() = Request(v1::Parallel::PARAMETERS);
  batch.mutable_requests(1)->mutable_job()->set_job_id("said");
  v1::BatchSubmitJobsResponse answer;
  ASSERT_TRUE(rig_.jobs().BatchSubmitJobs(Rig::Context().get(), batch, &answer).ok());
  EXPECT_EQ(answer.results(0).job().spec().parallel().shard(), v1::Parallel::GRADIENTS);
  EXPECT_EQ(answer.results(1).job().spec().parallel().shard(), v1::Parallel::PARAMETERS);
}

TEST_F(MeshChoiceTest, IsWhatPlanLayoutsTellsOf) {
  const int64_t gradients = AddSmallSlots();
  v1::PlanLayoutsRequest request;
  request.set_parent("projects/default");
  *request.mutable_job() = Open().job();
  request.add_slots(4);
  v1::PlanLayoutsResponse answer;
  const grpc::Status status = rig_.jobs().PlanLayouts(Rig::Context().get(), request, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer.layouts(0).bytes_per_slot(), gradients);
  EXPECT_EQ(answer.job().spec().parallel().shard(), v1::Parallel::GRADIENTS);
  EXPECT_THAT(answer.job().plan().chosen(), StartsWith("shard GRADIENTS needs "));
}

// Links to more ranks take memory, too: what fits is what a slot needs on any number of them.
TEST_F(MeshChoiceTest, OfAnElasticJobHoldsOnAllItsNumbersOfSlots) {
  v1::SubmitJobRequest request = Open();
  v1::JobSpec& spec = *request.mutable_job()->mutable_spec();
  spec.mutable_resources()->set_max_slots(8);
  spec.mutable_training()->set_batch_size(8);
  request.set_validate_only(true);
  ASSERT_TRUE(Submit(request).ok());
  const int64_t whole = response_.plan().bytes_per_slot();
  AddNode("eight", 8, whole - 1);
  const grpc::Status status = Submit(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_NE(response_.spec().parallel().shard(), v1::Parallel::SHARD_UNSPECIFIED);
  EXPECT_LT(response_.plan().bytes_per_slot(), whole);
}

TEST_F(MeshChoiceTest, WaitsForNothingWhereNoNodeEverRegistered) {
  ASSERT_TRUE(Submit(Open()).ok());
  EXPECT_EQ(response_.spec().parallel().shard(), v1::Parallel::SHARD_UNSPECIFIED);
  EXPECT_FALSE(response_.spec().parallel().auto_());
  EXPECT_EQ(response_.plan().chosen(), "");
}

TEST_F(MeshChoiceTest, SaysWhatNeedsLeastWhereNothingFits) {
  AddNode("four", 4, 1 << 20);
  const grpc::Status status = Submit(Open());
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(
      status.error_message(),
      StartsWith("spec.parallel.auto: nothing that could be chosen fits; what needs least is "));
  EXPECT_THAT(status.error_message(), HasSubstr("the largest CPU slot has 1.0 MiB"));
}

// No helper is ever free to plan.
class NobodyPlansTest : public MeshChoiceTest {
 protected:
  static ServerOptions Options() {
    ServerOptions options = Rig::FastOptions();
    options.sizer.planners = 0;
    options.sizer.longest = absl::Milliseconds(300);
    return options;
  }
  NobodyPlansTest() : MeshChoiceTest(Options()) {}
};

TEST_F(NobodyPlansTest, SaysSoInsteadOfTellingOfAnotherMesh) {
  AddSmallSlots();
  EXPECT_EQ(Submit(Open()).error_code(), grpc::UNAVAILABLE);
  v1::PlanLayoutsRequest request;
  request.set_parent("projects/default");
  *request.mutable_job() = Open().job();
  v1::PlanLayoutsResponse answer;
  const grpc::Status status = rig_.jobs().PlanLayouts(Rig::Context().get(), request, &answer);
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << answer.ShortDebugString();
  EXPECT_THAT(status.error_message(), StartsWith("spec.parallel.auto: the server is busy"));
  // What is refused is refused all the same, only without advice.
  const grpc::Status refused = Submit(Request(v1::Parallel::NONE));
  EXPECT_EQ(refused.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("; what would fit could not be found out now"));
}

}  // namespace
}  // namespace trainyard
