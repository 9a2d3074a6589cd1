// Every gradient of the reference against central differences: with L = sum of weights * outputs,
// the gradient by an input is (L(x + h) - L(x - h)) / 2h.

#include <cmath>
#include <functional>
#include <random>

#include "gtest/gtest.h"
#include "tests/reference/attention.h"
#include "tests/reference/batch_norm.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/image.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/linear.h"
#include "tests/reference/llama.h"
#include "tests/reference/recommender.h"

namespace trainyard::reference {
namespace {

Vec Random(int64_t n, int seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Vec x(n);
  for (double& v : x) v = normal(engine);
  return x;
}

double Dot(const Vec& a, const Vec& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `gradient` is claimed to be that of loss(x).
void ExpectGradient(Vec x, const Vec& gradient, const std::function<double(const Vec&)>& loss) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(x.size(), gradient.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = loss(x);
    x[i] = at - kStep;
    const double below = loss(x);
    x[i] = at;
    const double difference = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient[i], difference, 1e-7 * (1 + std::fabs(difference))) << "element " << i;
  }
}

TEST(ReferenceGradient, OfActivationsAgreesWithDifferences) {
  using kernels::ActivationKind;
  for (const auto kind : {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kGeluTanh,
                          ActivationKind::kRelu6}) {
    for (const double x : {-6.5, -2.5, -0.7, -0.01, 0.02, 0.9, 1.3, 4.0, 6.1}) {
      ExpectGradient({x}, {ActivationSlope(kind, x)},
                     [&](const Vec& v) { return Activation(kind, v[0]); });
    }
  }
}

TEST(ReferenceGradient, OfLayerNormAgreesWithDifferences) {
  constexpr int64_t kRows = 3, kCols = 5;
  const Vec x = Random(kRows * kCols, 1), gamma = Random(kCols, 2), beta = Random(kCols, 3);
  const Vec dy = Random(kRows * kCols, 4);
  const LayerNormGradient g = LayerNormBackward(dy, x, gamma, kRows, kCols, 1e-5);
  const auto loss = [&](const Vec& x, const Vec& gamma, const Vec& beta) {
    return Dot(dy, LayerNorm(x, gamma, beta, kRows, kCols, 1e-5).y);
  };
  ExpectGradient(x, g.dx, [&](const Vec& v) { return loss(v, gamma, beta); });
  ExpectGradient(gamma, g.dgamma, [&](const Vec& v) { return loss(x, v, beta); });
  ExpectGradient(beta, g.dbeta, [&](const Vec& v) { return loss(x, gamma, v); });
}

TEST(ReferenceGradient, OfAttentionAgreesWithDifferences) {
  for (const bool causal : {true, false}) {
    for (const int64_t group : {1, 2}) {
      const AttentionShape shape{.batch = 2,
                                 .time = 4,
                                 .heads = 2,
                                 .head_dim = 3,
                                 .scale = 0.6,
                                 .causal = causal,
                                 .group = group,
                                 .lengths = {4, 2}};
      const Vec qkv = Random(shape.qkv_size(), 1), dy = Random(shape.y_size(), 2);
      ExpectGradient(qkv, AttentionBackward(dy, qkv, shape),
                     [&](const Vec& v) { return Dot(dy, Attention(v, shape).y); });
    }
  }
}

TEST(ReferenceGradient, OfRmsNormAgreesWithDifferences) {
  constexpr int64_t kRows = 3, kCols = 5;
  const Vec x = Random(kRows * kCols, 1), gamma = Random(kCols, 2), dy = Random(kRows * kCols, 3);
  const LayerNormGradient g = LayerNormBackward(dy, x, gamma, kRows, kCols, 1e-3, false);
  const auto loss = [&](const Vec& x, const Vec& gamma) {
    return Dot(dy, LayerNorm(x, gamma, {}, kRows, kCols, 1e-3, false).y);
  };
  ExpectGradient(x, g.dx, [&](const Vec& v) { return loss(v, gamma); });
  ExpectGradient(gamma, g.dgamma, [&](const Vec& v) { return loss(x, v); });
}

TEST(ReferenceGradient, OfRotaryIsTheTurnBack) {
  const RotaryShape shape{
      .batch = 2, .time = 3, .heads = 3, .rotated = 2, .head_dim = 4, .theta = 50};
  const Vec x = Random(72, 1), dy = Random(72, 2);
  ExpectGradient(x, Rotary(dy, shape, true),
                 [&](const Vec& v) { return Dot(dy, Rotary(v, shape, false)); });
}

TEST(ReferenceGradient, OfSwiGluAgreesWithDifferences) {
  const Vec x = Random(3 * 2 * 5, 1), dy = Random(3 * 5, 2);
  ExpectGradient(x, SwiGluBackward(x, dy, 3, 5),
                 [&](const Vec& v) { return Dot(dy, SwiGlu(v, 3, 5)); });
}

TEST(ReferenceGradient, OfCrossEntropyAgreesWithDifferences) {
  const std::vector<int32_t> targets = {2, -1, 0};
  const Vec logits = Random(3 * 5, 1);
  for (const double extra : {0.0, 0.2}) {  // smoothing and z-loss
    const Vec gradient = CrossEntropy(logits, targets, 5, 0.25, extra, extra).dlogits;
    ExpectGradient(logits, gradient, [&](const Vec& v) {
      double sum = 0;
      for (const double loss : CrossEntropy(v, targets, 5, 1, extra, extra).losses) sum += loss;
      return 0.25 * sum;
    });
  }
}

TEST(ReferenceGradient, OfMatmulIsMatmulOfTransposes) {
  constexpr int64_t kM = 3, kN = 4, kK = 5;
  const Vec a = Random(kM * kK, 1), b = Random(kK * kN, 2), dc = Random(kM * kN, 3);
  // da = dc b^T, db = a^T dc
  ExpectGradient(a, Matmul(dc, b, kM, kK, kN, false, true),
                 [&](const Vec& v) { return Dot(dc, Matmul(v, b, kM, kN, kK, false, false)); });
  ExpectGradient(b, Matmul(a, dc, kK, kN, kM, true, false),
                 [&](const Vec& v) { return Dot(dc, Matmul(a, v, kM, kN, kK, false, false)); });
}

TEST(ReferenceGradient, OfEmbeddingAgreesWithDifferences) {
  constexpr int64_t kBatch = 2, kTime = 3, kWidth = 4, kVocab = 5;
  const std::vector<int32_t> ids = {4, 1, 4, 0, 1, 1};
  const Vec tokens = Random(kVocab * kWidth, 1), positions = Random(kTime * kWidth, 2);
  const Vec dy = Random(kBatch * kTime * kWidth, 3);
  const EmbeddingGradient g = EmbeddingBackward(ids, dy, kBatch, kTime, kWidth, kVocab);
  ExpectGradient(tokens, g.dtokens, [&](const Vec& v) {
    return Dot(dy, Embedding(ids, v, positions, kBatch, kTime, kWidth));
  });
  ExpectGradient(positions, g.dpositions, [&](const Vec& v) {
    return Dot(dy, Embedding(ids, tokens, v, kBatch, kTime, kWidth));
  });
}

TEST(ReferenceGradient, OfEmbeddingTablesAgreesWithDifferences) {
  constexpr int64_t kBatch = 3, kWidth = 4;
  const std::vector<int32_t> ids = {4, 1, 4, 0, 1, 1};
  std::vector<Vec> tables = {Random(5 * kWidth, 1), Random(2 * kWidth, 2)};
  const Vec dy = Random(kBatch * 2 * kWidth, 3);
  const std::vector<Vec> g = EmbeddingTablesBackward(ids, dy, {5, 2}, kBatch, kWidth);
  for (size_t t = 0; t < tables.size(); ++t) {
    ExpectGradient(tables[t], g[t], [&](const Vec& v) {
      std::vector<Vec> moved = tables;
      moved[t] = v;
      return Dot(dy, EmbeddingTables(ids, moved, kBatch, kWidth));
    });
  }
}

TEST(ReferenceGradient, OfInteractionAgreesWithDifferences) {
  const InteractionShape s{.batch = 2, .count = 3, .width = 4};
  const Vec x = Random(s.batch * s.width, 1), e = Random(s.batch * s.count * s.width, 2);
  const Vec dy = Random(s.batch * s.out(), 3);
  const InteractionGradient g = InteractionBackward(dy, x, e, s);
  ExpectGradient(x, g.dx, [&](const Vec& v) { return Dot(dy, Interaction(v, e, s)); });
  ExpectGradient(e, g.de, [&](const Vec& v) { return Dot(dy, Interaction(x, v, s)); });
}

TEST(ReferenceGradient, OfBinaryCrossEntropyAgreesWithDifferences) {
  const std::vector<int32_t> targets = {1, 0, -1, 1, 0};
  const Vec logits = Random(5, 1);
  ExpectGradient(logits, BinaryCrossEntropy(logits, targets, 0.25).dlogits, [&](const Vec& v) {
    double sum = 0;
    for (const double loss : BinaryCrossEntropy(v, targets, 1).losses) sum += 0.25 * loss;
    return sum;
  });
}

TEST(ReferenceGradient, OfConvolutionAgreesWithDifferences) {
  const kernels::ConvolutionShape s{.batch = 2,
                                    .height = 5,
                                    .width = 4,
                                    .in = 2,
                                    .out = 3,
                                    .kernel_height = 3,
                                    .kernel_width = 2,
                                    .stride = 2,
                                    .pad = 1};
  const Vec x = Random(2 * 5 * 4 * 2, 1), w = Random(3 * 2 * 3 * 2, 2), bias = Random(3, 3);
  const Vec dy = Random(s.batch * s.out_height() * s.out_width() * s.out, 4);
  const ConvolutionWeightGradient g = ConvolutionBackwardWeights(x, dy, s);
  ExpectGradient(x, ConvolutionBackwardData(dy, w, s),
                 [&](const Vec& v) { return Dot(dy, Convolution(v, w, bias, s)); });
  ExpectGradient(w, g.dw, [&](const Vec& v) { return Dot(dy, Convolution(x, v, bias, s)); });
  ExpectGradient(bias, g.dbias, [&](const Vec& v) { return Dot(dy, Convolution(x, w, v, s)); });
}

TEST(ReferenceGradient, OfGroupedConvolutionAgreesWithDifferences) {
  const kernels::ConvolutionShape s{.batch = 2,
                                    .height = 4,
                                    .width = 3,
                                    .in = 4,
                                    .out = 6,
                                    .kernel_height = 3,
                                    .kernel_width = 3,
                                    .pad = 1,
                                    .groups = 2};
  const Vec x = Random(2 * 4 * 3 * 4, 1), w = Random(6 * 2 * 9, 2), dy = Random(2 * 4 * 3 * 6, 3);
  ExpectGradient(x, ConvolutionBackwardData(dy, w, s),
                 [&](const Vec& v) { return Dot(dy, Convolution(v, w, {}, s)); });
  ExpectGradient(w, ConvolutionBackwardWeights(x, dy, s).dw,
                 [&](const Vec& v) { return Dot(dy, Convolution(x, v, {}, s)); });
}

TEST(ReferenceGradient, OfMaxPoolAgreesWithDifferences) {
  using kernels::PoolShape;
  for (const PoolShape& s :
       {PoolShape{.batch = 2, .height = 5, .width = 4, .channels = 3}, PoolShape{.batch = 2,
                                                                       .height = 6,
                                                                       .width = 5,
                                                                       .channels = 3,
                                                                       .window = 3,
                                                                       .stride = 2,
                                                                       .pad = 1}}) {
    const Vec x = Random(s.batch * s.height * s.width * s.channels, 1);
    const MaxPoolResult forward = MaxPool(x, s);
    const Vec dy = Random(static_cast<int64_t>(forward.y.size()), 2);
    ExpectGradient(x, MaxPoolBackward(dy, forward.index, s),
                   [&](const Vec& v) { return Dot(dy, MaxPool(v, s).y); });
  }
}

TEST(ReferenceGradient, OfMeanPoolAgreesWithDifferences) {
  constexpr int64_t kBatch = 2, kPixels = 5, kChannels = 3;
  const Vec x = Random(kBatch * kPixels * kChannels, 1), dy = Random(kBatch * kChannels, 2);
  ExpectGradient(x, MeanPoolBackward(dy, kBatch, kPixels, kChannels),
                 [&](const Vec& v) { return Dot(dy, MeanPool(v, kBatch, kPixels, kChannels)); });
}

TEST(ReferenceGradient, OfBatchNormAgreesWithDifferences) {
  for (const bool relu : {false, true}) {
    const BatchNormShape s{.rows = 7, .cols = 3, .relu = relu};
    const Vec x = Random(21, 1), gamma = Random(3, 2), beta = Random(3, 3),
              residual = Random(21, 4);
    const Vec dy = Random(21, 5);
    const Vec y = BatchNorm(x, gamma, beta, residual, s).y;
    const BatchNormGradient g = BatchNormBackward(dy, x, y, gamma, s);
    const auto loss = [&](const Vec& x, const Vec& gamma, const Vec& beta, const Vec& residual) {
      return Dot(dy, BatchNorm(x, gamma, beta, residual, s).y);
    };
    ExpectGradient(x, g.dx, [&](const Vec& v) { return loss(v, gamma, beta, residual); });
    ExpectGradient(gamma, g.dgamma, [&](const Vec& v) { return loss(x, v, beta, residual); });
    ExpectGradient(beta, g.dbeta, [&](const Vec& v) { return loss(x, gamma, v, residual); });
    ExpectGradient(residual, g.dresidual, [&](const Vec& v) { return loss(x, gamma, beta, v); });
  }
}

}  // namespace
}  // namespace trainyard::reference
