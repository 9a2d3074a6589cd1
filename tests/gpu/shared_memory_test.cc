// Attention on GPUs whose blocks have less shared memory than those of 8.0: 8.6 and 8.9 have 99
// KiB.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/device.h"
#include "tests/reference/attention.h"

namespace trainyard::kernels {
namespace {

using reference::Vec;

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest()
      : was_(emulator::MostShared()),
        device_(OpenCuda(0).value()),
        stream_(device_->MakeStream()) {}
  ~SharedMemoryTest() override { emulator::SetMostShared(was_); }

  Buffer Floats(const Vec& values) {
    const Buffer b{device_->Allocate(values.size() * sizeof(float)).value(), DType::kF32};
    const std::vector<float> narrow(values.begin(), values.end());
    device_->CopyIn(*stream_, b.data, narrow.data(), values.size() * sizeof(float));
    return b;
  }

  Vec Read(const Buffer& b, int64_t n) {
    std::vector<float> values(n);
    device_->CopyOut(*stream_, values.data(), b.data, n * sizeof(float));
    EXPECT_TRUE(device_->Synchronize(*stream_).ok());
    return Vec(values.begin(), values.end());
  }

  template <typename Op>
  void Run(const Op& op) {
    const absl::StatusOr<Kernel> kernel = device_->Prepare(op);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    stream_->scratch = device_->Allocate(kernel->scratch_bytes).value();
    stream_->scratch_bytes = kernel->scratch_bytes;
    kernel->launch(*stream_);
    ASSERT_TRUE(device_->Synchronize(*stream_).ok());
  }

  static AttentionBackward OpOf(const reference::AttentionShape& s) {
    AttentionBackward op;
    op.batch = s.batch, op.time = s.time, op.heads = s.heads, op.kv_heads = s.kv_heads();
    op.head_dim = s.head_dim, op.scale = static_cast<float>(s.scale), op.causal = s.causal;
    return op;
  }

  const size_t was_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
};

Vec Waves(int64_t n, double step) {
  Vec x(n);
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
  return x;
}

// Heads of up to 64 elements take 102 KiB in tiles of 64 rows; in tiles of 32 they fit.
TEST_F(SharedMemoryTest, GradientsOfSmallHeadsFitInto99KiB) {
  for (const int64_t head_dim : {32, 48, 64, 128}) {
    const reference::AttentionShape s{
        .batch = 1, .time = 70, .heads = 2, .head_dim = head_dim, .scale = 0.1};
    const Vec qkv = Waves(s.qkv_size(), 0.7), dy = Waves(s.y_size(), 1.3);
    const auto forward = reference::Attention(qkv, s);
    const Vec expected = reference::AttentionBackward(dy, qkv, s);
    for (const size_t limit : {size_t{163} << 10, size_t{99} << 10}) {
      emulator::SetMostShared(limit);
      AttentionBackward op = OpOf(s);
      op.dy = Floats(dy), op.qkv = Floats(qkv), op.y = Floats(forward.y);
      op.lse = Floats(forward.lse), op.dqkv = Floats(Vec(s.qkv_size(), 0.0));
      Run(op);
      if (HasFatalFailure()) return;
      const Vec found = Read(op.dqkv, s.qkv_size());
      for (int64_t i = 0; i < s.qkv_size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 2e-5) << i << " of heads of " << head_dim;
      }
    }
  }
}

TEST_F(SharedMemoryTest, GradientsOfLargeHeadsAreRefusedWithWhatTheGpuHas) {
  emulator::SetMostShared(size_t{99} << 10);
  const reference::AttentionShape s{.time = 4, .head_dim = 200};
  AttentionBackward op = OpOf(s);
  op.dy = op.y = Floats(Vec(s.y_size(), 0.0)), op.lse = Floats(Vec(s.lse_size(), 0.0));
  op.qkv = op.dqkv = Floats(Vec(s.qkv_size(), 0.0));
  const absl::Status refused = device_->Prepare(op).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refused.message(), testing::HasSubstr("heads of 200 elements take 142336 bytes"));
  EXPECT_THAT(refused.message(), testing::HasSubstr("emulated by the host allows 101376"));
  EXPECT_THAT(refused.message(), testing::HasSubstr("heads of up to 128 fit"));
}

}  // namespace
}  // namespace trainyard::kernels
