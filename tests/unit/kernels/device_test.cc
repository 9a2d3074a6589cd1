#include <omp.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/device.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

using testing::HasSubstr;

TEST(CpuDevice, TakesMoreThreadsThanTheMachineHas) {
  const int more = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  const auto device = OpenCpu(more);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->Threads(), more);
}

TEST(CpuDevice, RefusesNumbersOfThreadsThatAreNone) {
  for (const int threads : {0, -1, 1'000'000}) {
    const auto device = OpenCpu(threads);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << threads;
  }
}

TEST(CpuDevice, DescribesItself) { EXPECT_EQ((*OpenCpu(1))->Description(), "cpu x1"); }

TEST(CpuDevice, MemoryIsAlignedAndCopiesComeBack) {
  auto device = *OpenCpu(1);
  auto stream = device->MakeStream();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{5} << 20}) {
    const absl::StatusOr<void*> data = device->Allocate(bytes);
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 64, 0u);
    const std::vector<char> out(bytes, 'x');
    std::vector<char> back(bytes);
    device->CopyIn(*stream, *data, out.data(), bytes);
    device->CopyOut(*stream, back.data(), *data, bytes);
    EXPECT_TRUE(device->Synchronize(*stream).ok());
    EXPECT_EQ(out, back);
  }
}

TEST(CpuDevice, RefusesMoreMemoryThanAnAddressSpace) {
#if !defined(__SANITIZE_ADDRESS__)
  const auto device = *OpenCpu(1);
  EXPECT_EQ(device->Allocate(size_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
#else
  GTEST_SKIP() << "the address sanitizer ends the program instead";
#endif
}

TEST(CpuDevice, OpsThatTurnByTheSameAnglesShareOneTableAsLongAsTheyLive) {
  Bench bench(AllCpuCases().front());
  auto& device = static_cast<CpuDevice&>(bench.device());
  const int64_t time = 6, head_dim = 8, one = 4 * time * head_dim;
  const Buffer x = bench.Floats(2 * 2 * time * head_dim);
  Rotary op{.x = x, .y = x, .batch = 1, .time = time, .heads = 1, .rotated = 1};
  op.head_dim = head_dim;
  std::vector<Kernel> kernels;
  const auto prepare = [&] {
    kernels.push_back(device.Prepare(op).value());
    return device.table_bytes();
  };
  EXPECT_EQ(device.table_bytes(), 0);
  EXPECT_EQ(prepare(), one);
  op.inverse = true;
  EXPECT_EQ(prepare(), one);
  op.batch = 2, op.heads = 2;
  EXPECT_EQ(prepare(), one);
  kernels.resize(1);
  EXPECT_EQ(device.table_bytes(), one);
  op.theta = 500;
  EXPECT_EQ(prepare(), 2 * one);
  op.time = 3;
  EXPECT_EQ(prepare(), 5 * one / 2);
  op.head_dim = 4;
  EXPECT_EQ(prepare(), 11 * one / 4);
  kernels.resize(2);
  EXPECT_EQ(device.table_bytes(), 2 * one);
  kernels.clear();
  EXPECT_EQ(device.table_bytes(), 0);
}

TEST(CpuDevice, NamesAMissingOperand) {
  Bench bench(AllCpuCases().front());
  const Buffer x = bench.Floats(4);
  const absl::Status status =
      bench.device().Prepare(Matmul{.a = x, .c = x, .m = 2, .n = 2, .k = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("matmul: operand b is missing"));
}

TEST(CpuDevice, RefusesATypeThatIsNotBuilt) {
  Bench bench(AllCpuCases().front());
  const Buffer x = bench.Floats(4);
  const Buffer half = bench.Raw(DType::kBF16, 4);
  const absl::Status status = bench.device().Prepare(Add{half, x, x, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("add: operand a is bf16"));
}

TEST(CpuDevice, RefusesEmptyShapes) {
  Bench bench(AllCpuCases().front());
  const Buffer x = bench.Floats(64);
  const Buffer u8 = bench.Raw(DType::kU8, 64);
  Device& device = bench.device();
  EXPECT_EQ(device.Prepare(Matmul{.a = x, .b = x, .c = x, .m = 0, .n = 1, .k = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device
                .Prepare(ConvolutionForward{.x = x,
                                            .w = x,
                                            .y = x,
                                            .shape = {.batch = 1,
                                                      .height = 2,
                                                      .width = 2,
                                                      .in = 1,
                                                      .out = 1,
                                                      .kernel_height = 3,
                                                      .kernel_width = 3}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device.Prepare(MaxPoolForward{x, x, u8, {1, 32, 32, 1, 16, 16}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device.Prepare(Dropout{.x = x, .y = x, .samples = 1, .per_sample = 4}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDevice, TwoDevicesKeepTheirOwnThreadCounts) {
  const VectorTable* table = CpuDevice::SupportedTables().front();
  Bench one({table, 1}), three({table, 3});
  const auto product = [](Bench& bench) {
    const Buffer c = bench.Floats(64 * 64);
    bench.Run(Matmul{.a = bench.Floats(RandomVec(64 * 64, 1)),
                     .b = bench.Floats(RandomVec(64 * 64, 2)),
                     .c = c,
                     .m = 64,
                     .n = 64,
                     .k = 64});
    return omp_get_max_threads();
  };
  EXPECT_EQ(product(one), 1);
  EXPECT_EQ(product(three), 3);
  EXPECT_EQ(product(one), 1);
}

// The scratch of a launch may move: another stream, or a larger one.
TEST(CpuDevice, AKernelFollowsItsStreamsScratch) {
  auto device = *OpenCpu(1);
  auto stream = device->MakeStream();
  Bench bench(AllCpuCases().front());
  const ConvolutionShape s{.batch = 1,
                           .height = 6,
                           .width = 6,
                           .in = 3,
                           .out = 5,
                           .kernel_height = 3,
                           .kernel_width = 3};
  const Buffer y = bench.Floats(4 * 4 * 5);
  const auto kernel =
      *device->Prepare(ConvolutionForward{.x = bench.Floats(RandomVec(6 * 6 * 3, 1)),
                                          .w = bench.Floats(RandomVec(5 * 3 * 9, 2)),
                                          .y = y,
                                          .shape = s});
  Vec first;
  for (int i = 0; i < 3; ++i) {
    void* scratch = *device->Allocate(kernel.scratch_bytes);
    std::memset(scratch, 0xff, kernel.scratch_bytes);
    stream->scratch = scratch;
    kernel.launch(*stream);
    const Vec now = Bench::Read(y, 4 * 4 * 5);
    if (i == 0) first = now;
    EXPECT_EQ(first, now);
    std::memset(y.data, 0xff, sizeof(float) * 4 * 4 * 5);
    std::memset(scratch, 0xff, kernel.scratch_bytes);
  }
}

}  // namespace
}  // namespace trainyard::kernels
