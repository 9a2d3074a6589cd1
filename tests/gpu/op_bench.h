#pragma once

// Runs ops on the first GPU, or on its emulation. Tests write and read host memory; each buffer has
// a twin on the device of exactly its size, and Run carries the buffers of an op there and back.
// As before a first step there, what there is to measure of an op is measured first. Then it runs
// twice, the second time as the device recorded it: the bits must be the same.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/step_state.h"
#include "tests/reference/random.h"
#include "tests/reference/vec.h"

namespace trainyard::kernels {

using reference::RandomIds;
using reference::RandomVec;
using reference::Vec;

struct CudaCase {
  int threads = 2;  // what the CPU's cases hold; nothing here depends on it
};

// How often a convolution or its gradient by weights is rounded to 16-bit elements before the last
// time, or to fp32: cuDNN's result is, and then a bias or an older gradient is added.
inline constexpr double kExtraRoundings = 1;

// The device that all tests share, or why there is none.
const absl::StatusOr<Device*>& TestedDevice();

class OpBench {
 public:
  explicit OpBench(CudaCase = {});
  ~OpBench();

  Device& device() { return **TestedDevice(); }

  // Every byte is 0xff: what a kernel must write and does not shows as a number that is none.
  Buffer Raw(DType dtype, int64_t n);
  Buffer Floats(int64_t n) { return Raw(DType::kF32, n); }
  Buffer Floats(const Vec& x);
  // Rounded to `type`: f32, bf16 or f16.
  Buffer Elements(DType type, const Vec& x);
  Buffer Ints(const std::vector<int32_t>& x);

  template <typename Op>
  void Run(Op op) {
    if constexpr (requires { op.state; }) {
      const Buffer state = Raw(DType::kU8, sizeof(StepState));
      if (op.state) {
        std::memcpy(state.data, op.state.data, sizeof(StepState));
        op.state = state;
      }
    }
    __builtin_clear_padding(&op);  // what the stack left there may look like an address
    const std::vector<Twin*> used = PointAtTwins(&op, sizeof(op));
    absl::StatusOr<Kernel> kernel = device().Prepare(op);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    RunTwice(*kernel, used);
  }

  static Vec Read(const Buffer& b, int64_t n);

 private:
  struct Twin {
    std::vector<char> host;
    void* device = nullptr;
  };

  // Replaces every pointer into one of our buffers by the same place in its twin, and returns the
  // buffers. An op holds pointers and numbers; the latter do not look like our addresses.
  std::vector<Twin*> PointAtTwins(void* op, size_t bytes);
  void RunTwice(Kernel& kernel, const std::vector<Twin*>& used);
  // Carries `used` to the device, launches (`again`: as the device records it), and returns what
  // the device then holds of each.
  std::vector<std::vector<char>> RunOnce(Kernel& kernel, const std::vector<Twin*>& used,
                                         bool again);

  std::unique_ptr<Stream> stream_;
  std::map<const char*, Twin> twins_;  // by the first byte on the host
};

// Skips, with the reason, where no GPU can be opened.
class CudaTest : public testing::TestWithParam<CudaCase> {
 protected:
  void SetUp() override;
  OpBench bench_;
};

inline std::string NameOfCase(const testing::TestParamInfo<CudaCase>&) { return "gpu"; }

#define TRAINYARD_CUDA_SUITE(name) \
  INSTANTIATE_TEST_SUITE_P(Cuda, name, testing::Values(CudaCase{}), NameOfCase)

// Each element within tolerance * (|expected| + the root mean square of what is expected), and what
// rounding to the type of `actual` may move it.
void ExpectClose(const Buffer& actual, const Vec& expected, double tolerance,
                 const std::string& what);

Vec Plus(Vec a, const Vec& b);

}  // namespace trainyard::kernels
