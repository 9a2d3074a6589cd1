// What the emulator is there to find, planted: an index past the end, a barrier left out, a wrong
// stride, threads that part at a barrier, a wait while a graph is recorded.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "tests/gpu/emulator/watched.h"

namespace trainyard::emulator {
namespace {

enum class Planted { kNothing, kIndex, kBarrier, kStride, kParting };

constexpr int kThreads = 64, kBlocks = 3;

// Reverses each block's numbers through shared memory.
template <Planted kPlanted>
void Reverse(const float* x, float* y) {
  __shared__ float turned[kThreads];
  const int i = threadIdx.x, block = blockIdx.x;
  const int stride = kPlanted == Planted::kStride ? kThreads - 1 : kThreads;
  turned[kThreads - 1 - i] = x[block * stride + i + (kPlanted == Planted::kIndex)];
  if (kPlanted == Planted::kParting && i % 2 == 1) return;
  if (kPlanted != Planted::kBarrier) __syncthreads();
  y[block * kThreads + i] = turned[i];
}

class EmulatorTest : public ::testing::Test {
 protected:
  EmulatorTest() {
    for (int i = 0; i < kThreads * kBlocks; ++i) x_[i] = static_cast<float>(i);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~EmulatorTest() override { cudaStreamDestroy(stream_); }

  // Whether every number lands where it should.
  template <Planted kPlanted>
  bool Reverses() {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kBlocks);
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    EXPECT_EQ(cudaLaunchKernelEx(&config, Reverse<kPlanted>, x_.get(), y_.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (int i = 0; i < kThreads * kBlocks; ++i) {
      if (y_[i] != x_[i / kThreads * kThreads + kThreads - 1 - i % kThreads]) return false;
    }
    return true;
  }

  const std::unique_ptr<float[]> x_{new float[kThreads * kBlocks]};
  const std::unique_ptr<float[]> y_{new float[kThreads * kBlocks]};
  cudaStream_t stream_ = nullptr;
};

using EmulatorDeathTest = EmulatorTest;

TEST_F(EmulatorTest, RunsWhatIsRight) { EXPECT_TRUE(Reverses<Planted::kNothing>()); }

TEST_F(EmulatorTest, AWrongStrideGivesOtherNumbers) { EXPECT_FALSE(Reverses<Planted::kStride>()); }

// Threads run in another order in every block.
TEST_F(EmulatorTest, AMissingBarrierGivesOtherNumbers) {
  if (kWatchedForRaces) GTEST_SKIP() << "ends the program";
  EXPECT_FALSE(Reverses<Planted::kBarrier>());
}

TEST_F(EmulatorDeathTest, AMissingBarrierIsARace) {
  if (!kWatchedForRaces) GTEST_SKIP() << "for ThreadSanitizer to see";
  EXPECT_DEATH(Reverses<Planted::kBarrier>(), "data race");
}

TEST_F(EmulatorDeathTest, AnIndexPastTheEndIsSeen) {
  if (!kWatchedForBounds) GTEST_SKIP() << "for AddressSanitizer to see";
  EXPECT_DEATH(Reverses<Planted::kIndex>(), "heap-buffer-overflow");
}

TEST_F(EmulatorDeathTest, ThreadsThatPartAtABarrierEndTheProgram) {
  EXPECT_DEATH(Reverses<Planted::kParting>(), "wait at a barrier .* that others never reach");
}

TEST_F(EmulatorTest, NobodyWaitsWhileAGraphIsRecorded) {
  ASSERT_TRUE(Reverses<Planted::kNothing>());
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_NE(cudaStreamSynchronize(stream_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
}

}  // namespace
}  // namespace trainyard::emulator
