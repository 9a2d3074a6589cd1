// Streams that are recorded together, and what CUDA refuses of it.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace trainyard::emulator {
namespace {

class RecordingTest : public ::testing::Test {
 protected:
  RecordingTest() {
    cudaStreamCreateWithFlags(&origin_, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join_, cudaEventDisableTiming);
  }
  ~RecordingTest() override {
    cudaEventDestroy(fork_);
    cudaEventDestroy(join_);
    cudaStreamDestroy(origin_);
    cudaStreamDestroy(side_);
  }

  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(origin_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  static cudaError_t Copy(int& to, const int& from, cudaStream_t stream) {
    return cudaMemcpyAsync(&to, &from, sizeof(int), cudaMemcpyDeviceToDevice, stream);
  }
  void Fork() {
    ASSERT_EQ(cudaEventRecord(fork_, origin_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(side_, fork_, 0), cudaSuccess);
  }
  void Join() {
    ASSERT_EQ(cudaEventRecord(join_, side_), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(origin_, join_, 0), cudaSuccess);
  }

  cudaStream_t origin_ = nullptr, side_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

TEST_F(RecordingTest, TakesInAStreamThatWaitsForIt) {
  int first = 1, second = 0, third = 0, fourth = 0;
  Begin();
  ASSERT_EQ(Copy(second, first, origin_), cudaSuccess);
  Fork();
  ASSERT_EQ(Copy(third, second, side_), cudaSuccess);
  Join();
  ASSERT_EQ(Copy(fourth, third, origin_), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(origin_, &graph_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(side_), cudaSuccess);
  EXPECT_EQ(fourth, 0);

  cudaGraphExec_t launched = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&launched, graph_, 0), cudaSuccess);
  for (const int value : {7, 8}) {
    first = value;
    ASSERT_EQ(cudaGraphLaunch(launched, origin_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(origin_), cudaSuccess);
    EXPECT_EQ(fourth, value);
  }
  cudaGraphExecDestroy(launched);
  cudaGraphDestroy(graph_);
}

TEST_F(RecordingTest, WorkThatNobodyWaitsForIsRefused) {
  int from = 1, to = 0;
  Begin();
  Fork();
  Join();
  ASSERT_EQ(Copy(to, from, side_), cudaSuccess);  // after the event that the origin waits for
  EXPECT_EQ(cudaStreamEndCapture(origin_, &graph_), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaStreamSynchronize(side_), cudaSuccess) << "the stream is its own again";
}

TEST_F(RecordingTest, NothingRecordedWaitsForWhatIsNot) {
  int from = 1, to = 0;
  ASSERT_EQ(Copy(to, from, side_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(join_, side_), cudaSuccess);
  Begin();
  EXPECT_NE(cudaStreamWaitEvent(origin_, join_, 0), cudaSuccess);
  EXPECT_NE(cudaStreamEndCapture(origin_, &graph_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(side_), cudaSuccess);  // what it copies is this function's
}

TEST_F(RecordingTest, NothingElseWaitsForWhatWasRecorded) {
  int from = 1, to = 0;
  Begin();
  ASSERT_EQ(Copy(to, from, origin_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork_, origin_), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(origin_, &graph_), cudaSuccess);
  EXPECT_NE(cudaStreamWaitEvent(side_, fork_, 0), cudaSuccess);
  cudaGraphDestroy(graph_);
}

}  // namespace
}  // namespace trainyard::emulator
