// NCCL's own errors, and what it refuses, in the emulator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/nccl_library.h"
#include "storage/base/status.h"
#include "tests/gpu/emulator/stream.h"
#include "tests/gpu/gang/gpu_rank.h"
#include "tests/unit/engine/parallel/rounds.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

absl::Status ExchangeTen(GpuRank& rank) {
  const DeviceBytes from(*rank.device, 10), to(*rank.device, 10);
  from.Write(*rank.stream, "0123456789");
  TY_RETURN_IF_ERROR(rank.links->Exchange(
      *rank.stream, {{.peer = 1 - rank.rank(), .send = from.span(), .receive = to.span()}}));
  return rank.Await(*rank.stream);
}

TEST(NcclFault, AnErrorOfNcclFailsAllRanksAndNamesTheOneThatMetIt) {
  const auto ranks = TestRendezvous(2, LinkKind::kMemory);
  Gang gang(ranks, MeetingOnGpus([](GpuRank& rank, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(ExchangeTen(rank));
              if (rank.rank() == 1) emulator::NcclFault() = kernels::cuda::kNcclRemoteError;
              const absl::Status status = ExchangeTen(rank);
              if (rank.links->Health() != status) return absl::InternalError("another failure");
              return status;
            }));
  EXPECT_THAT(gang.Results(),
              Each(AllOf(HasSubstr("remote process exited"), HasSubstr(Name(ranks, 1)))));
}

// A one-rank communicator by NCCL's own calls.
class NcclCallsTest : public ::testing::Test {
 protected:
  NcclCallsTest() : nccl_(**kernels::cuda::LoadNccl()) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    kernels::cuda::NcclUniqueId id;
    EXPECT_EQ(nccl_.GetUniqueId(&id), kernels::cuda::kNcclSuccess);
    kernels::cuda::NcclConfig config = {.blocking = 0};
    EXPECT_EQ(nccl_.CommInitRankConfig(&comm_, 1, id, 0, &config), kernels::cuda::kNcclInProgress);
    EXPECT_EQ(AsyncError(), kernels::cuda::kNcclSuccess);
  }
  ~NcclCallsTest() override {
    if (comm_ != nullptr) nccl_.CommAbort(comm_);
    cudaStreamDestroy(stream_);
  }

  kernels::cuda::NcclResult AsyncError() {
    kernels::cuda::NcclResult error = kernels::cuda::kNcclSuccess;
    EXPECT_EQ(nccl_.CommGetAsyncError(comm_, &error), kernels::cuda::kNcclSuccess);
    return error;
  }
  kernels::cuda::NcclResult Gather() {
    return nccl_.AllGather(from_, to_, 4, kernels::cuda::kNcclBytes, comm_, stream_);
  }

  const kernels::cuda::Nccl& nccl_;
  kernels::cuda::NcclComm comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  char from_[4] = {'a', 'b', 'c', 'd'}, to_[4] = {};
};
using NcclCallsDeathTest = NcclCallsTest;

TEST_F(NcclCallsTest, WhatConnectsRanksIsEnqueuedLate) {
  EXPECT_EQ(Gather(), kernels::cuda::kNcclInProgress);
  EXPECT_EQ(Gather(), kernels::cuda::kNcclInvalidUsage);  // too early
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(to_[0], 0);
  while (AsyncError() == kernels::cuda::kNcclInProgress) {
  }
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(to_[0], 'a');
  EXPECT_EQ(Gather(), kernels::cuda::kNcclSuccess);
}

TEST_F(NcclCallsTest, WhatConnectsRanksIsNotRecorded) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(Gather(), kernels::cuda::kNcclUnhandledCudaError);
  EXPECT_THAT(nccl_.GetLastError(comm_), HasSubstr("in a recording"));
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
}

TEST_F(NcclCallsTest, ARankIsTakenOnce) {
  kernels::cuda::NcclUniqueId id;
  ASSERT_EQ(nccl_.GetUniqueId(&id), kernels::cuda::kNcclSuccess);
  kernels::cuda::NcclConfig config = {.blocking = 0};
  kernels::cuda::NcclComm first = nullptr, second = nullptr;
  EXPECT_EQ(nccl_.CommInitRankConfig(&first, 2, id, 0, &config), kernels::cuda::kNcclInProgress);
  EXPECT_EQ(nccl_.CommInitRankConfig(&second, 2, id, 0, &config),
            kernels::cuda::kNcclInvalidArgument);
  EXPECT_EQ(nccl_.CommInitRankConfig(&second, 3, id, 1, &config),
            kernels::cuda::kNcclInvalidArgument);
  EXPECT_EQ(nccl_.CommAbort(first), kernels::cuda::kNcclSuccess);
}

TEST_F(NcclCallsTest, AnIdThatNamesNothingIsRefused) {
  kernels::cuda::NcclUniqueId id = {};
  kernels::cuda::NcclConfig config = {.blocking = 0};
  kernels::cuda::NcclComm comm = nullptr;
  EXPECT_EQ(nccl_.CommInitRankConfig(&comm, 1, id, 0, &config), kernels::cuda::kNcclRemoteError);
}

TEST_F(NcclCallsDeathTest, AnOperationOutlivesItsCommunicatorInARecording) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a communicator has a thread
  EXPECT_EQ(Gather(), kernels::cuda::kNcclInProgress);
  while (AsyncError() == kernels::cuda::kNcclInProgress) {
  }
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(Gather(), kernels::cuda::kNcclSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t recorded = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&recorded, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  ASSERT_EQ(nccl_.CommDestroy(std::exchange(comm_, nullptr)), kernels::cuda::kNcclSuccess);
  EXPECT_DEATH(
      {
        cudaGraphLaunch(recorded, stream_);
        cudaStreamSynchronize(stream_);
      },
      "of a communicator that was destroyed");
  cudaGraphExecDestroy(recorded);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace trainyard::engine::testing
