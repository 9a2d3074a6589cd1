// The same inputs give the same bits: run after run, with any number of threads and, where the sum
// is in double, on any instruction set.

#include "kernels/step_state.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

// Everything that one op wrote, as bytes.
using Bytes = std::vector<unsigned char>;

Bytes BytesOf(const Buffer& b, int64_t n) {
  const auto* first = static_cast<const unsigned char*>(b.data);
  return Bytes(first, first + n * SizeOf(b.dtype));
}

Bytes LayerNormBytes(Bench& bench) {
  constexpr int64_t kRows = 777, kCols = 130;
  const Buffer dx = bench.Floats(kRows * kCols), both = bench.Floats(2 * kCols);
  const Buffer dbeta{both.As<float>() + kCols};
  bench.Run(LayerNormBackward{.dy = bench.Floats(RandomVec(kRows * kCols, 1)),
                              .x = bench.Floats(RandomVec(kRows * kCols, 2)),
                              .gamma = bench.Floats(RandomVec(kCols, 3)),
                              .mean = bench.Floats(RandomVec(kRows, 4)),
                              .rstd = bench.Floats(RandomVec(kRows, 5)),
                              .dx = dx,
                              .dgamma = both,
                              .dbeta = dbeta,
                              .rows = kRows,
                              .cols = kCols});
  Bytes bytes = BytesOf(dx, kRows * kCols);
  const Bytes params = BytesOf(both, 2 * kCols);
  bytes.insert(bytes.end(), params.begin(), params.end());
  return bytes;
}

Bytes BatchNormBytes(Bench& bench) {
  constexpr int64_t kRows = 7777, kCols = 70, kN = kRows * kCols;
  const Buffer x = bench.Floats(RandomVec(kN, 1)), gamma = bench.Floats(RandomVec(kCols, 2)),
               beta = bench.Floats(RandomVec(kCols, 3)), y = bench.Floats(RandomVec(kN, 4));
  const Buffer mean = bench.Floats(kCols), rstd = bench.Floats(kCols),
               running = bench.Floats(Vec(kCols, 0.0)), both = bench.Floats(2 * kCols);
  bench.Run(BatchNormForward{.x = x,
                             .gamma = gamma,
                             .beta = beta,
                             .residual = y,
                             .y = y,
                             .mean = mean,
                             .rstd = rstd,
                             .running_mean = running,
                             .running_var = running,
                             .rows = kRows,
                             .cols = kCols,
                             .relu = true});
  bench.Run(BatchNormBackward{.dy = bench.Floats(RandomVec(kN, 5)),
                              .x = x,
                              .y = y,
                              .gamma = gamma,
                              .mean = mean,
                              .rstd = rstd,
                              .dx = x,
                              .dgamma = both,
                              .dbeta = {both.As<float>() + kCols},
                              .rows = kRows,
                              .cols = kCols});
  Bytes bytes = BytesOf(x, kN);
  const Bytes params = BytesOf(both, 2 * kCols);
  bytes.insert(bytes.end(), params.begin(), params.end());
  return bytes;
}

Bytes ColumnSumBytes(Bench& bench) {
  const Buffer y = bench.Floats(65);
  bench.Run(ColumnSum{bench.Floats(RandomVec(5000 * 65, 1)), y, 5000, 65, false});
  return BytesOf(y, 65);
}

Bytes NormBytes(Bench& bench) {
  const Buffer sum = bench.Raw(DType::kF64, 1);
  const Buffer x = bench.Floats(RandomVec(300'001, 1));
  bench.Run(SquaredNorm{x, sum, 300'001, false});
  bench.Run(Sum{x, sum, 300'001, true});
  return BytesOf(sum, 1);
}

Bytes AttentionBytes(Bench& bench) {
  constexpr int64_t kBatch = 3, kTime = 65, kHeads = 3, kDim = 32;
  constexpr int64_t kY = kBatch * kTime * kHeads * kDim;
  const Buffer qkv = bench.Floats(RandomVec(3 * kY, 1)), y = bench.Floats(kY),
               lse = bench.Floats(kBatch * kHeads * kTime), dqkv = bench.Floats(3 * kY);
  bench.Run(AttentionForward{qkv, y, lse, kBatch, kTime, kHeads, kHeads, kDim, 0.2f, true});
  bench.Run(AttentionBackward{bench.Floats(RandomVec(kY, 2)), qkv, y, lse, dqkv, kBatch, kTime,
                              kHeads, kHeads, kDim, 0.2f, true});
  return BytesOf(dqkv, 3 * kY);
}

Bytes EmbeddingBytes(Bench& bench) {
  constexpr int64_t kPlaces = 12 * 64, kWidth = 128, kVocab = 7;
  const Buffer dtokens = bench.Floats(Vec(kVocab * kWidth, 0.0));
  bench.Run(EmbeddingBackward{.dy = bench.Floats(RandomVec(kPlaces * kWidth, 1)),
                              .ids = bench.Ints(RandomIds(kPlaces, kVocab, 2)),
                              .dtokens = dtokens,
                              .batch = 12,
                              .time = 64,
                              .width = kWidth,
                              .vocab = kVocab});
  return BytesOf(dtokens, kVocab * kWidth);
}

Bytes RecommenderBytes(Bench& bench) {
  constexpr int64_t kBatch = 700, kCount = 5, kWidth = 16;
  const Buffer x = bench.Floats(RandomVec(kBatch * kWidth, 1));
  const Buffer e = bench.Floats(RandomVec(kBatch * kCount * kWidth, 2));
  const int64_t out = kWidth + kCount * (kCount + 1) / 2;
  const Buffer y = bench.Floats(kBatch * out), dx = bench.Floats(kBatch * kWidth),
               de = bench.Floats(kBatch * kCount * kWidth);
  bench.Run(InteractionForward{x, e, y, kBatch, kCount, kWidth});
  bench.Run(InteractionBackward{y, x, e, dx, de, kBatch, kCount, kWidth});
  bench.Run(MergeRows{de, bench.Ints(RandomIds(kBatch * kCount, 9, 3)), kBatch, kCount, kWidth});
  Bytes bytes = BytesOf(de, kBatch * kCount * kWidth);
  const Bytes more = BytesOf(dx, kBatch * kWidth);
  bytes.insert(bytes.end(), more.begin(), more.end());
  return bytes;
}

Bytes ElementwiseBytes(Bench& bench) {
  constexpr int64_t kN = 50'003;
  StepState state{.seed = 3, .step = 4, .learning_rate = 0.01f};
  const Buffer x = bench.Floats(RandomVec(kN, 1)), y = bench.Floats(kN);
  const Buffer m = bench.Floats(Vec(kN, 0.0)), v = bench.Floats(Vec(kN, 0.0));
  bench.Run(ActivationForward{ActivationKind::kGelu, x, y, kN});
  bench.Run(Dropout{y, y, {&state}, 1, 1, kN, 0.1f});
  bench.Run(AdamWStep{.w = x, .grad = y, .m = m, .v = v, .state = {&state}, .n = kN});
  return BytesOf(x, kN);
}

Bytes LambBytes(Bench& bench) {
  constexpr int64_t kN = 50'003;
  StepState state{.step = 4, .learning_rate = 0.01f};
  const Buffer w = bench.Floats(RandomVec(kN, 1));
  bench.Run(LambStep{.w = w,
                     .grad = bench.Floats(RandomVec(kN, 2)),
                     .m = bench.Floats(Vec(kN, 0.0)),
                     .v = bench.Floats(Vec(kN, 0.0)),
                     .state = {&state},
                     .n = kN,
                     .weight_decay = 0.1f});
  return BytesOf(w, kN);
}

// The products of Muon's iterations on the matrices of a character GPT.
Bytes GramBytes(Bench& bench) {
  Bytes all;
  for (const auto& [small, large] :
       {std::pair<int64_t, int64_t>{128, 384}, {128, 512}, {128, 128}}) {
    const Buffer x = bench.Floats(RandomVec(small * large, 1)), gram = bench.Floats(small * small);
    bench.Run(
        Matmul{.a = x, .b = x, .c = gram, .m = small, .n = small, .k = large, .transpose_b = true});
    const Bytes bytes = BytesOf(gram, small * small);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

struct ProductShape {
  int64_t m, n, k;
};

Bytes WeightGradientBytes(Bench& bench, std::initializer_list<ProductShape> shapes) {
  Bytes all;
  for (const auto& [m, n, k] : shapes) {
    const Buffer c = bench.Floats(RandomVec(m * n, 3));
    bench.Run(Matmul{.a = bench.Floats(RandomVec(m * k, 1)),
                     .b = bench.Floats(RandomVec(k * n, 2)),
                     .c = c,
                     .m = m,
                     .n = n,
                     .k = k,
                     .transpose_a = true,
                     .accumulate = true});
    const Bytes bytes = BytesOf(c, m * n);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Bytes MatmulBytes(Bench& bench) {
  return WeightGradientBytes(
      bench, {{128, 384, 768}, {128, 128, 768}, {128, 512, 768}, {512, 128, 768}, {65, 128, 768}});
}

// A small result of a long sum tempts a library to split the sum.
Bytes LongMatmulBytes(Bench& bench) {
  return WeightGradientBytes(bench, {{10, 64, 8192}, {3, 5, 20'000}, {100, 120, 1500}});
}

// Sizes that no block of a library divides.
Bytes OddMatmulBytes(Bench& bench) {
  return WeightGradientBytes(bench, {{33, 65, 70}, {200, 100, 300}, {65, 512, 96}, {300, 17, 64}});
}

// Columns of wider matrices, as of low-rank adapters.
Bytes ApartMatmulBytes(Bench& bench) {
  Bytes all;
  for (const auto& [m, n, k] : {ProductShape{2, 48, 96}, {96, 48, 2}, {70, 33, 500}}) {
    const int64_t a_stride = k + 16, c_stride = n + 48;
    const Buffer c = bench.Floats(RandomVec(m * c_stride, 3));
    bench.Run(Matmul{.a = bench.Floats(RandomVec(m * a_stride, 1)).WithRowStride(a_stride),
                     .b = bench.Floats(RandomVec(k * n, 2)),
                     .c = c.WithRowStride(c_stride),
                     .m = m,
                     .n = n,
                     .k = k,
                     .transpose_b = true,
                     .accumulate = true,
                     .scale = 0.5f});
    const Bytes bytes = BytesOf(c, m * c_stride);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

// By staged copies in fp32, where the CPU has no instructions for fp16.
Bytes HalfMatmulBytes(Bench& bench) {
  constexpr int64_t kM = 100, kN = 70, kK = 300;
  const Buffer c = bench.Raw(DType::kF16, kM * kN);
  bench.Run(Matmul{.a = bench.Elements(DType::kF16, RandomVec(kM * kK, 1)),
                   .b = bench.Elements(DType::kF16, RandomVec(kK * kN, 2)),
                   .c = c,
                   .m = kM,
                   .n = kN,
                   .k = kK});
  return BytesOf(c, kM * kN);
}

// All three products.
Bytes ConvolutionBytes(Bench& bench, const ConvolutionShape& s) {
  const int64_t x_size = s.batch * s.height * s.width * s.in;
  const int64_t y_size = s.batch * s.out_height() * s.out_width() * s.out;
  const int64_t w_size = s.out * s.kernel_height * s.kernel_width * s.in;
  const Buffer x = bench.Floats(RandomVec(x_size, 1)), dy = bench.Floats(RandomVec(y_size, 2));
  const Buffer w = bench.Floats(RandomVec(w_size, 3));
  const Buffer y = bench.Floats(y_size), dx = bench.Floats(x_size), dw = bench.Floats(w_size);
  const Buffer dbias = bench.Floats(s.out);
  bench.Run(ConvolutionForward{.x = x, .w = w, .y = y, .shape = s});
  bench.Run(ConvolutionBackwardData{.dy = dy, .w = w, .dx = dx, .shape = s});
  bench.Run(ConvolutionBackwardWeights{.x = x, .dy = dy, .dw = dw, .dbias = dbias, .shape = s});
  Bytes bytes = BytesOf(y, y_size);
  for (const Bytes& more : {BytesOf(dx, x_size), BytesOf(dw, w_size), BytesOf(dbias, s.out)}) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

ConvolutionShape Window(int64_t batch, int64_t in, int64_t out, int64_t side, int64_t stride) {
  return {.batch = batch,
          .height = 28,
          .width = 28,
          .in = in,
          .out = out,
          .kernel_height = side,
          .kernel_width = side,
          .stride = stride,
          .pad = side / 2};
}

// 98 tiles: few enough to be cut differently for each number of threads.
Bytes WinogradBytes(Bench& bench) { return ConvolutionBytes(bench, Window(2, 16, 32, 3, 1)); }
Bytes StridedBytes(Bench& bench) { return ConvolutionBytes(bench, Window(8, 32, 48, 3, 2)); }
Bytes PointwiseBytes(Bench& bench) { return ConvolutionBytes(bench, Window(8, 32, 64, 1, 1)); }
Bytes FirstLayerBytes(Bench& bench) { return ConvolutionBytes(bench, Window(8, 3, 16, 3, 1)); }

struct Subject {
  const char* name;
  Bytes (*run)(Bench& bench);
  bool any_table;  // summed in double
};

const Subject kSubjects[] = {
    {"layer norm", LayerNormBytes, false},
    {"batch norm", BatchNormBytes, false},
    {"column sum", ColumnSumBytes, false},
    {"sum and norm", NormBytes, true},
    {"attention", AttentionBytes, false},
    {"embedding", EmbeddingBytes, true},
    {"recommender", RecommenderBytes, false},
    {"elementwise", ElementwiseBytes, false},
    {"lamb", LambBytes, false},
    {"matmul of a character GPT", MatmulBytes, false},
    {"matmul of muon", GramBytes, false},
    {"matmul of a long sum", LongMatmulBytes, false},
    {"matmul of odd sizes", OddMatmulBytes, false},
    {"matmul of rows that lie apart", ApartMatmulBytes, false},
    {"matmul in fp16", HalfMatmulBytes, false},
    {"convolution by Winograd", WinogradBytes, false},
    {"strided convolution", StridedBytes, false},
    {"pointwise convolution", PointwiseBytes, false},
    {"convolution of a first layer", FirstLayerBytes, false},
};

TEST(Determinism, EveryOpGivesTheSameBitsTwice) {
  for (const CpuCase& c : AllCpuCases()) {
    for (const Subject& subject : kSubjects) {
      Bench first(c), second(c);
      EXPECT_EQ(subject.run(first), subject.run(second))
          << subject.name << " on " << c.table->name << " x" << c.threads;
    }
  }
}

TEST(Determinism, NoOpDependsOnTheNumberOfThreads) {
  for (const VectorTable* table : CpuDevice::SupportedTables()) {
    for (const Subject& subject : kSubjects) {
      Bench one({table, 1});
      const Bytes expected = subject.run(one);
      for (const int threads : {2, 3, 8}) {
        Bench many({table, threads});
        EXPECT_EQ(subject.run(many), expected) << subject.name << " x" << threads;
      }
    }
  }
}

TEST(Determinism, SumsInDoubleDoNotDependOnTheInstructionSet) {
  for (const Subject& subject : kSubjects) {
    if (!subject.any_table) continue;
    Bench best({CpuDevice::SupportedTables().front(), 2});
    const Bytes expected = subject.run(best);
    for (const VectorTable* table : CpuDevice::SupportedTables()) {
      Bench other({table, 2});
      EXPECT_EQ(subject.run(other), expected) << subject.name << " on " << table->name;
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels
