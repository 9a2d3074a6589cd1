#include "tests/gpu/op_bench.h"

#include <algorithm>
#include <utility>

#include "tests/reference/element.h"

namespace trainyard::kernels {

const absl::StatusOr<Device*>& TestedDevice() {
  static const absl::StatusOr<Device*> device = []() -> absl::StatusOr<Device*> {
    absl::StatusOr<std::unique_ptr<Device>> opened = OpenCuda(0);
    if (!opened.ok()) return opened.status();
    return opened->release();  // lives as long as the program
  }();
  return device;
}

OpBench::OpBench(CudaCase) {
  if (TestedDevice().ok()) stream_ = device().MakeStream();
}

OpBench::~OpBench() {
  for (auto& [host, twin] : twins_) device().Free(twin.device);
}

Buffer OpBench::Raw(DType dtype, int64_t n) {
  Twin twin;
  const size_t bytes = static_cast<size_t>(n) * SizeOf(dtype);
  twin.host.assign(std::max<size_t>(bytes, 1), '\xff');
  twin.device = *device().Allocate(bytes);
  char* data = twin.host.data();
  twins_.emplace(data, std::move(twin));
  return {data, dtype};
}

Buffer OpBench::Floats(const Vec& x) {
  const Buffer b = Floats(static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) b.As<float>()[i] = static_cast<float>(x[i]);
  return b;
}

Buffer OpBench::Elements(DType type, const Vec& x) {
  if (type == DType::kF32) return Floats(x);
  const Buffer b = Raw(type, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    static_cast<uint16_t*>(b.data)[i] = reference::ToBits(type, x[i]);
  }
  return b;
}

Vec OpBench::Read(const Buffer& b, int64_t n) {
  if (b.dtype == DType::kF32) return Vec(b.As<float>(), b.As<float>() + n);
  Vec x;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(reference::ToDouble(b.dtype, static_cast<const uint16_t*>(b.data)[i]));
  }
  return x;
}

Buffer OpBench::Ints(const std::vector<int32_t>& x) {
  const Buffer b = Raw(DType::kI32, static_cast<int64_t>(x.size()));
  std::memcpy(b.data, x.data(), x.size() * sizeof(int32_t));
  return b;
}

std::vector<OpBench::Twin*> OpBench::PointAtTwins(void* op, size_t bytes) {
  std::vector<Twin*> used;
  for (size_t at = 0; at + sizeof(char*) <= bytes; at += sizeof(char*)) {
    char* word = nullptr;
    std::memcpy(&word, static_cast<char*>(op) + at, sizeof(word));
    auto after = twins_.upper_bound(word);
    if (after == twins_.begin()) continue;
    Twin& twin = std::prev(after)->second;
    // Of what may be a number and no address.
    const uintptr_t offset =
        reinterpret_cast<uintptr_t>(word) - reinterpret_cast<uintptr_t>(twin.host.data());
    if (offset >= twin.host.size()) continue;
    word = static_cast<char*>(twin.device) + offset;
    std::memcpy(static_cast<char*>(op) + at, &word, sizeof(word));
    if (std::find(used.begin(), used.end(), &twin) == used.end()) used.push_back(&twin);
  }
  return used;
}

std::vector<std::vector<char>> OpBench::RunOnce(Kernel& kernel, const std::vector<Twin*>& used,
                                                bool again) {
  for (const Twin* twin : used) {
    device().CopyIn(*stream_, twin->device, twin->host.data(), twin->host.size());
  }
  if (again) {
    const absl::StatusOr<Kernel> recorded =
        device().Record(*stream_, std::make_shared<const Kernels>(1, kernel));
    EXPECT_TRUE(recorded.ok()) << recorded.status();
    if (recorded.ok()) recorded->launch(*stream_);
  } else {
    kernel.launch(*stream_);
  }
  std::vector<std::vector<char>> after;
  for (const Twin* twin : used) {
    after.emplace_back(twin->host.size());
    device().CopyOut(*stream_, after.back().data(), twin->device, after.back().size());
  }
  const absl::Status done = device().Synchronize(*stream_);
  EXPECT_TRUE(done.ok()) << done;
  return after;
}

void OpBench::RunTwice(Kernel& kernel, const std::vector<Twin*>& used) {
  const absl::StatusOr<void*> scratch = device().Allocate(kernel.scratch_bytes);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  stream_->scratch = *scratch;
  stream_->scratch_bytes = kernel.scratch_bytes;
  if (kernel.tune) kernel.tune(*stream_);
  std::vector<std::vector<char>> first = RunOnce(kernel, used, false);
  const std::vector<std::vector<char>> second = RunOnce(kernel, used, true);
  EXPECT_TRUE(first == second) << "the same op on the same inputs gave other bits";
  for (size_t i = 0; i < used.size(); ++i) {
    std::memcpy(used[i]->host.data(), first[i].data(), first[i].size());
  }
  device().Free(*scratch);
}

void CudaTest::SetUp() {
  if (!TestedDevice().ok()) GTEST_SKIP() << TestedDevice().status();
}

void ExpectClose(const Buffer& actual, const Vec& expected, double tolerance,
                 const std::string& what) {
  const Vec found = OpBench::Read(actual, static_cast<int64_t>(expected.size()));
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

Vec Plus(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace trainyard::kernels
