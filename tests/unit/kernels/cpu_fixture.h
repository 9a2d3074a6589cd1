#pragma once

// Runs an op on the CPU back end: with 1, 2 and 3 threads on the best instruction set of this
// machine, and with 2 on every other. Buffers and scratch have exactly the size that the contract
// names, so that the address sanitizer sees what goes past.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/reference/element.h"
#include "tests/reference/random.h"
#include "tests/reference/vec.h"

namespace trainyard::kernels {

using reference::RandomIds;
using reference::RandomVec;
using reference::Vec;

struct CpuCase {
  const VectorTable* table;
  int threads;
};

inline std::vector<CpuCase> AllCpuCases() {
  std::vector<CpuCase> cases;
  const std::vector<const VectorTable*> tables = CpuDevice::SupportedTables();
  for (const int threads : {1, 2, 3}) cases.push_back({tables.front(), threads});
  for (size_t i = 1; i < tables.size(); ++i) cases.push_back({tables[i], 2});
  return cases;
}

inline std::string NameOfCase(const testing::TestParamInfo<CpuCase>& info) {
  return std::string(info.param.table->name) + "_x" + std::to_string(info.param.threads);
}

// How often a convolution or its gradient by weights is rounded to 16-bit elements before the last
// time, or to fp32: never here.
inline constexpr double kExtraRoundings = 0;

// Memory of a device and the ops that run on it.
class Bench {
 public:
  explicit Bench(const CpuCase& c)
      : device_(std::make_unique<CpuDevice>(c.threads, *c.table)), stream_(device_->MakeStream()) {}

  Device& device() { return *device_; }

  Buffer Raw(DType dtype, int64_t n) {
    absl::StatusOr<void*> data = device_->Allocate(n * SizeOf(dtype));
    // What a kernel must write and does not shows as a number that is none.
    std::memset(*data, 0xff, n * SizeOf(dtype));
    return {*data, dtype};
  }
  Buffer Floats(int64_t n) { return Raw(DType::kF32, n); }
  Buffer Floats(const Vec& x) {
    Buffer b = Floats(static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) b.As<float>()[i] = static_cast<float>(x[i]);
    return b;
  }
  // Rounded to `type`: f32, bf16 or f16.
  Buffer Elements(DType type, const Vec& x) {
    if (type == DType::kF32) return Floats(x);
    Buffer b = Raw(type, static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      static_cast<uint16_t*>(b.data)[i] = reference::ToBits(type, x[i]);
    }
    return b;
  }
  Buffer Ints(const std::vector<int32_t>& x) {
    Buffer b = Raw(DType::kI32, static_cast<int64_t>(x.size()));
    std::memcpy(b.data, x.data(), x.size() * sizeof(int32_t));
    return b;
  }

  template <typename Op>
  void Run(const Op& op) {
    absl::StatusOr<Kernel> kernel = device_->Prepare(op);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    absl::StatusOr<void*> scratch = device_->Allocate(kernel->scratch_bytes);
    std::memset(*scratch, 0xff, kernel->scratch_bytes);
    stream_->scratch = *scratch;
    stream_->scratch_bytes = kernel->scratch_bytes;
    kernel->launch(*stream_);
    EXPECT_TRUE(device_->Synchronize(*stream_).ok());
    device_->Free(*scratch);
  }

  static Vec Read(const Buffer& b, int64_t n) {
    if (b.dtype == DType::kF32) return Vec(b.As<float>(), b.As<float>() + n);
    Vec x;
    for (int64_t i = 0; i < n; ++i) {
      x.push_back(reference::ToDouble(b.dtype, static_cast<const uint16_t*>(b.data)[i]));
    }
    return x;
  }

 private:
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Stream> stream_;
};

class CpuTest : public testing::TestWithParam<CpuCase> {
 protected:
  CpuTest() : bench_(GetParam()) {}
  Bench bench_;
};

#define TRAINYARD_CPU_SUITE(name) \
  INSTANTIATE_TEST_SUITE_P(Cpu, name, testing::ValuesIn(AllCpuCases()), NameOfCase)

// Each element within tolerance * (|expected| + the root mean square of what is expected), and what
// rounding to the type of `actual` may move it.
inline void ExpectClose(const Buffer& actual, const Vec& expected, double tolerance,
                        const std::string& what) {
  const Vec found = Bench::Read(actual, static_cast<int64_t>(expected.size()));
  const bool narrow = actual.dtype != DType::kF32;
  const double roundoff = narrow ? reference::UnitRoundoff(actual.dtype) : 0;
  const double smallest = actual.dtype == DType::kF16 ? 0x1p-25 : 0;  // half a step near zero
  double squares = 0;
  for (const double v : expected) squares += v * v;
  const double size = expected.empty() ? 0 : std::sqrt(squares / expected.size());
  int reported = 0;
  for (size_t i = 0; i < expected.size() && reported < 5; ++i) {
    const double bound = tolerance * (std::fabs(expected[i]) + size) +
                         roundoff * (1 + tolerance) * std::fabs(expected[i]) + smallest;
    if (std::fabs(found[i] - expected[i]) <= bound) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << found[i] << ", expected " << expected[i]
                  << " within " << bound;
    ++reported;
  }
}

inline Vec Plus(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace trainyard::kernels
