// What the CUDA device promises apart from its ops.

#include "gmock/gmock.h"
#include "tests/gpu/op_bench.h"

namespace trainyard::kernels {
namespace {

using testing::HasSubstr;

class CudaDeviceTest : public CudaTest {
 protected:
  Device& device() { return bench_.device(); }
  Buffer x_{reinterpret_cast<void*>(64), DType::kF32};  // only looked at, never read
};

TEST_P(CudaDeviceTest, DescribesItself) {
  EXPECT_THAT(device().Description(), testing::StartsWith("cuda:0 "));
}

TEST_P(CudaDeviceTest, MemoryIsAlignedAndCopiesComeBack) {
  const std::unique_ptr<Stream> stream = device().MakeStream();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{5} << 20}) {
    const absl::StatusOr<void*> data = device().Allocate(bytes);
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 64, 0u);
    const std::vector<char> out(bytes, 'x');
    std::vector<char> back(bytes);
    device().CopyIn(*stream, *data, out.data(), bytes);
    device().CopyOut(*stream, back.data(), *data, bytes);
    EXPECT_TRUE(device().Synchronize(*stream).ok());
    EXPECT_EQ(out, back);
    device().Free(*data);
  }
}

TEST_P(CudaDeviceTest, LackOfMemoryIsNoFault) {
  EXPECT_EQ(device().Allocate(size_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  const std::unique_ptr<Stream> stream = device().MakeStream();
  EXPECT_TRUE(device().Synchronize(*stream).ok());
}

TEST_P(CudaDeviceTest, ARecordingRunsAsOftenAsItIsLaunchedAndNotBefore) {
  constexpr int64_t kN = 100;
  const std::unique_ptr<Stream> stream = device().MakeStream();
  const Buffer x{*device().Allocate(kN * sizeof(float)), DType::kF32};
  const Buffer y{*device().Allocate(kN * sizeof(float)), DType::kF32};
  Kernels program = {*device().Prepare(Add{x, x, y, kN}), *device().Prepare(Add{y, y, x, kN})};
  const auto values = [&] {
    std::vector<float> back(kN);
    device().CopyOut(*stream, back.data(), x.data, kN * sizeof(float));
    EXPECT_TRUE(device().Synchronize(*stream).ok());
    return back;
  };
  const std::vector<float> ones(kN, 1);
  device().CopyIn(*stream, x.data, ones.data(), kN * sizeof(float));
  for (const Kernel& kernel : program) kernel.launch(*stream);
  EXPECT_EQ(values(), std::vector<float>(kN, 4));
  // The recording keeps what it needs: the program goes.
  const absl::StatusOr<Kernel> recorded =
      device().Record(*stream, std::make_shared<const Kernels>(std::move(program)));
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  EXPECT_EQ(values(), std::vector<float>(kN, 4));
  recorded->launch(*stream);
  recorded->launch(*stream);
  EXPECT_EQ(values(), std::vector<float>(kN, 64));
  device().Free(x.data);
  device().Free(y.data);
}

// Pinned memory is read when the copy's turn comes; a mark that moves on is followed where it was.
TEST_P(CudaDeviceTest, AStreamFollowsAMarkOfAnother) {
  constexpr size_t kBytes = 4 * sizeof(float);
  const std::unique_ptr<Stream> copies = device().MakeStream(), stream = device().MakeStream();
  const std::unique_ptr<Event> read = device().MakeEvent(), never = device().MakeEvent();
  const auto host = device().AllocateHost(2 * kBytes);
  float* const numbers = reinterpret_cast<float*>(host.get());
  for (int i = 0; i < 8; ++i) numbers[i] = static_cast<float>(i);
  void* const inbox = *device().Allocate(kBytes);
  const Buffer x{*device().Allocate(kBytes), DType::kF32},
      y{*device().Allocate(kBytes), DType::kF32};
  const Kernel add = *device().Prepare(Add{x, x, y, 4});

  device().StreamWait(*copies, *never);
  device().CopyIn(*copies, inbox, numbers, kBytes);
  device().RecordEvent(*read, *copies);
  device().StreamWait(*stream, *read);
  device().Copy(*stream, x.data, inbox, kBytes);
  const std::unique_ptr<Event> emptied = device().MakeEvent();
  device().RecordEvent(*emptied, *stream);
  device().StreamWait(*copies, *emptied);
  device().CopyIn(*copies, inbox, numbers + 4, kBytes);
  device().RecordEvent(*read, *copies);
  add.launch(*stream);
  std::vector<float> back(4);
  device().CopyOut(*stream, back.data(), y.data, kBytes);
  ASSERT_TRUE(device().Synchronize(*stream).ok());
  EXPECT_EQ(back, (std::vector<float>{0, 2, 4, 6}));
  device().StreamWait(*stream, *read);
  device().CopyOut(*stream, back.data(), inbox, kBytes);
  ASSERT_TRUE(device().Synchronize(*stream).ok());
  EXPECT_EQ(back, (std::vector<float>{4, 5, 6, 7}));
  for (void* const data : {inbox, x.data, y.data}) device().Free(data);
}

TEST_P(CudaDeviceTest, NamesAMissingOperand) {
  const absl::Status status =
      device().Prepare(Matmul{.a = x_, .c = x_, .m = 2, .n = 2, .k = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("operand b is missing"));
}

TEST_P(CudaDeviceTest, RefusesATypeThatIsNotBuilt) {
  const absl::Status status = device().Prepare(Add{{x_.data, DType::kBF16}, x_, x_, 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("operand a is bf16"));
}

TEST_P(CudaDeviceTest, RefusesEmptyShapes) {
  EXPECT_EQ(device().Prepare(Matmul{.a = x_, .b = x_, .c = x_, .n = 1, .k = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device().Prepare(ConvolutionForward{.x = x_, .w = x_, .y = x_}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      device().Prepare(Dropout{.x = x_, .y = x_, .samples = 1, .per_sample = 1}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_P(CudaDeviceTest, RefusesHeadsThatAreTooWide) {
  const AttentionForward op{.qkv = x_,
                            .y = x_,
                            .lse = x_,
                            .batch = 1,
                            .time = 1,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = 257};
  EXPECT_EQ(device().Prepare(op).status().code(), absl::StatusCode::kUnimplemented);
}

// Beside a copy of base it is the same product, which is measured like any other.
TEST_P(CudaDeviceTest, AProductThatIsAddedIsMeasuredWhereverItGoes) {
  const Buffer y{reinterpret_cast<void*>(4096), DType::kF32};
  AddProduct op{.base = y, .a = x_, .b = x_, .y = y, .rows = 4, .cols = 8, .n = 8, .k = 2};
  const absl::StatusOr<Kernel> in_place = device().Prepare(op);
  op.base = x_;
  const absl::StatusOr<Kernel> apart = device().Prepare(op);
  ASSERT_TRUE(in_place.ok() && apart.ok()) << in_place.status() << apart.status();
  EXPECT_TRUE(in_place->tune);
  EXPECT_TRUE(apart->tune);
}

TRAINYARD_CUDA_SUITE(CudaDeviceTest);

}  // namespace
}  // namespace trainyard::kernels
