// Convolutions and attention by cuDNN, in the emulator: plans are measured, kept on disk, and taken
// only if they give the same bits; attention means what our own kernels do, in pieces, too, and is
// not trusted where it does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/agreement.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/device.h"
#include "storage/base/ids.h"
#include "tests/gpu/emulator/stream.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr float kFirst = 3, kMeasured = 2;  // milliseconds, as tests/gpu/emulator/cudnn.cc says

// Everything of one process.
class Process {
 public:
  explicit Process(const std::string& folder = "")
      : device_(OpenCuda(0, folder).value()), stream_(device_->MakeStream()) {}

  Buffer Make(DType type, int64_t n) {
    return {device_->Allocate(static_cast<size_t>(n) * SizeOf(type)).value(), type};
  }

  // Numbers in [-1, 1).
  Buffer Random(DType type, int64_t n, uint32_t seed) {
    const Buffer numbers = Make(DType::kF32, n), made = Make(type, n);
    std::mt19937 random(seed);
    std::vector<float> host(n);
    for (float& x : host) x = std::uniform_real_distribution<float>(-1, 1)(random);
    device_->CopyIn(*stream_, numbers.data, host.data(), n * sizeof(float));
    if (type == DType::kF32) return numbers;
    Run(device_->Prepare(Cast{.x = numbers, .y = made, .n = n}).value());
    return made;
  }

  void Run(const Kernel& kernel, bool tune = false) {
    if (kernel.scratch_bytes > stream_->scratch_bytes) {
      stream_->scratch = device_->Allocate(kernel.scratch_bytes).value();
      stream_->scratch_bytes = kernel.scratch_bytes;
    }
    tune ? kernel.tune(*stream_) : kernel.launch(*stream_);
    ASSERT_TRUE(device_->Synchronize(*stream_).ok());
  }

  // Milliseconds that a launch takes.
  float Time(const Kernel& kernel) {
    const float start = emulator::Clock();
    Run(kernel);
    return emulator::Clock() - start;
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

 private:
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
};

class CudnnKernelsTest : public ::testing::Test {
 protected:
  CudnnKernelsTest() { emulator::OfferedAlgorithms() = 3; }
  ~CudnnKernelsTest() override {
    std::filesystem::remove_all(folder_);
    emulator::OfferedAlgorithms() = 1;
    emulator::OffersAttention() = false;
  }

  static constexpr ConvolutionShape kShape = {.batch = 4,
                                              .height = 5,
                                              .width = 6,
                                              .in = 32,
                                              .out = 24,
                                              .kernel_height = 3,
                                              .kernel_width = 3,
                                              .pad = 1};

  static std::vector<Kernel> Convolutions(Process& process, DType type,
                                          const ConvolutionShape& s = kShape) {
    const int64_t in = s.batch * s.height * s.width * s.in;
    const int64_t out = s.batch * s.out_height() * s.out_width() * s.out;
    const int64_t weights = s.out * s.in / s.groups * s.kernel_height * s.kernel_width;
    const Buffer x = process.Make(type, in), y = process.Make(type, out);
    const Buffer w = process.Make(type, weights), dw = process.Make(DType::kF32, weights);
    Device& device = process.device();
    return {
        device.Prepare(ConvolutionForward{.x = x, .w = w, .bias = {}, .y = y, .shape = s}).value(),
        device.Prepare(ConvolutionBackwardData{.dy = y, .w = w, .dx = x, .shape = s}).value(),
        device
            .Prepare(ConvolutionBackwardWeights{.x = x, .dy = y, .dw = dw, .dbias = {}, .shape = s})
            .value()};
  }

  const std::string folder_ = "/tmp/trainyard-plans-test-" + RandomHex(6);
};

TEST_F(CudnnKernelsTest, TheFastestPlanOfTheSameBitsIsTaken) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Process process;
    for (const Kernel& kernel : Convolutions(process, type)) {
      EXPECT_EQ(process.Time(kernel), kFirst);
      ASSERT_TRUE(kernel.tune);
      process.Run(kernel, true);
      EXPECT_EQ(process.Time(kernel), kMeasured);
    }
  }
}

TEST_F(CudnnKernelsTest, WeightsThatLieInPlaceAreTriedThere) {
  Process process;
  ConvolutionShape shape = kShape;
  shape.kernel_height = shape.kernel_width = 1, shape.pad = 0;
  for (const Kernel& kernel : Convolutions(process, DType::kBF16, shape)) {
    process.Run(kernel, true);
    EXPECT_EQ(process.Time(kernel), kMeasured);
  }
}

TEST_F(CudnnKernelsTest, OneMeasurementServesAllOfAShape) {
  Process process;
  const std::vector<Kernel> first = Convolutions(process, DType::kBF16);
  const std::vector<Kernel> second = Convolutions(process, DType::kBF16);
  for (const Kernel& kernel : first) process.Run(kernel, true);
  for (const Kernel& kernel : second) {
    EXPECT_EQ(process.Time(kernel), kMeasured);
    const float clock = emulator::Clock();
    process.Run(kernel, true);
    EXPECT_EQ(emulator::Clock(), clock);
    EXPECT_EQ(process.Time(kernel), kMeasured);
  }
  for (const Kernel& kernel : Convolutions(process, DType::kBF16)) {
    EXPECT_EQ(process.Time(kernel), kMeasured);
  }
}

TEST_F(CudnnKernelsTest, TheNextProcessKnowsWhateverElseTheFilesHold) {
  {
    Process process(folder_);
    for (const Kernel& kernel : Convolutions(process, DType::kF32)) process.Run(kernel, true);
  }
  const auto forward_time = [&] {
    Process process(folder_);
    return process.Time(Convolutions(process, DType::kF32)[0]);
  };
  EXPECT_EQ(forward_time(), kMeasured);
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    if (entry.path().string().find("forward") != std::string::npos) path = entry.path();
  }
  ASSERT_FALSE(path.empty());
  std::ifstream file(path);
  const std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() - 1), whole.substr(0, 10), "x" + whole,
        whole.substr(0, whole.find('\n') + 1) + "nonsense\n", std::string(1 << 20, '\0')}) {
    std::ofstream(path) << text;
    EXPECT_EQ(forward_time(), kFirst) << text.substr(0, 100);
  }
  std::ofstream(path) << whole;
  EXPECT_EQ(forward_time(), kMeasured);
}

struct AttentionCase {
  int64_t batch, time, heads, kv_heads, head_dim;
  bool causal;
  DType type;
};

constexpr AttentionCase kCases[] = {
    {2, 40, 4, 4, 16, true, DType::kBF16}, {3, 33, 4, 2, 24, false, DType::kF16},
    {2, 17, 6, 2, 32, true, DType::kF16},  {4, 9, 3, 1, 8, false, DType::kBF16},
    {1, 65, 2, 2, 64, true, DType::kBF16},
};

struct AttentionOps {
  AttentionOps(Process& process, const AttentionCase& of) {
    const int64_t rows = of.batch * of.time, width = of.heads * of.head_dim;
    const int64_t packed = width + 2 * of.kv_heads * of.head_dim;
    forward.qkv = process.Random(of.type, rows * packed, 1);
    forward.y = process.Make(of.type, rows * width);
    forward.lse = process.Make(DType::kF32, rows * of.heads);
    forward.batch = of.batch, forward.time = of.time, forward.heads = of.heads;
    forward.kv_heads = of.kv_heads, forward.head_dim = of.head_dim, forward.causal = of.causal;
    forward.scale = 1.0f / std::sqrt(static_cast<float>(of.head_dim));
    backward.dy = process.Random(of.type, rows * width, 2);
    backward.qkv = forward.qkv, backward.y = forward.y, backward.lse = forward.lse;
    backward.dqkv = process.Random(of.type, rows * packed, 3);
    backward.batch = of.batch, backward.time = of.time, backward.heads = of.heads;
    backward.kv_heads = of.kv_heads, backward.head_dim = of.head_dim, backward.causal = of.causal;
    backward.scale = forward.scale;
    forward_results = {{forward.y, rows * width}, {forward.lse, rows * of.heads}};
    backward_results = {{backward.dqkv, rows * packed}};
  }

  AttentionForward forward;
  AttentionBackward backward;
  std::vector<Computed> forward_results, backward_results;
};

// Twice what rounding probabilities leaves.
double ToleranceOf(DType type) { return type == DType::kBF16 ? 0.008 : 0.001; }

TEST_F(CudnnKernelsTest, AttentionMeansWhatOurOwnKernelsDo) {
  for (const AttentionCase& of : kCases) {
    Process process;
    AttentionOps ops(process, of);
    Device& device = process.device();
    emulator::OffersAttention() = false;
    const Kernel forward = device.Prepare(ops.forward).value();
    const Kernel backward = device.Prepare(ops.backward).value();
    EXPECT_FALSE(forward.tune);
    process.Run(forward);
    const auto y = Read(process.stream(), ops.forward_results);
    process.Run(backward);
    const auto dqkv = Read(process.stream(), ops.backward_results);

    emulator::OffersAttention() = true;
    const Kernel forward_by_cudnn = device.Prepare(ops.forward).value();
    const Kernel backward_by_cudnn = device.Prepare(ops.backward).value();
    ASSERT_TRUE(forward_by_cudnn.tune && backward_by_cudnn.tune);
    process.Run(forward_by_cudnn);
    EXPECT_LT(Distance(Read(process.stream(), ops.forward_results), y), ToleranceOf(of.type));
    process.Run(backward_by_cudnn);
    EXPECT_LT(Distance(Read(process.stream(), ops.backward_results), dqkv), ToleranceOf(of.type));
  }
}

TEST_F(CudnnKernelsTest, PiecesOfAttentionGiveTheBitsOfTheWhole) {
  emulator::OffersAttention() = true;
  for (const AttentionCase& of : kCases) {
    Process process;
    AttentionOps ops(process, of);
    process.Run(process.device().Prepare(ops.forward).value());
    TrialTime time;
    const std::unique_ptr<Cudnn> dnn = Cudnn::Make("", "gpu", time).value();
    std::vector<std::vector<std::vector<float>>> results;
    for (const size_t bytes : {size_t{1} << 30, size_t{1} << 14, size_t{1}}) {
      process.Run(PrepareCudnn(*dnn, ops.backward, Kernel{}, bytes).value());
      results.push_back(Read(process.stream(), ops.backward_results));
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST_F(CudnnKernelsTest, AttentionThatAgreesIsKeptAndOtherIsNotTaken) {
  emulator::OffersAttention() = true;
  Process process;
  const AttentionOps ops(process, kCases[0]);
  TrialTime time;
  const std::unique_ptr<Cudnn> dnn = Cudnn::Make(folder_, "gpu", time).value();
  bool ran = false;
  Kernel wrong;
  wrong.launch = [&](Stream&) { ran = true; };
  const auto runs_own = [&](const Kernel& kernel) {
    ran = false;
    process.Run(kernel);
    return ran;
  };
  // `wrong` writes nothing: what is there before is what it gives.
  const Kernel forward = PrepareCudnn(*dnn, ops.forward, wrong).value();
  const Kernel backward = PrepareCudnn(*dnn, ops.backward, wrong).value();
  EXPECT_FALSE(runs_own(forward));
  process.Run(backward, true);
  EXPECT_TRUE(runs_own(backward));
  EXPECT_FALSE(std::filesystem::exists(folder_));

  emulator::OffersAttention() = false;
  const Kernel own = process.device().Prepare(ops.forward).value();
  emulator::OffersAttention() = true;
  bool own_ran = false;
  Kernel right = own;
  right.launch = [&](Stream& stream) {
    own_ran = true;
    own.launch(stream);
  };
  const Kernel checked = PrepareCudnn(*dnn, ops.forward, right).value();
  process.Run(checked, true);
  EXPECT_TRUE(own_ran);
  EXPECT_TRUE(std::filesystem::exists(folder_));
  own_ran = false;
  process.Run(checked);
  // Nor is it asked twice, here or in the next process.
  process.Run(PrepareCudnn(*dnn, ops.forward, right).value(), true);
  const std::unique_ptr<Cudnn> next = Cudnn::Make(folder_, "gpu", time).value();
  process.Run(PrepareCudnn(*next, ops.forward, right).value(), true);
  EXPECT_FALSE(own_ran);
}

// Neither before the first step nor in it.
TEST_F(CudnnKernelsTest, AttentionThatDoesNotStartIsNoFault) {
  for (const bool tune : {true, false}) {
    Process process;
    const AttentionOps ops(process, kCases[0]);
    process.Run(process.device().Prepare(ops.forward).value());
    const auto own = Read(process.stream(), ops.forward_results);
    const std::vector<char> nothing(2 * 40 * 4 * 16 * 2);
    process.device().CopyIn(process.stream(), ops.forward.y.data, nothing.data(), nothing.size());
    emulator::OffersAttention() = true;
    const std::vector<Kernel> kernels = {process.device().Prepare(ops.forward).value(),
                                         process.device().Prepare(ops.backward).value()};
    emulator::OffersAttention() = false;
    for (const Kernel& kernel : kernels) {
      ASSERT_TRUE(kernel.tune);
      if (tune) process.Run(kernel, true);
    }
    process.Run(kernels[0]);
    if (!tune) EXPECT_EQ(Read(process.stream(), ops.forward_results), own);
    process.Run(kernels[1]);
  }
}

TEST_F(CudnnKernelsTest, PaddingAndOddHeadsAreOurs) {
  AttentionForward op;
  op.qkv.dtype = DType::kBF16;
  op.head_dim = 64;
  EXPECT_TRUE(FitsCudnn(op));
  op.head_dim = 60;
  EXPECT_FALSE(FitsCudnn(op));
  op.head_dim = 64;
  op.qkv.dtype = DType::kF32;
  EXPECT_FALSE(FitsCudnn(op));
  op.qkv.dtype = DType::kF16;
  int32_t length = 1;
  op.lengths = {&length, DType::kI32};
  EXPECT_FALSE(FitsCudnn(op));
}

}  // namespace
}  // namespace trainyard::kernels::cuda
