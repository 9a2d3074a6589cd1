// What we ask of cuDNN, asked of the real library on a machine without a GPU: it makes plans for
// GPUs that are described to it, compiles kernels for them, and says how much workspace they want.
// Nothing is run.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/convolution_plan.h"

namespace trainyard::kernels::cuda {
namespace {

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_bytes, l2_bytes;
  int64_t memory_bytes;

  std::string Json() const {
    return absl::StrCat(
        R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
        R"("regsPerBlock":65536,"multiProcessorCount":)", multiprocessors,
        R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)",
        shared_bytes, R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)",
        R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,)",
        R"("isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":)", memory_bytes,
        R"(,"smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":)", l2_bytes,
        R"(,"cudaDeviceId":0,"deviceVer":)", capability, R"(,"driverVer":13000,"deviceName":")",
        name, R"("})");
  }
};

// Data sheets and the programming guide's table of compute capabilities.
const Gpu kH100 = {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 85014347776};
const Gpu kA100 = {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85031714816};

void PrintTo(const Gpu& gpu, std::ostream* out) { *out << gpu.name; }

class CudnnPlansTest : public ::testing::TestWithParam<Gpu> {
 protected:
  static void SetUpTestSuite() {
    // Before the library looks for a driver.
    ASSERT_NE(dlopen(TY_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  PlanTarget Target() const { return PlanTarget::Described(GetParam().Json()).value(); }
};

constexpr ConvolutionDirection kDirections[] = {ConvolutionDirection::kForward,
                                                ConvolutionDirection::kDataGradient,
                                                ConvolutionDirection::kWeightGradient};

// ResNet-50 for images of 224 x 224, all that differ (He et al. 2015, table 1, stride in the 3x3).
std::vector<ConvolutionShape> ResNet50(int64_t batch) {
  std::vector<ConvolutionShape> shapes = {{.batch = batch,
                                           .height = 224,
                                           .width = 224,
                                           .in = 3,
                                           .out = 64,
                                           .kernel_height = 7,
                                           .kernel_width = 7,
                                           .stride = 2,
                                           .pad = 3}};
  const auto add = [&](int64_t side, int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    shapes.push_back({.batch = batch,
                      .height = side,
                      .width = side,
                      .in = in,
                      .out = out,
                      .kernel_height = kernel,
                      .kernel_width = kernel,
                      .stride = stride,
                      .pad = kernel / 2});
  };
  int64_t side = 56, in = 64;
  for (int64_t width = 64; width <= 512; width *= 2) {
    const int64_t stride = width == 64 ? 1 : 2;
    add(side, in, width, 1, 1);
    add(side, width, width, 3, stride);
    add(side, in, 4 * width, 1, stride);
    side /= stride;
    add(side, width, 4 * width, 1, 1);
    add(side, 4 * width, width, 1, 1);
    add(side, width, width, 3, 1);
    in = 4 * width;
  }
  return shapes;
}

// Of the small families and of the tests: few channels, odd sizes, groups, patches.
std::vector<ConvolutionShape> Others() {
  return {
      {.batch = 128,
       .height = 28,
       .width = 28,
       .in = 1,
       .out = 32,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      {.batch = 64,
       .height = 32,
       .width = 32,
       .in = 3,
       .out = 64,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1},
      {.batch = 2,
       .height = 7,
       .width = 5,
       .in = 3,
       .out = 4,
       .kernel_height = 3,
       .kernel_width = 2,
       .stride = 2,
       .pad = 1},
      {.batch = 64,
       .height = 16,
       .width = 16,
       .in = 32,
       .out = 32,
       .kernel_height = 3,
       .kernel_width = 3,
       .pad = 1,
       .groups = 32},
      {.batch = 64,
       .height = 16,
       .width = 16,
       .in = 96,
       .out = 96,
       .kernel_height = 3,
       .kernel_width = 3,
       .stride = 2,
       .pad = 1,
       .groups = 96},
      {.batch = 64,
       .height = 224,
       .width = 224,
       .in = 3,
       .out = 768,
       .kernel_height = 16,
       .kernel_width = 16,
       .stride = 16},
  };
}

TEST_P(CudnnPlansTest, EveryConvolutionHasAPlan) {
  const PlanTarget target = Target();
  std::vector<ConvolutionShape> shapes = ResNet50(128);
  for (const ConvolutionShape& shape : Others()) shapes.push_back(shape);
  for (const ConvolutionShape& shape : shapes) {
    for (const ConvolutionDirection direction : kDirections) {
      for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
        const ConvolutionAsked asked = {.direction = direction, .shape = shape, .type = type};
        const auto plans = PlansOf(target, asked);
        ASSERT_TRUE(plans.ok()) << NameOf(asked) << ": " << plans.status();
        for (const auto& plan : *plans) {
          EXPECT_LE(plan->workspace_bytes(), kMostConvolutionWorkspace) << NameOf(asked);
        }
        // The large ones are worth a choice.
        if (shape.batch == 128 && type != DType::kF32 && shape.in > 3) {
          EXPECT_GT(plans->size(), 1) << NameOf(asked);
        }
      }
    }
  }
}

TEST_P(CudnnPlansTest, AFileMakesTheSamePlan) {
  const PlanTarget target = Target();
  const ConvolutionAsked asked = {.shape = ResNet50(8)[2], .type = DType::kBF16};
  const auto plans = PlansOf(target, asked);
  ASSERT_TRUE(plans.ok()) << plans.status();
  for (const auto& plan : *plans) {
    const std::string text = plan->Serialized();
    ASSERT_FALSE(text.empty());
    const auto again = Plan::Deserialize(target, text);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->workspace_bytes(), plan->workspace_bytes());
    EXPECT_EQ((*again)->Serialized(), text);
  }
  const std::string text = plans->front()->Serialized();
  EXPECT_FALSE(Plan::Deserialize(target, text.substr(0, text.size() / 2)).ok());
  EXPECT_FALSE(Plan::Deserialize(target, "").ok());
  EXPECT_FALSE(Plan::Deserialize(target, "{}").ok());
}

TEST_P(CudnnPlansTest, AGroupThatDoesNotFitIsRefused) {
  const auto plans = PlansOf(Target(), {.shape = {.batch = 2,
                                                  .height = 8,
                                                  .width = 8,
                                                  .in = 6,
                                                  .out = 5,
                                                  .kernel_height = 3,
                                                  .kernel_width = 3,
                                                  .groups = 3}});
  EXPECT_FALSE(plans.ok());
}

AttentionBackward Attention(int64_t batch, int64_t time, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, bool causal, DType type) {
  AttentionBackward op;
  op.qkv.dtype = type;
  op.batch = batch, op.time = time, op.heads = heads, op.kv_heads = kv_heads;
  op.head_dim = head_dim, op.causal = causal;
  return op;
}

AttentionForward ForwardOf(const AttentionBackward& op) {
  AttentionForward forward;
  forward.qkv = op.qkv;
  forward.batch = op.batch, forward.time = op.time, forward.heads = op.heads;
  forward.kv_heads = op.kv_heads, forward.head_dim = op.head_dim, forward.causal = op.causal;
  return forward;
}

TEST_P(CudnnPlansTest, AttentionHasPlansThatStoreNoScoresOfTheWholeBatch) {
  const PlanTarget target = Target();
  for (const AttentionBackward& op :
       {Attention(32, 1024, 12, 12, 64, true, DType::kBF16),  // GPT-2
        Attention(4, 2048, 32, 8, 128, true, DType::kBF16),   // llama, queries in groups
        Attention(64, 197, 12, 12, 64, false, DType::kF16),   // ViT-B/16
        Attention(1, 256, 4, 4, 32, true, DType::kBF16),      // a small job
        Attention(3, 100, 6, 2, 48, true, DType::kF16)}) {
    const auto forward = PlansOf(target, ForwardOf(op));
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_LT(forward->front()->workspace_bytes(), 1 << 20);
    const AttentionPiece piece = PieceOf(op);
    const auto backward = PlansOf(target, op, piece);
    ASSERT_TRUE(backward.ok()) << backward.status();
    const int64_t group = op.heads / op.kv_heads;
    const int64_t rows = piece.samples * piece.kv_heads * group * op.time;
    // Gradients of scores, of 16 bits, in whole tiles of 128.
    const int64_t tiles = (op.time + 127) / 128 * 128;
    EXPECT_LE(backward->front()->workspace_bytes(), rows / op.time * tiles * tiles * 2 + (1 << 20));
    // A plan that stored none would add the gradients by queries with atomics.
    EXPECT_GE(backward->front()->workspace_bytes(), rows * op.time * 2);
    // With what was compiled for it.
    const auto again = Plan::Deserialize(target, backward->front()->Serialized());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->workspace_bytes(), backward->front()->workspace_bytes());
  }
}

TEST(AttentionPieceTest, IsAsLargeAsItsBytesAllow) {
  const auto piece = [](const AttentionBackward& op, size_t bytes) {
    const AttentionPiece of = PieceOf(op, bytes);
    EXPECT_EQ(op.batch % of.samples, 0);
    EXPECT_EQ(op.kv_heads % of.kv_heads, 0);
    return std::pair(of.samples, of.kv_heads);
  };
  const AttentionBackward gpt = Attention(32, 1024, 12, 12, 64, true, DType::kBF16);
  EXPECT_EQ(piece(gpt, size_t{1} << 30), std::pair(int64_t{32}, int64_t{12}));
  EXPECT_EQ(piece(gpt, 12 * 2 << 20), std::pair(int64_t{1}, int64_t{12}));
  EXPECT_EQ(piece(gpt, 12 * 2 * 9 << 20), std::pair(int64_t{8}, int64_t{12}));
  EXPECT_EQ(piece(gpt, 12 * 2 * 5 << 18), std::pair(int64_t{1}, int64_t{12}));
  EXPECT_EQ(piece(gpt, 5 * 2 << 20), std::pair(int64_t{1}, int64_t{4}));
  EXPECT_EQ(piece(gpt, 1), std::pair(int64_t{1}, int64_t{1}));
  const AttentionBackward llama = Attention(4, 4096, 32, 8, 128, true, DType::kBF16);
  EXPECT_EQ(piece(llama, size_t{256} << 20), std::pair(int64_t{1}, int64_t{2}));
}

INSTANTIATE_TEST_SUITE_P(, CudnnPlansTest, ::testing::Values(kH100, kA100), [](const auto& tested) {
  return absl::StrCat("Capability", tested.param.capability);
});

}  // namespace
}  // namespace trainyard::kernels::cuda
