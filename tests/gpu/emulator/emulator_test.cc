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

// Element (9, 11) of a times element (11, 3) of b, in the places that the PTX manual gives them.
void OneProduct(float* found) {
  const int lane = threadIdx.x;
  uint32_t a[4] = {}, b[2] = {};
  float c[4] = {};
  if (lane == 5) a[3] = 0x40000000;   // 2 in bf16, in the upper half
  if (lane == 13) b[1] = 0x40400000;  // 3
  kernels::cuda::Mma<kernels::BFloat16>(c, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) found[4 * lane + i] = c[i];
}

// Of a tile whose element is its place.
void FourMatrices(uint32_t* found, bool transposed, int shift) {
  auto* const tile = kernels::cuda::DynamicShared<uint16_t>();
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) tile[i] = static_cast<uint16_t>(i);
  __syncthreads();
  uint32_t words[4];
  const uint16_t* row = tile + 8 * lane + shift;
  transposed ? kernels::cuda::LoadTransposed(words, row) : kernels::cuda::LoadMatrices(words, row);
  for (int i = 0; i < 4; ++i) found[4 * lane + i] = words[i];
}

// Half of the warp shuffles while the other half multiplies.
void PartAtExchange(float* found) {
  float c[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 16) {
    found[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  } else {
    kernels::cuda::Mma<kernels::BFloat16>(c, a, 0, 0);
  }
}

class MmaTest : public EmulatorTest {
 protected:
  template <typename... Parameters, typename... Arguments>
  void RunWarp(void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32);
    config.dynamicSmemBytes = 512;
    config.stream = stream_;
    ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
};
using MmaDeathTest = MmaTest;

TEST_F(MmaTest, FragmentsLieWhereTheManualSays) {
  float found[128];
  RunWarp(OneProduct, &found[0]);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(found[i], i == 4 * 5 + 3 ? 6.0f : 0.0f) << i;
}

TEST_F(MmaTest, MatricesAreLoadedAsTheManualSays) {
  uint32_t found[128];
  RunWarp(FourMatrices, &found[0], false, 0);
  EXPECT_EQ(found[4 * 13 + 2], 155u << 16 | 154u);  // matrix 2, row 3, columns 2 and 3
  RunWarp(FourMatrices, &found[0], true, 0);
  EXPECT_EQ(found[4 * 13 + 2], 155u << 16 | 147u);  // rows 2 and 3 of column 3
}

TEST_F(MmaDeathTest, RowsOfMatricesAreAligned) {
  uint32_t found[128];
  EXPECT_DEATH(RunWarp(FourMatrices, &found[0], false, 1), "trap");
}

TEST_F(MmaDeathTest, AWarpDoesOneThingAtATime) {
  float found[32];
  EXPECT_DEATH(RunWarp(PartAtExchange, &found[0]), "lanes of a warp do different things");
}

}  // namespace
}  // namespace trainyard::emulator
