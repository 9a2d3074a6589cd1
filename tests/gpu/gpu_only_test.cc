// What only a real GPU can show: products past cuBLASLt's limit, and faults.

#include <cstdlib>

#include "tests/gpu/op_bench.h"

namespace trainyard::kernels {
namespace {

class GpuOnlyTest : public CudaTest {};

// Logits of 2^31 elements and more, in device memory alone: 9 GB.
TEST_P(GpuOnlyTest, AProductPastTheLimitOfCublasIsDoneInPieces) {
  constexpr int64_t kM = 43'000, kN = 50'304, kK = 4;
  Device& device = bench_.device();
  const std::unique_ptr<Stream> stream = device.MakeStream();
  std::vector<float> a(kM * kK), b(kN * kK);
  for (int64_t i = 0; i < kM * kK; ++i) a[i] = static_cast<float>(i % 101);
  for (int64_t i = 0; i < kN * kK; ++i) b[i] = static_cast<float>(i % 89);
  const absl::StatusOr<void*> c = device.Allocate(kM * kN * sizeof(float));
  if (!c.ok()) GTEST_SKIP() << c.status();
  void* da = *device.Allocate(a.size() * sizeof(float));
  void* db = *device.Allocate(b.size() * sizeof(float));
  device.CopyIn(*stream, da, a.data(), a.size() * sizeof(float));
  device.CopyIn(*stream, db, b.data(), b.size() * sizeof(float));
  absl::StatusOr<Kernel> kernel = device.Prepare(
      Matmul{.a = {da}, .b = {db}, .c = {*c}, .m = kM, .n = kN, .k = kK, .transpose_b = true});
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  stream->scratch = *device.Allocate(kernel->scratch_bytes);
  kernel->launch(*stream);
  for (const int64_t row : {int64_t{0}, int64_t{42'687}, int64_t{42'691}, kM - 1}) {
    std::vector<float> found(kN);
    device.CopyOut(*stream, found.data(), static_cast<float*>(*c) + row * kN, kN * sizeof(float));
    ASSERT_TRUE(device.Synchronize(*stream).ok());
    for (int64_t j = 0; j < kN; j += 997) {
      float expected = 0;
      for (int64_t k = 0; k < kK; ++k) expected += a[row * kK + k] * b[j * kK + k];
      EXPECT_EQ(found[j], expected) << row << ", " << j;
    }
  }
  for (void* data : {*c, da, db, stream->scratch}) device.Free(data);
}

// An id that the loader should have refused stops the kernel; the device reports it from then on.
// In a process of its own: the context is lost.
TEST_P(GpuOnlyTest, AFaultIsInternalThenAndAfterwards) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    const std::unique_ptr<Device> device = std::move(OpenCuda(0)).value();
    const std::unique_ptr<Stream> stream = device->MakeStream();
    const auto place = [&](DType dtype) { return Buffer{*device->Allocate(64), dtype}; };
    const Buffer ids = place(DType::kI32);
    const int32_t outside = 11;
    device->CopyIn(*stream, ids.data, &outside, sizeof(outside));
    const absl::StatusOr<Kernel> kernel =
        device->Prepare(EmbeddingForward{.ids = ids,
                                         .tokens = place(DType::kF32),
                                         .y = place(DType::kF32),
                                         .batch = 1,
                                         .time = 1,
                                         .width = 1,
                                         .vocab = 11});
    kernel->launch(*stream);
    const bool at_once = device->Synchronize(*stream).code() == absl::StatusCode::kInternal;
    const bool later = device->Synchronize(*stream).code() == absl::StatusCode::kInternal;
    std::_Exit(at_once && later ? 0 : 1);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(0), "");
}

TRAINYARD_CUDA_SUITE(GpuOnlyTest);

}  // namespace
}  // namespace trainyard::kernels
