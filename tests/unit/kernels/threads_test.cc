// Threads change no bit: products and convolutions, most of which a library computes, of every
// element type, with 1, 2, 3 and 16 threads. Other ops are in determinism_test.cc.

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

using Bytes = std::vector<unsigned char>;

// Everything that `buffers` hold.
Bytes BytesOf(std::initializer_list<std::pair<Buffer, int64_t>> buffers) {
  Bytes bytes;
  for (const auto& [buffer, n] : buffers) {
    const auto* first = static_cast<const unsigned char*>(buffer.data);
    bytes.insert(bytes.end(), first, first + n * SizeOf(buffer.dtype));
  }
  return bytes;
}

// Runs `subject` with each number of threads.
template <typename F>
void ExpectSameBits(const std::string& name, const F& subject) {
  const VectorTable& table = *CpuDevice::SupportedTables().front();
  Bytes expected;
  for (const int threads : {1, 2, 3, 16}) {
    Bench bench({&table, threads});
    const Bytes found = subject(bench);
    if (threads == 1) expected = found;
    EXPECT_TRUE(found == expected) << name << " with " << threads << " threads";
  }
}

// With TRAINYARD_ONLY_WITH in the environment: only on a CPU with that flag in /proc/cpuinfo.
class Threads : public testing::Test {
 protected:
  void SetUp() override {
    const char* const flag = std::getenv("TRAINYARD_ONLY_WITH");
    if (flag == nullptr) return;
    std::ifstream file("/proc/cpuinfo");
    const std::string cpus{std::istreambuf_iterator<char>(file), {}};
    if (!absl::StrContains(cpus, absl::StrCat(" ", flag, " "))) {
      GTEST_SKIP() << "this CPU has no " << flag << ", so no fewer instructions can be tried on it";
    }
  }
};

constexpr DType kElements[] = {DType::kF32, DType::kBF16, DType::kF16};

std::string NameOf(const ConvolutionShape& s) {
  std::string name;
  for (const int64_t n : {s.batch, s.height, s.in, s.out, s.kernel_height, s.stride, s.groups})
    name += std::to_string(n) + " ";
  return name;
}

constexpr ConvolutionShape Square(int64_t batch, int64_t size, int64_t in, int64_t out,
                                  int64_t side, int64_t stride = 1, int64_t groups = 1) {
  return {.batch = batch,
          .height = size,
          .width = size,
          .in = in,
          .out = out,
          .kernel_height = side,
          .kernel_width = side,
          .stride = stride,
          .pad = side / 2,
          .groups = groups};
}

const ConvolutionShape kConvolutions[] = {
    Square(1, 8, 3, 8, 3),           Square(1, 8, 8, 8, 3),
    Square(1, 8, 8, 16, 3, 2),       Square(2, 8, 8, 16, 1, 2),
    Square(8, 28, 1, 32, 5),         Square(8, 14, 32, 64, 5),
    Square(16, 32, 3, 64, 3),        Square(2, 64, 3, 64, 7, 2),
    Square(8, 16, 64, 64, 3),        Square(2, 14, 256, 512, 3, 2),
    Square(4, 7, 512, 512, 3),       Square(2, 14, 1024, 256, 1),
    Square(2, 28, 128, 512, 1),      Square(2, 7, 512, 2048, 1),
    Square(4, 16, 64, 128, 1, 2),    Square(2, 14, 64, 64, 3, 1, 64),
    Square(2, 14, 64, 64, 3, 2, 64), Square(2, 14, 128, 128, 3, 1, 32),
    Square(3, 13, 7, 9, 3),          Square(5, 9, 17, 33, 3, 2),
    Square(1, 56, 64, 64, 3),        Square(2, 14, 20, 30, 3, 1, 10),
    Square(3, 30, 24, 40, 11, 4),
};

TEST_F(Threads, Convolutions) {
  for (const ConvolutionShape& s : kConvolutions) {
    for (const DType type : kElements) {
      const int64_t nx = s.batch * s.height * s.width * s.in;
      const int64_t ny = s.batch * s.out_height() * s.out_width() * s.out;
      const int64_t nw = s.out * s.kernel_height * s.kernel_width * s.in / s.groups;
      const Vec vx = RandomVec(nx, 1), vdy = RandomVec(ny, 2), vw = RandomVec(nw, 3),
                vb = RandomVec(s.out, 4);
      const std::string name = std::string(NameOf(type)) + " " + NameOf(s);
      ExpectSameBits(name + "forward", [&](Bench& bench) {
        const Buffer y = bench.Raw(type, ny);
        bench.Run(ConvolutionForward{bench.Elements(type, vx), bench.Elements(type, vw),
                                     bench.Floats(vb), y, s});
        return BytesOf({{y, ny}});
      });
      ExpectSameBits(name + "data", [&](Bench& bench) {
        const Buffer dx = bench.Raw(type, nx);
        bench.Run(
            ConvolutionBackwardData{bench.Elements(type, vdy), bench.Elements(type, vw), dx, s});
        return BytesOf({{dx, nx}});
      });
      for (const bool accumulate : {false, true}) {
        ExpectSameBits(name + "weights", [&](Bench& bench) {
          const Buffer dw = bench.Floats(vw), db = bench.Floats(vb);
          bench.Run(ConvolutionBackwardWeights{.x = bench.Elements(type, vx),
                                               .dy = bench.Elements(type, vdy),
                                               .dw = dw,
                                               .dbias = db,
                                               .shape = s,
                                               .accumulate = accumulate});
          return BytesOf({{dw, nw}, {db, s.out}});
        });
      }
    }
  }
}

struct ProductShape {
  int64_t m, n, k;
};

TEST_F(Threads, Products) {
  for (const ProductShape& shape :
       {ProductShape{8, 8, 8}, {768, 384, 128}, {128, 384, 768}, {512, 128, 768},
        {768, 65, 128},        {65, 128, 768},  {10, 64, 8192},  {3, 5, 20000},
        {100, 120, 1500},      {33, 65, 70},    {200, 100, 300}, {65, 512, 96},
        {300, 17, 64},         {1, 1000, 2048}, {8, 1000, 2048}, {1000, 2048, 8},
        {32, 2304, 768},       {48, 768, 3072}, {768, 3072, 16}, {64, 1, 300},
        {2, 48, 96},           {512, 512, 1},   {64, 64, 4096},  {200, 768, 1000},
        {200, 200, 1024}}) {
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    const Vec va = RandomVec(m * k, 1), vb = RandomVec(k * n, 2), vc = RandomVec(m * n, 3);
    for (const DType type : kElements) {
      for (int flags = 0; flags < (type == DType::kF32 ? 4 : 8); ++flags) {
        const bool turned_a = flags & 1, turned_b = flags & 2, wide = flags & 4;
        const bool accumulate = wide || type == DType::kF32;
        const std::string name = std::string(NameOf(type)) + " " + std::to_string(m) + " " +
                                 std::to_string(n) + " " + std::to_string(k) + ", flags " +
                                 std::to_string(flags);
        ExpectSameBits(name, [&](Bench& bench) {
          const Buffer c = bench.Elements(wide ? DType::kF32 : type, vc);
          bench.Run(Matmul{.a = bench.Elements(type, va),
                           .b = bench.Elements(type, vb),
                           .c = c,
                           .m = m,
                           .n = n,
                           .k = k,
                           .transpose_a = turned_a,
                           .transpose_b = turned_b,
                           .accumulate = accumulate});
          return BytesOf({{c, m * n}});
        });
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels
