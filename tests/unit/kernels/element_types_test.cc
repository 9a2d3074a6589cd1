// Every op on elements of sixteen bits: what fp32 arithmetic gives on the rounded inputs, rounded
// once. ExpectClose allows for that rounding by the type of the buffer.

#include <limits>
#include <tuple>

#include "kernels/step_state.h"
#include "tests/reference/attention.h"
#include "tests/reference/batch_norm.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/element.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/image.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/linear.h"
#include "tests/reference/llama.h"
#include "tests/reference/recommender.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr DType kNarrow[] = {DType::kBF16, DType::kF16};

class ElementTypesTest : public CpuTest {
 protected:
  static Vec Random(DType type, int64_t n, int seed, double scale = 1) {
    Vec x = RandomVec(n, seed, scale);
    for (double& v : x) v = reference::Rounded(type, v);
    return x;
  }

  // y of casting `x` to `type`.
  std::vector<uint16_t> Narrowed(DType type, const std::vector<float>& x) {
    const auto n = static_cast<int64_t>(x.size());
    const Buffer from = bench_.Floats(n), to = bench_.Raw(type, n);
    std::memcpy(from.data, x.data(), x.size() * sizeof(float));
    bench_.Run(Cast{from, to, n});
    const auto* bits = static_cast<const uint16_t*>(to.data);
    return std::vector<uint16_t>(bits, bits + n);
  }
};

TEST_P(ElementTypesTest, EveryNumberOfSixteenBitsIsReadExactly) {
  constexpr int64_t kAll = 1 << 16;
  for (const DType type : kNarrow) {
    const Buffer x = bench_.Raw(type, kAll), y = bench_.Floats(kAll);
    for (int64_t i = 0; i < kAll; ++i) {
      static_cast<uint16_t*>(x.data)[i] = static_cast<uint16_t>(i);
    }
    bench_.Run(Cast{x, y, kAll});
    int64_t wrong = 0;
    for (int64_t i = 0; i < kAll; ++i) {
      const double expected = reference::ToDouble(type, static_cast<uint16_t>(i));
      const float found = y.As<float>()[i];
      wrong += std::isnan(expected)
                   ? !std::isnan(found)
                   : found != expected || std::signbit(found) != std::signbit(expected);
    }
    EXPECT_EQ(wrong, 0);
  }
}

// All numbers, what lies halfway to the next, and the neighbours of that.
TEST_P(ElementTypesTest, CastingRoundsToNearestAndTiesToEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DType type : kNarrow) {
    std::vector<float> x = {0.0f,       -0.0f, 1e-45f,    -1e-45f,   3e38f,  3.4e38f, -3.4e38f,
                            kInfinity,  65504, 65519.99f, 65520,     -65536, 1e-8f,   2.9802322e-8f,
                            -kInfinity, 3e-8f, 6e-8f,     -5.96e-8f, 1e30f,  1e-30f};
    for (int bits = 0; bits < 0x7fff; ++bits) {
      const auto low = static_cast<float>(reference::ToDouble(type, static_cast<uint16_t>(bits)));
      const auto high =
          static_cast<float>(reference::ToDouble(type, static_cast<uint16_t>(bits + 1)));
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float half = low / 2 + high / 2;
      for (const float v :
           {low, half, std::nextafter(half, 0.0f), std::nextafter(half, kInfinity)}) {
        x.push_back(v);
        x.push_back(-v);
      }
    }
    const std::vector<uint16_t> bits = Narrowed(type, x);
    int64_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (bits[i] == reference::ToBits(type, x[i])) continue;
      if (++wrong <= 3) {
        ADD_FAILURE() << x[i] << " became " << reference::ToDouble(type, bits[i]) << ", expected "
                      << reference::Rounded(type, x[i]);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST_P(ElementTypesTest, NotANumberStaysNone) {
  for (const DType type : kNarrow) {
    for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff80ffffu, 0x7fffffffu}) {
      float x = 0;
      std::memcpy(&x, &bits, sizeof(x));
      EXPECT_TRUE(std::isnan(reference::ToDouble(type, Narrowed(type, {x})[0])));
    }
  }
}

TEST_P(ElementTypesTest, ActivationsAndTheirGradients) {
  for (const DType type : kNarrow) {
    for (const ActivationKind kind :
         {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
      for (const int64_t n : {1, 17, 3001}) {
        const Vec x = Random(type, n, 1, 2), dy = Random(type, n, 2);
        Vec y(n), dx(n);
        for (int64_t i = 0; i < n; ++i) {
          y[i] = reference::Activation(kind, x[i]);
          dx[i] = dy[i] * reference::ActivationSlope(kind, x[i]);
        }
        const Buffer out = bench_.Raw(type, n), gradient = bench_.Elements(type, dy);
        bench_.Run(ActivationForward{kind, bench_.Elements(type, x), out, n});
        bench_.Run(ActivationBackward{kind, bench_.Elements(type, x), gradient, gradient, n});
        ExpectClose(out, y, 1e-6, "y");
        ExpectClose(gradient, dx, 2e-6, "dx in place of dy");
      }
    }
  }
}

TEST_P(ElementTypesTest, SumsOfOneTypeAndOfAStreamWithABranch) {
  for (const DType type : kNarrow) {
    for (const int64_t n : {1, 17, 3001}) {
      const Vec a = Random(type, n, 1), b = Random(type, n, 2), stream = RandomVec(n, 3);
      const Buffer both = bench_.Elements(type, a), wide = bench_.Floats(stream);
      bench_.Run(Add{both, bench_.Elements(type, b), both, n});
      bench_.Run(Add{wide, bench_.Elements(type, b), wide, n});
      ExpectClose(both, Plus(a, b), 1e-7, "sum");
      ExpectClose(wide, Plus(stream, b), 1e-7, "stream and branch");
    }
  }
}

TEST_P(ElementTypesTest, DropoutDropsWhatTheContractNames) {
  StepState state{.seed = 3, .step = 7, .first_sample = 10};
  constexpr int64_t kSamples = 3, kEach = 1001;
  for (const DType type : kNarrow) {
    const Vec x = Random(type, kSamples * kEach, 1);
    const Vec keep = reference::DropoutKeep(state.seed, 5, state.step, state.first_sample, kSamples,
                                            kEach, 0.2f);
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = keep[i] * x[i] / (1 - 0.2);
    const Buffer in_place = bench_.Elements(type, x);
    bench_.Run(Dropout{in_place, in_place, {&state}, 5, kSamples, kEach, 0.2f});
    ExpectClose(in_place, y, 1e-6, "y");
  }
}

TEST_P(ElementTypesTest, RotaryAndSwiGlu) {
  constexpr int64_t kBatch = 2, kTime = 5, kHeads = 3, kDim = 14, kRows = 4, kCols = 19;
  for (const DType type : kNarrow) {
    const Vec x = Random(type, kBatch * kTime * kHeads * kDim, 1);
    const Buffer turned = bench_.Elements(type, x);
    bench_.Run(Rotary{.x = turned,
                      .y = turned,
                      .batch = kBatch,
                      .time = kTime,
                      .heads = kHeads,
                      .rotated = 2,
                      .head_dim = kDim});
    ExpectClose(turned, reference::Rotary(x, {kBatch, kTime, kHeads, 2, kDim, 10000}, false), 1e-6,
                "rotary");

    const Vec pair = Random(type, 2 * kRows * kCols, 2), dy = Random(type, kRows * kCols, 3);
    const Buffer gate_up = bench_.Elements(type, pair), y = bench_.Raw(type, kRows * kCols);
    bench_.Run(SwiGluForward{gate_up, y, kRows, kCols});
    bench_.Run(SwiGluBackward{gate_up, bench_.Elements(type, dy), gate_up, kRows, kCols});
    ExpectClose(y, reference::SwiGlu(pair, kRows, kCols), 2e-6, "swiglu");
    ExpectClose(gate_up, reference::SwiGluBackward(pair, dy, kRows, kCols), 2e-6, "dx");
  }
}

TEST_P(ElementTypesTest, TransposeMovesTheBits) {
  constexpr int64_t kBatch = 2, kRows = 67, kCols = 33;
  for (const DType type : kNarrow) {
    const Vec x = Random(type, kBatch * kRows * kCols, 1);
    Vec expected(x.size());
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < kRows * kCols; ++i) {
        expected[(b * kCols + i % kCols) * kRows + i / kCols] = x[b * kRows * kCols + i];
      }
    }
    const Buffer y = bench_.Raw(type, static_cast<int64_t>(x.size()));
    bench_.Run(Transpose{bench_.Elements(type, x), y, kBatch, kRows, kCols});
    EXPECT_EQ(Bench::Read(y, static_cast<int64_t>(x.size())), expected);
  }
}

TEST_P(ElementTypesTest, LayerNormReadsTheStreamAndLeavesElements) {
  constexpr int64_t kRows = 70, kCols = 67;
  for (const DType type : kNarrow) {
    const Vec x = RandomVec(kRows * kCols, 1), gamma = RandomVec(kCols, 2),
              beta = RandomVec(kCols, 3), dy = Random(type, kRows * kCols, 4),
              before = RandomVec(kRows * kCols, 5);
    const auto expected = reference::LayerNorm(x, gamma, beta, kRows, kCols, 1e-5);
    const auto gradient = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, 1e-5);
    const Buffer y = bench_.Raw(type, kRows * kCols), mean = bench_.Floats(kRows),
                 rstd = bench_.Floats(kRows), dx = bench_.Floats(before),
                 dgamma = bench_.Floats(kCols), dbeta = bench_.Floats(kCols);
    bench_.Run(LayerNormForward{.x = bench_.Floats(x),
                                .gamma = bench_.Floats(gamma),
                                .beta = bench_.Floats(beta),
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .rows = kRows,
                                .cols = kCols});
    bench_.Run(LayerNormBackward{.dy = bench_.Elements(type, dy),
                                 .x = bench_.Floats(x),
                                 .gamma = bench_.Floats(gamma),
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .rows = kRows,
                                 .cols = kCols,
                                 .accumulate_dx = true});
    ExpectClose(y, expected.y, 3e-6, "y");
    ExpectClose(dx, Plus(before, gradient.dx), 5e-6, "dx");
    ExpectClose(dgamma, gradient.dgamma, 5e-6, "dgamma");
    ExpectClose(dbeta, gradient.dbeta, 5e-6, "dbeta");
  }
}

TEST_P(ElementTypesTest, BatchNormWithResidualAndRelu) {
  constexpr int64_t kRows = 150, kCols = 19, kN = kRows * kCols;
  const reference::BatchNormShape shape{.rows = kRows, .cols = kCols, .relu = true};
  for (const DType type : kNarrow) {
    const Vec x = Random(type, kN, 1), gamma = RandomVec(kCols, 2), beta = RandomVec(kCols, 3),
              residual = Random(type, kN, 4), dy = Random(type, kN, 5);
    const auto expected = reference::BatchNorm(x, gamma, beta, residual, shape);
    const Buffer y = bench_.Elements(type, residual), mean = bench_.Floats(kCols),
                 rstd = bench_.Floats(kCols), zero = bench_.Floats(Vec(kCols, 0.0)),
                 one = bench_.Floats(Vec(kCols, 1.0)), gammas = bench_.Floats(gamma);
    bench_.Run(BatchNormForward{.x = bench_.Elements(type, x),
                                .gamma = gammas,
                                .beta = bench_.Floats(beta),
                                .residual = y,
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .running_mean = zero,
                                .running_var = one,
                                .rows = kRows,
                                .cols = kCols,
                                .relu = true});
    ExpectClose(y, expected.y, 1e-5, "y");
    ExpectClose(mean, expected.mean, 1e-5, "mean");

    const Vec left = Bench::Read(y, kN);
    const auto gradient = reference::BatchNormBackward(dy, x, left, gamma, shape);
    const Buffer dx = bench_.Elements(type, x), g = bench_.Elements(type, dy),
                 dgamma = bench_.Floats(kCols), dbeta = bench_.Floats(kCols);
    bench_.Run(BatchNormBackward{.dy = g,
                                 .x = dx,
                                 .y = y,
                                 .gamma = gammas,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dresidual = g,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .rows = kRows,
                                 .cols = kCols});
    ExpectClose(dx, gradient.dx, 1e-5, "dx in place of x");
    ExpectClose(g, gradient.dresidual, 0, "dresidual in place of dy");
    ExpectClose(dgamma, gradient.dgamma, 1e-5, "dgamma");
    ExpectClose(dbeta, gradient.dbeta, 1e-5, "dbeta");

    const Vec means = RandomVec(kCols, 6), variances(kCols, 2.5);
    const Buffer out = bench_.Elements(type, x);
    bench_.Run(BatchNormInference{.x = out,
                                  .gamma = gammas,
                                  .beta = bench_.Floats(beta),
                                  .residual = bench_.Elements(type, residual),
                                  .running_mean = bench_.Floats(means),
                                  .running_var = bench_.Floats(variances),
                                  .y = out,
                                  .rows = kRows,
                                  .cols = kCols,
                                  .relu = true});
    ExpectClose(out,
                reference::BatchNormInference(x, gamma, beta, residual, means, variances, shape),
                1e-5, "inference in place of x");
  }
}

// The gradient may start from y as it was stored, whose rounding it then sees.
TEST_P(ElementTypesTest, AttentionAndItsGradient) {
  const reference::AttentionShape shape{
      .batch = 2, .time = 19, .heads = 4, .head_dim = 20, .scale = 0.25, .group = 2};
  for (const DType type : kNarrow) {
    const Vec qkv = Random(type, shape.qkv_size(), 1), dy = Random(type, shape.y_size(), 2);
    const auto expected = reference::Attention(qkv, shape);
    const Buffer y = bench_.Raw(type, shape.y_size()), lse = bench_.Floats(shape.lse_size()),
                 dqkv = bench_.Raw(type, shape.qkv_size()), from = bench_.Elements(type, qkv);
    bench_.Run(AttentionForward{.qkv = from,
                                .y = y,
                                .lse = lse,
                                .batch = shape.batch,
                                .time = shape.time,
                                .heads = shape.heads,
                                .kv_heads = shape.kv_heads(),
                                .head_dim = shape.head_dim,
                                .scale = 0.25f});
    bench_.Run(AttentionBackward{.dy = bench_.Elements(type, dy),
                                 .qkv = from,
                                 .y = y,
                                 .lse = lse,
                                 .dqkv = dqkv,
                                 .batch = shape.batch,
                                 .time = shape.time,
                                 .heads = shape.heads,
                                 .kv_heads = shape.kv_heads(),
                                 .head_dim = shape.head_dim,
                                 .scale = 0.25f});
    // On tensor cores probabilities are rounded before they are multiplied.
    ExpectClose(y, expected.y, 2e-6 + kExtraRoundings * reference::UnitRoundoff(type), "y");
    ExpectClose(lse, expected.lse, 2e-6, "lse");
    // Of the gradient of the scores what dy . y says is taken off, and y is rounded.
    ExpectClose(dqkv, reference::AttentionBackward(dy, qkv, shape),
                1e-5 + 4 * reference::UnitRoundoff(type), "dqkv");
  }
}

TEST_P(ElementTypesTest, CrossEntropyInPlace) {
  for (const DType type : kNarrow) {
    for (const int64_t classes : {2, 65, 1500}) {
      constexpr int64_t kRows = 9;
      const Vec logits = Random(type, kRows * classes, 1, 3);
      std::vector<int32_t> targets = RandomIds(kRows, static_cast<int32_t>(classes), 2);
      targets[3] = -1;
      const auto expected = reference::CrossEntropy(logits, targets, classes, 0.25);
      const Buffer in_place = bench_.Elements(type, logits), losses = bench_.Floats(kRows),
                   correct = bench_.Floats(kRows);
      bench_.Run(CrossEntropy{.logits = in_place,
                              .targets = bench_.Ints(targets),
                              .losses = losses,
                              .correct = correct,
                              .dlogits = in_place,
                              .rows = kRows,
                              .classes = classes,
                              .scale = 0.25f});
      ExpectClose(losses, expected.losses, 2e-6, "losses");
      ExpectClose(correct, expected.correct, 0, "correct");
      ExpectClose(in_place, expected.dlogits, 2e-6, "dlogits");
    }
  }
}

// Ties are common among few numbers: the first largest wins.
TEST_P(ElementTypesTest, ATiedLogitIsRightOnlyIfItIsTheFirst) {
  for (const DType type : kNarrow) {
    const Buffer losses = bench_.Floats(2), correct = bench_.Floats(2);
    Vec logits(2 * 40, 1.0);
    logits[3] = logits[20] = logits[40 + 3] = logits[40 + 20] = 2;
    bench_.Run(CrossEntropy{.logits = bench_.Elements(type, logits),
                            .targets = bench_.Ints({3, 20}),
                            .losses = losses,
                            .correct = correct,
                            .rows = 2,
                            .classes = 40});
    EXPECT_EQ(Bench::Read(correct, 2), (Vec{1, 0}));
  }
}

TEST_P(ElementTypesTest, ColumnSumsAndPools) {
  for (const DType type : kNarrow) {
    constexpr int64_t kRows = 130, kCols = 67;
    const Vec x = Random(type, kRows * kCols, 1), before = RandomVec(kCols, 2);
    const Buffer sums = bench_.Floats(before);
    bench_.Run(ColumnSum{bench_.Elements(type, x), sums, kRows, kCols, true});
    ExpectClose(sums, Plus(reference::ColumnSum(x, kRows, kCols), before), 3e-6, "column sum");

    const Vec image = Random(type, 2 * 35 * 19, 3), dmean = Random(type, 2 * 19, 4);
    const Buffer mean = bench_.Raw(type, 2 * 19), spread = bench_.Raw(type, 2 * 35 * 19);
    bench_.Run(MeanPoolForward{bench_.Elements(type, image), mean, 2, 35, 19});
    bench_.Run(MeanPoolBackward{bench_.Elements(type, dmean), spread, 2, 35, 19});
    ExpectClose(mean, reference::MeanPool(image, 2, 35, 19), 1e-6, "mean pool");
    ExpectClose(spread, reference::MeanPoolBackward(dmean, 2, 35, 19), 1e-6, "its gradient");

    for (const int64_t channels : {19, 24}) {  // 24 are three packs of 16 bytes
      const PoolShape pool{.batch = 2,
                           .height = 9,
                           .width = 7,
                           .channels = channels,
                           .window = 3,
                           .stride = 2,
                           .pad = 1};
      const int64_t in = 2 * 9 * 7 * channels,
                    out = 2 * pool.out_height() * pool.out_width() * channels;
      Vec pixels = Random(type, in, 5);
      for (double& v : pixels) v = std::round(v * 2);  // the first of equals is taken
      const Vec dy = Random(type, out, 6);
      const auto expected = reference::MaxPool(pixels, pool);
      const Buffer y = bench_.Raw(type, out), index = bench_.Raw(DType::kU8, out),
                   dx = bench_.Raw(type, in);
      bench_.Run(MaxPoolForward{bench_.Elements(type, pixels), y, index, pool});
      bench_.Run(MaxPoolBackward{bench_.Elements(type, dy), index, dx, pool});
      EXPECT_EQ(Bench::Read(y, out), expected.y);
      ExpectClose(dx, reference::MaxPoolBackward(dy, expected.index, pool), 1e-6, "dx");
    }
  }
}

// As if they had been normalised in fp32 and cast.
TEST_P(ElementTypesTest, NormalisedImagesAreThoseOfFp32Rounded) {
  for (const auto& [channels, cropped] : {std::pair{1, false}, {3, false}, {1, true}, {3, true}}) {
    constexpr int64_t kPixels = 1033;
    const int64_t n = kPixels * channels;
    NormalizeImages op{.x = bench_.Raw(DType::kU8, n),
                       .places = cropped ? bench_.Ints({0, -3, 1}) : Buffer(),
                       .y = bench_.Floats(n),
                       .pixels = kPixels,
                       .channels = channels,
                       .height = 1,
                       .width = kPixels,
                       .mean = {0.485, 0.456, 0.406},
                       .std = {0.229, 0.224, 0.225}};
    for (int64_t i = 0; i < n; ++i) op.x.As<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 257);
    bench_.Run(op);
    const std::vector<float> wide(op.y.As<float>(), op.y.As<float>() + n);
    for (const DType type : kNarrow) {
      op.y = bench_.Raw(type, n);
      bench_.Run(op);
      const auto* bits = static_cast<const uint16_t*>(op.y.data);
      EXPECT_EQ(std::vector<uint16_t>(bits, bits + n), Narrowed(type, wide));
    }
  }
}

TEST_P(ElementTypesTest, MatmulInEveryLayoutToElementsAndToFloats) {
  const std::string device = bench_.device().Description();
  const bool on_gpu = !device.starts_with("cpu") && device.find("emulated") == device.npos;
  struct Shape {
    int64_t m, n, k;
  };
  for (const DType type : kNarrow) {
    for (const auto& [m, n, k] :
         {Shape{1, 1, 1}, Shape{3, 17, 65}, Shape{65, 3, 17}, Shape{96, 64, 128}}) {
      for (int layout = 0; layout < 32; ++layout) {
        const bool ta = layout & 1, tb = layout & 2, accumulate = layout & 4, bias = layout & 8;
        const DType of_c = layout & 16 ? type : DType::kF32;
        const Vec a = Random(type, m * k, 1), b = Random(type, k * n, 2),
                  before = Random(of_c, m * n, 3), biases = Random(type, n, 4);
        Vec expected = reference::Matmul(a, b, m, n, k, ta, tb);
        for (int64_t i = 0; i < m * n; ++i) {
          expected[i] += (bias ? biases[i % n] : 0) + (accumulate ? before[i] : 0);
        }
        const Buffer c = accumulate ? bench_.Elements(of_c, before) : bench_.Raw(of_c, m * n);
        bench_.Run(Matmul{.a = bench_.Elements(type, a),
                          .b = bench_.Elements(type, b),
                          .bias = bias ? bench_.Floats(biases) : Buffer(),
                          .c = c,
                          .m = m,
                          .n = n,
                          .k = k,
                          .transpose_a = ta,
                          .transpose_b = tb,
                          .accumulate = accumulate});
        // Some of cuBLASLt's kernels round the product before they add to it.
        const bool twice = on_gpu && (accumulate || bias) && of_c != DType::kF32;
        ExpectClose(c, expected, twice ? 2 * reference::UnitRoundoff(of_c) : 5e-6,
                    "m " + std::to_string(m) + " layout " + std::to_string(layout));
      }
    }
  }
}

TEST_P(ElementTypesTest, ConvolutionAndItsGradients) {
  for (const DType type : kNarrow) {
    // The last goes by Winograd's algorithm where the type's products are made in fp32.
    for (const auto& [batch, in, out] :
         {std::tuple{2, 1, 17}, {2, 3, 17}, {2, 16, 17}, {11, 16, 48}}) {
      const ConvolutionShape s{.batch = batch,
                               .height = 9,
                               .width = 7,
                               .in = in,
                               .out = out,
                               .kernel_height = 3,
                               .kernel_width = 3,
                               .stride = in == 3 ? 2 : 1,
                               .pad = 1};
      const int64_t of_x = batch * 9 * 7 * in, of_w = out * in * 9,
                    of_y = batch * s.out_height() * s.out_width() * out;
      const Vec x = Random(type, of_x, 1), w = Random(type, of_w, 2), bias = RandomVec(out, 3),
                dy = Random(type, of_y, 4), before = RandomVec(of_w, 5);
      const Buffer xs = bench_.Elements(type, x), ws = bench_.Elements(type, w),
                   dys = bench_.Elements(type, dy), y = bench_.Raw(type, of_y),
                   dx = bench_.Raw(type, of_x), dw = bench_.Floats(before),
                   dbias = bench_.Floats(bias);
      bench_.Run(ConvolutionForward{xs, ws, bench_.Floats(bias), y, s});
      bench_.Run(ConvolutionBackwardData{dys, ws, dx, s});
      bench_.Run(ConvolutionBackwardWeights{xs, dys, dw, dbias, s, true});
      const auto gradient = reference::ConvolutionBackwardWeights(x, dy, s);
      const double of_sums = batch == 11 ? 1.5e-5 : 5e-6;
      const double tolerance = of_sums + kExtraRoundings * reference::UnitRoundoff(type);
      ExpectClose(y, reference::Convolution(x, w, bias, s), tolerance, "y");
      ExpectClose(dx, reference::ConvolutionBackwardData(dy, w, s), of_sums, "dx");
      ExpectClose(dw, Plus(before, gradient.dw), 2 * tolerance, "dw");
      ExpectClose(dbias, Plus(bias, gradient.dbias), 5e-6, "dbias");
    }
  }
}

TEST_P(ElementTypesTest, InteractionAndItsGradient) {
  const reference::InteractionShape s{.batch = 5, .count = 7, .width = 9};
  for (const DType type : kNarrow) {
    const Vec x = Random(type, s.batch * s.width, 1),
              e = Random(type, s.batch * s.count * s.width, 2),
              dy = Random(type, s.batch * s.out(), 3);
    const Buffer y = bench_.Raw(type, s.batch * s.out()), dx = bench_.Raw(type, s.batch * s.width),
                 de = bench_.Raw(type, s.batch * s.count * s.width);
    bench_.Run(InteractionForward{bench_.Elements(type, x), bench_.Elements(type, e), y, s.batch,
                                  s.count, s.width});
    bench_.Run(InteractionBackward{bench_.Elements(type, dy), bench_.Elements(type, x),
                                   bench_.Elements(type, e), dx, de, s.batch, s.count, s.width});
    const auto gradient = reference::InteractionBackward(dy, x, e, s);
    ExpectClose(y, reference::Interaction(x, e, s), 2e-6, "y");
    ExpectClose(dx, gradient.dx, 2e-6, "dx");
    ExpectClose(de, gradient.de, 2e-6, "de");
    // Each alone, as where the other side is frozen.
    const Buffer dx_alone = bench_.Raw(type, s.batch * s.width),
                 de_alone = bench_.Raw(type, s.batch * s.count * s.width);
    InteractionBackward op{bench_.Elements(type, dy),
                           bench_.Elements(type, x),
                           bench_.Elements(type, e),
                           dx_alone,
                           {},
                           s.batch,
                           s.count,
                           s.width};
    bench_.Run(op);
    op.dx = {}, op.de = de_alone;
    bench_.Run(op);
    ExpectClose(dx_alone, gradient.dx, 2e-6, "dx alone");
    ExpectClose(de_alone, gradient.de, 2e-6, "de alone");
  }
}

TEST_P(ElementTypesTest, ACastToTheSameTypeIsACopy) {
  constexpr int64_t kN = 1003;
  const Buffer x = bench_.Floats(kN), y = bench_.Floats(kN + 1);
  const Vec values = RandomVec(kN, 7, 1e30);
  for (int64_t i = 0; i < kN; ++i) x.As<float>()[i] = static_cast<float>(values[i]);
  x.As<float>()[kN - 1] = -INFINITY;
  y.As<float>()[kN] = 42;
  bench_.Run(Cast{x, y, kN});
  EXPECT_EQ(std::memcmp(x.data, y.data, kN * sizeof(float)), 0);
  EXPECT_EQ(y.As<float>()[kN], 42);
}

TEST_P(ElementTypesTest, OperandsOfTwoTypesAreRefused) {
  const Buffer bf16 = bench_.Raw(DType::kBF16, 16), f16 = bench_.Raw(DType::kF16, 16),
               f32 = bench_.Floats(16), i32 = bench_.Raw(DType::kI32, 16);
  const auto refused = [&](const auto& op) {
    EXPECT_EQ(bench_.device().Prepare(op).status().code(), absl::StatusCode::kUnimplemented);
  };
  refused(ActivationForward{ActivationKind::kGelu, bf16, f32, 16});
  refused(ActivationForward{ActivationKind::kGelu, i32, i32, 16});
  refused(Add{bf16, f16, bf16, 16});
  refused(Add{bf16, f32, f32, 16});
  refused(Cast{bf16, bf16, 16});
  refused(Cast{bf16, f16, 16});
  refused(Cast{f32, i32, 16});
  refused(Matmul{.a = bf16, .b = f16, .c = f32, .m = 4, .n = 4, .k = 4});
  refused(Matmul{.a = f32, .b = f32, .c = bf16, .m = 4, .n = 4, .k = 4});
}

TRAINYARD_CPU_SUITE(ElementTypesTest);

}  // namespace
}  // namespace trainyard::kernels
