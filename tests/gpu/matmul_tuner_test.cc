// Algorithms of products are measured, kept on disk, and taken only if they give the same bits. Of
// the emulator's three the second is the fastest that does.

#include "kernels/cuda/matmul_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/algorithm_cache.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/trial.h"
#include "kernels/device.h"
#include "storage/base/ids.h"
#include "tests/gpu/emulator/stream.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr float kFirst = 3, kMeasured = 2;  // milliseconds, as tests/gpu/emulator/cublas.cc says

class MatmulTunerTest : public ::testing::Test {
 protected:
  MatmulTunerTest() {
    std::filesystem::create_directories(folder_);
    emulator::OfferedAlgorithms() = 3;
  }
  ~MatmulTunerTest() override {
    std::filesystem::remove_all(folder_);
    emulator::OfferedAlgorithms() = 1;
  }

  // Everything of one process.
  struct Bench {
    explicit Bench(const std::string& folder)
        : device(OpenCuda(0, folder).value()), stream(device->MakeStream()) {}

    // A product of [3, k] and [k, 5] with `bias`, scratch included.
    Kernel Product(int64_t k, DType type, bool bias) {
      const auto make = [&](DType of, int64_t n) {
        return Buffer{device->Allocate(n * SizeOf(of)).value(), of};
      };
      Matmul op{.a = make(type, 3 * k), .b = make(type, 5 * k), .c = make(type, 15)};
      if (bias) op.bias = make(DType::kF32, 5);
      op.m = 3, op.n = 5, op.k = k;
      c = op.c;
      Kernel kernel = device->Prepare(op).value();
      stream->scratch = device->Allocate(kernel.scratch_bytes).value();
      stream->scratch_bytes = kernel.scratch_bytes;
      return kernel;
    }

    // Milliseconds that a launch takes.
    float Time(const Kernel& kernel) {
      EXPECT_TRUE(device->Synchronize(*stream).ok());
      const float start = emulator::Clock();
      kernel.launch(*stream);
      EXPECT_TRUE(device->Synchronize(*stream).ok());
      return emulator::Clock() - start;
    }

    const std::unique_ptr<Device> device;
    const std::unique_ptr<Stream> stream;
    Buffer c;
  };

  std::string File() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) return entry.path();
    return "";
  }
  std::string Text() {
    std::ostringstream text;
    text << std::ifstream(File()).rdbuf();
    return text.str();
  }

  const std::string folder_ = "/tmp/trainyard-tuner-test-" + RandomHex(6);
};

TEST_F(MatmulTunerTest, TakesTheFastestThatGivesTheSameBits) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool bias : {false, true}) {
      Bench bench("");
      const Kernel kernel = bench.Product(1000, type, bias);
      EXPECT_EQ(bench.Time(kernel), kFirst);
      kernel.tune(*bench.stream);
      EXPECT_EQ(bench.Time(kernel), kMeasured);
    }
  }
}

TEST_F(MatmulTunerTest, OneMeasurementServesAllOfAShape) {
  Bench bench("");
  const Kernel before = bench.Product(1000, DType::kF32, false);
  bench.Product(1000, DType::kF32, false).tune(*bench.stream);
  EXPECT_EQ(bench.Time(bench.Product(1000, DType::kF32, false)), kMeasured);
  EXPECT_EQ(bench.Time(bench.Product(1000, DType::kF32, true)), kFirst);
  EXPECT_EQ(bench.Time(bench.Product(999, DType::kF32, false)), kFirst);
  EXPECT_EQ(bench.Time(before), kFirst);
  const float clock = emulator::Clock();
  before.tune(*bench.stream);
  EXPECT_EQ(emulator::Clock(), clock);
  EXPECT_EQ(bench.Time(before), kMeasured);
}

TEST_F(MatmulTunerTest, TheNextProcessKnows) {
  {
    Bench bench(folder_);
    bench.Product(1000, DType::kF32, false).tune(*bench.stream);
    bench.Product(999, DType::kF32, false).tune(*bench.stream);
  }
  Bench bench(folder_);
  EXPECT_EQ(bench.Time(bench.Product(1000, DType::kF32, false)), kMeasured);
  EXPECT_EQ(bench.Time(bench.Product(999, DType::kF32, false)), kMeasured);
  Bench elsewhere(folder_ + "/other");
  EXPECT_EQ(elsewhere.Time(elsewhere.Product(999, DType::kF32, false)), kFirst);
}

// Whatever it holds: measuring again, or an algorithm that the library refuses, is the worst.
TEST_F(MatmulTunerTest, AFileMayHoldAnything) {
  {
    Bench bench(folder_);
    bench.Product(1000, DType::kF32, false).tune(*bench.stream);
  }
  const std::string whole = Text();
  ASSERT_THAT(whole, ::testing::HasSubstr("matmul/"));
  const auto time = [&](const std::string& text) {
    std::ofstream(File()) << text;
    Bench bench(folder_);
    return bench.Time(bench.Product(1000, DType::kF32, false));
  };
  EXPECT_EQ(time(whole), kMeasured);
  for (size_t cut = 0; cut < whole.size(); cut += 29) {
    EXPECT_EQ(time(whole.substr(0, cut)), kFirst) << cut;
  }
  EXPECT_EQ(time("x" + whole), kFirst);
  EXPECT_EQ(time(std::string(1 << 20, '\n') + whole), kFirst);
  EXPECT_EQ(time(whole.substr(0, whole.size() - 3) + "zz\n"), kFirst);
  // One that the library does not know.
  const size_t last = whole.rfind(' ') + 1;
  EXPECT_EQ(time(whole.substr(0, last) + std::string(128, 'f') + "\n"), kFirst);
  std::filesystem::remove(File());
  std::filesystem::create_directories(folder_ + "/algorithms-x.txt");
  Bench bench(folder_ + "/algorithms-x.txt/no/such");
  EXPECT_EQ(bench.Time(bench.Product(1000, DType::kF32, false)), kFirst);
}

TEST_F(MatmulTunerTest, WhatDoesNotRunIsNotChosen) {
  Bench bench(folder_);
  const Kernel kernel = bench.Product(40, DType::kF32, false);  // for its scratch
  const auto chosen = [&](const std::set<int>& refused, int fastest) {
    const Trial trial = {.candidates = 3,
                         .fill = [](bool) {},
                         .run =
                             [&](int candidate) {
                               if (refused.contains(candidate)) return false;
                               const float took = candidate == fastest ? 1 : 2;
                               return emulator::Enqueue(
                                          CudaStream::From(*bench.stream).handle(), nullptr,
                                          [took] { emulator::Clock() += took; }) == cudaSuccess;
                             },
                         .result = bench.c,
                         .rows = 1,
                         .cols = 15,
                         .step = 15};
    TrialTime time;
    const Choice choice = FastestOfSameBits(*bench.stream, trial,
                                            static_cast<uint64_t*>(bench.stream->scratch), time);
    return std::pair(choice.candidate, choice.complete);
  };
  EXPECT_EQ(chosen({}, 2), std::pair(2, true));
  EXPECT_EQ(chosen({0}, 0), std::pair(1, true));
  EXPECT_EQ(chosen({0}, 2), std::pair(2, true));
  EXPECT_EQ(chosen({2}, 0), std::pair(0, true));
  EXPECT_FALSE(chosen({0, 1, 2}, 0).second);
}

// The first choice of another driver or library is another, and so are its bits.
TEST(AlgorithmCache, WhatWasMeasuredAgainstAnotherFirstChoiceIsNotTaken) {
  AlgorithmCache cache("", "gpu");
  cache.Put("shape", {1}, {2});
  ASSERT_NE(cache.Find("shape", {1}), nullptr);
  EXPECT_EQ(*cache.Find("shape", {1}), AlgorithmBytes{2});
  EXPECT_EQ(cache.Find("shape", {3}), nullptr);
  EXPECT_EQ(cache.Find("other", {1}), nullptr);
}

TEST(AlgorithmCache, ProcessesKeepWhatOthersWrote) {
  const std::string folder = "/tmp/trainyard-cache-test-" + RandomHex(6);
  AlgorithmCache a(folder, "NVIDIA H100/x"), b(folder, "NVIDIA H100/x");
  a.Put("a", {1}, {2});
  a.Save();
  b.Put("b", {3}, {4});
  b.Save();
  const AlgorithmCache c(folder, "NVIDIA H100/x");
  EXPECT_NE(c.Find("a", {1}), nullptr);
  EXPECT_NE(c.Find("b", {3}), nullptr);
  EXPECT_EQ(AlgorithmCache(folder, "NVIDIA A100").Find("a", {1}), nullptr);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trainyard::kernels::cuda
