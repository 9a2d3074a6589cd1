// Shapes at which the CUDA kernels change their ways: more than one tile, chunk, block or round.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/gpu/op_bench.h"
#include "tests/reference/attention.h"
#include "tests/reference/batch_norm.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/element.h"
#include "tests/reference/image.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/linear.h"
#include "tests/reference/llama.h"

namespace trainyard::kernels {
namespace {

class CudaShapesTest : public CudaTest {
 protected:
  // Norm of the difference by the norm.
  static double Error(const Buffer& found, const Vec& expected) {
    const Vec x = OpBench::Read(found, static_cast<int64_t>(expected.size()));
    double squares = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      squares += (x[i] - expected[i]) * (x[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    return size == 0 ? squares : std::sqrt(squares / size);
  }

  void CheckAttention(const reference::AttentionShape& s) {
    const Vec qkv = RandomVec(s.qkv_size(), 1), dy = RandomVec(s.y_size(), 2);
    const Buffer y = bench_.Floats(s.y_size()), lse = bench_.Floats(s.lse_size()),
                 dqkv = bench_.Floats(s.qkv_size()), in = bench_.Floats(qkv);
    const float scale = static_cast<float>(s.scale);
    bench_.Run(AttentionForward{in, y, lse, s.batch, s.time, s.heads, s.kv_heads(), s.head_dim,
                                scale, s.causal});
    bench_.Run(AttentionBackward{bench_.Floats(dy), in, y, lse, dqkv, s.batch, s.time, s.heads,
                                 s.kv_heads(), s.head_dim, scale, s.causal});
    const auto expected = reference::Attention(qkv, s);
    const std::string what = " with head_dim " + std::to_string(s.head_dim) + ", time " +
                             std::to_string(s.time) + (s.causal ? ", causal" : "");
    ExpectClose(y, expected.y, 1e-5, "y" + what);
    ExpectClose(lse, expected.lse, 5e-6, "lse" + what);
    ExpectClose(dqkv, reference::AttentionBackward(dy, qkv, s), 2e-5, "dqkv" + what);
  }
};

TEST_P(CudaShapesTest, AttentionOfEveryTileAgreesWithReference) {
  for (const bool causal : {true, false}) {
    for (const int64_t head_dim : {31, 64, 100, 128, 200, 256}) {
      CheckAttention({.batch = 2,
                      .time = 70,
                      .heads = 2,
                      .head_dim = head_dim,
                      .scale = 0.1,
                      .causal = causal});
    }
    CheckAttention(
        {.batch = 1, .time = 197, .heads = 1, .head_dim = 64, .scale = 0.125, .causal = causal});
    CheckAttention({.batch = 2,
                    .time = 150,
                    .heads = 6,
                    .head_dim = 64,
                    .scale = 0.125,
                    .causal = causal,
                    .group = 3});
    CheckAttention(
        {.batch = 1, .time = 97, .heads = 1, .head_dim = 129, .scale = 0.1, .causal = causal});
  }
}

// On tensor cores, up to head_dim 128; rows of a multiple of 8 elements are read in vectors.
TEST_P(CudaShapesTest, AttentionOf16BitsAgreesWithReference) {
  using Shape = reference::AttentionShape;
  struct Case {
    DType type;
    Shape shape;
  };
  std::vector<Case> cases;
  for (const bool causal : {true, false}) {
    for (const int64_t head_dim : {8, 31, 128}) {
      cases.push_back(
          {DType::kBF16,
           {.batch = 1, .time = 70, .heads = 1, .head_dim = head_dim, .causal = causal}});
    }
    cases.push_back(
        {DType::kF16, {.batch = 1, .time = 70, .heads = 2, .head_dim = 20, .causal = causal}});
  }
  cases.push_back(
      {DType::kF16,
       {.batch = 2, .time = 130, .heads = 2, .head_dim = 64, .group = 2, .lengths = {97, 33}}});
  cases.push_back({DType::kBF16,
                   {.batch = 2,
                    .time = 100,
                    .heads = 2,
                    .head_dim = 128,
                    .causal = false,
                    .group = 2,
                    .lengths = {100, 41}}});
  cases.push_back({DType::kBF16, {.batch = 1, .time = 64, .heads = 2, .head_dim = 100}});
  cases.push_back({DType::kBF16, {.batch = 1, .time = 150, .heads = 1, .head_dim = 64}});
  cases.push_back({DType::kF16, {.batch = 1, .time = 40, .heads = 1, .head_dim = 50}});
  cases.push_back({DType::kF16, {.batch = 1, .time = 40, .heads = 1, .head_dim = 128}});
  cases.push_back({DType::kBF16, {.batch = 1, .time = 1, .heads = 1, .head_dim = 16}});
  cases.push_back({DType::kBF16, {.batch = 1, .time = 40, .heads = 1, .head_dim = 136}});
  for (auto& [type, s] : cases) {
    const double roundoff = reference::UnitRoundoff(type);
    s.scale = 0.125;
    const auto draw = [type = type](int64_t n, int seed) {
      Vec x = RandomVec(n, seed);
      for (double& v : x) v = reference::Rounded(type, v);
      return x;
    };
    const Vec qkv = draw(s.qkv_size(), 1), dy = draw(s.y_size(), 2);
    const auto expected = reference::Attention(qkv, s);
    const Buffer y = bench_.Raw(type, s.y_size()), lse = bench_.Floats(s.lse_size()),
                 dqkv = bench_.Raw(type, s.qkv_size()), in = bench_.Elements(type, qkv);
    const Buffer lengths = s.lengths.empty() ? Buffer() : bench_.Ints(s.lengths);
    bench_.Run(AttentionForward{in, y, lse, s.batch, s.time, s.heads, s.kv_heads(), s.head_dim,
                                0.125f, s.causal, lengths});
    bench_.Run(AttentionBackward{bench_.Elements(type, dy), in, y, lse, dqkv, s.batch, s.time,
                                 s.heads, s.kv_heads(), s.head_dim, 0.125f, s.causal, lengths});
    const std::string what =
        absl::StrCat(" with head_dim ", s.head_dim, ", time ", s.time, s.causal ? ", causal" : "");
    // Probabilities are rounded before they are multiplied, and so are gradients of scores; of
    // these what dy . y says is taken off, and y is rounded: little is left in some places.
    ExpectClose(y, expected.y, 3 * roundoff, "y" + what);
    EXPECT_LT(Error(y, expected.y), 0.7 * roundoff) << "y" << what;
    ExpectClose(lse, expected.lse, 5e-6, "lse" + what);
    const Vec gradient = reference::AttentionBackward(dy, qkv, s);
    ExpectClose(dqkv, gradient, 20 * roundoff, "dqkv" + what);
    EXPECT_LT(Error(dqkv, gradient), 0.8 * roundoff) << "dqkv" << what;
    if (HasFailure()) return;
  }
}

TEST_P(CudaShapesTest, CrossEntropyOfALargeVocabularyAgreesWithReference) {
  for (const int64_t classes : {1024, 1025, 8192, 8195, 50'257}) {
    constexpr int64_t kRows = 5;
    const Vec logits = RandomVec(kRows * classes, 1, 4);
    std::vector<int32_t> targets = RandomIds(kRows, static_cast<int32_t>(classes), 2);
    targets[2] = -1;
    targets[3] = static_cast<int32_t>(classes - 1);
    const Buffer both = bench_.Floats(logits), losses = bench_.Floats(kRows),
                 correct = bench_.Floats(kRows);
    bench_.Run(CrossEntropy{.logits = both,
                            .targets = bench_.Ints(targets),
                            .losses = losses,
                            .correct = correct,
                            .dlogits = both,
                            .rows = kRows,
                            .classes = classes,
                            .scale = 0.5f,
                            .smoothing = 0.1f,
                            .z_loss = 1e-3f});
    const auto expected = reference::CrossEntropy(logits, targets, classes, 0.5, 0.1, 1e-3);
    ExpectClose(losses, expected.losses, 2e-6, "losses");
    ExpectClose(correct, expected.correct, 0, "correct");
    ExpectClose(both, expected.dlogits, 1e-5, "dlogits");
  }
}

TEST_P(CudaShapesTest, TheFirstOfEqualLogitsWinsAcrossTheBlock) {
  constexpr int64_t kClasses = 3000;
  Vec logits(2 * kClasses, 1.0);
  for (const int64_t at : {700, 701, 2900}) logits[at] = logits[kClasses + at] = 9;
  const Buffer correct = bench_.Floats(2);
  bench_.Run(CrossEntropy{.logits = bench_.Floats(logits),
                          .targets = bench_.Ints({700, 2900}),
                          .losses = bench_.Floats(2),
                          .correct = correct,
                          .rows = 2,
                          .classes = kClasses});
  EXPECT_EQ(OpBench::Read(correct, 2), (Vec{1, 0}));
}

TEST_P(CudaShapesTest, EmbeddingGradientOverManyChunksAgreesWithReference) {
  constexpr int64_t kBatch = 5, kTime = 643, kWidth = 530, kVocab = 37;
  std::vector<int32_t> ids = RandomIds(kBatch * kTime, kVocab, 1);
  for (int32_t& id : ids) id = id % 3 == 0 ? 0 : id;  // one token is far more frequent
  const Vec dy = RandomVec(kBatch * kTime * kWidth, 2);
  const Buffer dtokens = bench_.Floats(Vec(kVocab * kWidth, 0.0)),
               dpositions = bench_.Floats(Vec(kTime * kWidth, 0.0));
  bench_.Run(EmbeddingBackward{bench_.Floats(dy), bench_.Ints(ids), dtokens, dpositions, kBatch,
                               kTime, kWidth, kVocab});
  const auto g = reference::EmbeddingBackward(ids, dy, kBatch, kTime, kWidth, kVocab);
  ExpectClose(dtokens, g.dtokens, 1e-5, "dtokens");
  ExpectClose(dpositions, g.dpositions, 1e-5, "dpositions");
}

// The sum over the places of an id is a plain loop in fp32, whatever the chunks.
TEST_P(CudaShapesTest, EmbeddingGradientAddsInOrder) {
  constexpr int64_t kPlaces = 140'000, kVocab = 5;  // more chunks than a block searches at once
  std::vector<int32_t> ids = RandomIds(kPlaces, 3, 1);
  ids[kPlaces - 1] = 3;  // in the last chunk alone
  const Vec dy = RandomVec(kPlaces, 2);
  const Buffer dtokens = bench_.Floats(Vec(kVocab, 0.5));
  bench_.Run(EmbeddingBackward{.dy = bench_.Floats(dy),
                               .ids = bench_.Ints(ids),
                               .dtokens = dtokens,
                               .batch = 1,
                               .time = kPlaces,
                               .width = 1,
                               .vocab = kVocab});
  std::vector<float> sums(kVocab, 0.5f);
  for (int64_t i = 0; i < kPlaces; ++i) sums[ids[i]] += static_cast<float>(dy[i]);
  EXPECT_EQ(OpBench::Read(dtokens, kVocab), Vec(sums.begin(), sums.end()));
}

TEST_P(CudaShapesTest, SumsOverManyRowsAgreeWithReference) {
  constexpr int64_t kRows = 17'003, kCols = 45;
  const Vec x = RandomVec(kRows * kCols, 1), dy = RandomVec(kRows * kCols, 2),
            gamma = RandomVec(kCols, 3);
  const Buffer y = bench_.Floats(kCols);
  bench_.Run(ColumnSum{bench_.Floats(x), y, kRows, kCols, false});
  ExpectClose(y, reference::ColumnSum(x, kRows, kCols), 1e-5, "column sum");

  const auto forward = reference::LayerNorm(x, gamma, {}, kRows, kCols, 1e-5);
  const auto g = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, 1e-5);
  const Buffer dx = bench_.Floats(kRows * kCols), dgamma = bench_.Floats(kCols),
               dbeta = bench_.Floats(kCols);
  bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                               .x = bench_.Floats(x),
                               .gamma = bench_.Floats(gamma),
                               .mean = bench_.Floats(forward.mean),
                               .rstd = bench_.Floats(forward.rstd),
                               .dx = dx,
                               .dgamma = dgamma,
                               .dbeta = dbeta,
                               .rows = kRows,
                               .cols = kCols});
  ExpectClose(dx, g.dx, 2e-5, "dx");
  ExpectClose(dgamma, g.dgamma, 1e-5, "dgamma");
  ExpectClose(dbeta, g.dbeta, 1e-5, "dbeta");
}

// Rows that a warp holds, or two, four, eight; that a block cannot hold; quads that are not whole.
TEST_P(CudaShapesTest, NormsOfRowsOfEveryLengthAgreeWithReference) {
  for (const int64_t cols : {4, 1024, 1027, 1028, 2049, 4096, 4100, 8191, 8192, 8193, 8196}) {
    const int64_t rows = cols == 4 ? 2'071 : 11;
    const int64_t n = rows * cols;
    const Vec x = RandomVec(n, 1), dy = RandomVec(n, 2), gamma = RandomVec(cols, 3),
              beta = RandomVec(cols, 4), before = RandomVec(n, 5);
    const Buffer y = bench_.Floats(n), mean = bench_.Floats(rows), rstd = bench_.Floats(rows),
                 dx = bench_.Floats(before), dgamma = bench_.Floats(cols),
                 dbeta = bench_.Floats(cols), in = bench_.Floats(x), scale = bench_.Floats(gamma);
    bench_.Run(LayerNormForward{.x = in,
                                .gamma = scale,
                                .beta = bench_.Floats(beta),
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .rows = rows,
                                .cols = cols});
    bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                                 .x = in,
                                 .gamma = scale,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .rows = rows,
                                 .cols = cols,
                                 .accumulate_dx = true});
    const std::string what = absl::StrCat(" of ", cols, " columns");
    const auto forward = reference::LayerNorm(x, gamma, beta, rows, cols, 1e-5);
    const auto g = reference::LayerNormBackward(dy, x, gamma, rows, cols, 1e-5);
    ExpectClose(y, forward.y, 5e-6, "y" + what);
    ExpectClose(mean, forward.mean, 1e-5, "mean" + what);
    ExpectClose(rstd, forward.rstd, 2e-6, "rstd" + what);
    ExpectClose(dx, Plus(before, g.dx), 1e-5, "dx" + what);
    ExpectClose(dgamma, g.dgamma, 1e-5, "dgamma" + what);
    ExpectClose(dbeta, g.dbeta, 1e-5, "dbeta" + what);
  }
}

TEST_P(CudaShapesTest, NormOfManyBlocksAgreesWithReference) {
  constexpr int64_t kN = 4'300'001;
  const Vec x = RandomVec(kN, 1);
  double expected = 0;
  for (const double v : x) expected += v * v;
  const Buffer sum = bench_.Raw(DType::kF64, 1);
  bench_.Run(SquaredNorm{bench_.Floats(x), sum, kN, false});
  EXPECT_NEAR(*sum.As<double>(), expected, 1e-12 * expected);
}

// More than all blocks take in a round, with a piece that is not whole at the end.
TEST_P(CudaShapesTest, NormalisedImagesOfManyRoundsAgreeWithReference) {
  constexpr int64_t kPixels = 1'450'003, kN = 3 * kPixels;
  NormalizeImages op{.x = bench_.Raw(DType::kU8, kN),
                     .pixels = kPixels,
                     .channels = 3,
                     .mean = {0.485, 0.456, 0.406},
                     .std = {0.229, 0.224, 0.225}};
  Vec x(kN);
  for (int64_t i = 0; i < kN; ++i) {
    op.x.As<uint8_t>()[i] = static_cast<uint8_t>(i * 2654435761u >> 21);
    x[i] = op.x.As<uint8_t>()[i];
  }
  const Vec expected = reference::NormalizeImages(x, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  for (const DType type : {DType::kF32, DType::kF16}) {
    op.y = bench_.Raw(type, kN);
    bench_.Run(op);
    ExpectClose(op.y, expected, 1e-7, "y");
  }
  op.height = 1, op.width = kPixels;
  op.places = bench_.Ints({0, 17, 1});
  op.y = bench_.Raw(DType::kBF16, kN);
  bench_.Run(op);
  const Vec crop = reference::CropImages(x, {0, 17, 1}, 1, kPixels, 3);
  ExpectClose(op.y, reference::NormalizeImages(crop, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}),
              1e-2, "crop");
}

// More rows than every block of sums takes in one round, and tiles of columns that are not whole.
TEST_P(CudaShapesTest, BatchNormOfManyChunksAndTilesAgreesWithReference) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {70'003, 8}, {600'001, 1}, {1'300, 268}, {300, 9000}}) {
    const int64_t n = rows * cols;
    const reference::BatchNormShape shape{.rows = rows, .cols = cols};
    Vec x = RandomVec(n, 1);
    for (double& v : x) v = static_cast<float>(v + 30);
    const Vec dy = RandomVec(n, 2), gamma = RandomVec(cols, 3), beta = RandomVec(cols, 4);
    const Buffer in = bench_.Floats(x), y = bench_.Floats(n), mean = bench_.Floats(cols),
                 rstd = bench_.Floats(cols), dx = bench_.Floats(n), dgamma = bench_.Floats(cols),
                 dbeta = bench_.Floats(cols);
    bench_.Run(BatchNormForward{.x = in,
                                .gamma = bench_.Floats(gamma),
                                .beta = bench_.Floats(beta),
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .running_mean = bench_.Floats(Vec(cols, 0.0)),
                                .running_var = bench_.Floats(Vec(cols, 0.0)),
                                .rows = rows,
                                .cols = cols});
    bench_.Run(BatchNormBackward{.dy = bench_.Floats(dy),
                                 .x = in,
                                 .gamma = bench_.Floats(gamma),
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .rows = rows,
                                 .cols = cols});
    const std::string what = absl::StrCat(" of ", rows, " x ", cols);
    const auto forward = reference::BatchNorm(x, gamma, beta, {}, shape);
    const auto g = reference::BatchNormBackward(dy, x, {}, gamma, shape);
    ExpectClose(y, forward.y, 2e-5, "y" + what);
    ExpectClose(mean, forward.mean, 1e-7, "mean" + what);
    ExpectClose(rstd, forward.rstd, 2e-6, "rstd" + what);
    ExpectClose(dx, g.dx, 2e-5, "dx" + what);
    ExpectClose(dgamma, g.dgamma, 2e-5, "dgamma" + what);
    ExpectClose(dbeta, g.dbeta, 1e-5, "dbeta" + what);
  }
}

// The variance of numbers whose distance from zero, or from the first of them, dwarfs their spread:
// up to the rounding of each lane's mean to fp32.
TEST_P(CudaShapesTest, BatchNormKeepsTheDigitsOfTheVariance) {
  constexpr int64_t kRows = 300, kCols = 9000, kN = kRows * kCols;
  Vec x = RandomVec(kN, 1);
  for (int64_t i = 0; i < kN; ++i) {
    const int64_t apart = i % kCols % 4;
    const bool first = i < 40 * kCols && apart == 1;
    x[i] = static_cast<float>(first ? 0 : x[i] + static_cast<double>(apart) * 1000);
  }
  const Buffer rstd = bench_.Floats(kCols), mean = bench_.Floats(kCols);
  bench_.Run(BatchNormForward{.x = bench_.Floats(x),
                              .gamma = bench_.Floats(Vec(kCols, 1.0)),
                              .beta = bench_.Floats(Vec(kCols, 0.0)),
                              .y = bench_.Floats(kN),
                              .mean = mean,
                              .rstd = rstd,
                              .running_mean = bench_.Floats(Vec(kCols, 0.0)),
                              .running_var = bench_.Floats(Vec(kCols, 0.0)),
                              .rows = kRows,
                              .cols = kCols});
  const auto expected =
      reference::BatchNorm(x, Vec(kCols, 1.0), Vec(kCols, 0.0), {}, {.rows = kRows, .cols = kCols});
  const Vec found = OpBench::Read(rstd, kCols);
  for (int c = 0; c < kCols; ++c) {
    EXPECT_NEAR(found[c], expected.rstd[c], 2e-5 * expected.rstd[c]) << c;
  }
  ExpectClose(mean, expected.mean, 1e-7, "mean");
}

// More pairs than a block has angles for; heads that turn and heads that do not; groups of samples.
TEST_P(CudaShapesTest, RotaryOfEveryTileAgreesWithReference) {
  for (const reference::RotaryShape& s : std::vector<reference::RotaryShape>{
           {.batch = 1, .time = 3, .heads = 2, .rotated = 1, .head_dim = 1072},
           {.batch = 3, .time = 5, .heads = 9, .rotated = 7, .head_dim = 128},
           {.batch = 5, .time = 700, .heads = 3, .rotated = 2, .head_dim = 16}}) {
    const int64_t n = s.batch * s.time * s.heads * s.head_dim;
    for (const DType type : {DType::kF32, DType::kBF16}) {
      Vec x = RandomVec(n, 1);
      for (double& v : x) v = reference::Rounded(type, v);
      const Buffer apart = bench_.Raw(type, n), in_place = bench_.Elements(type, x);
      for (const auto& [from, to] :
           {std::pair(bench_.Elements(type, x), apart), {in_place, in_place}}) {
        bench_.Run(Rotary{.x = from,
                          .y = to,
                          .batch = s.batch,
                          .time = s.time,
                          .heads = s.heads,
                          .rotated = s.rotated,
                          .head_dim = s.head_dim,
                          .theta = static_cast<float>(s.theta)});
        ExpectClose(to, reference::Rotary(x, s, false), 5e-7, "y");
      }
    }
  }
}

// As the kernels without division by hardware gave them: exact at the ends, and no NaN before.
TEST_P(CudaShapesTest, GatesHaveTheirLimits) {
  const float inf = INFINITY;
  const Vec x = {inf, 1e4, 90, -90, -1e4, NAN};
  const auto n = static_cast<int64_t>(x.size());
  for (const ActivationKind kind : {ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
    const Buffer y = bench_.Floats(n);
    bench_.Run(ActivationForward{kind, bench_.Floats(x), y, n});
    const Vec found = OpBench::Read(y, n);
    EXPECT_EQ(Vec(found.begin(), found.begin() + 5), (Vec{inf, 1e4, 90, 0, 0}));
    EXPECT_TRUE(std::isnan(found[5]));
    const Buffer dx = bench_.Floats(n);
    bench_.Run(ActivationBackward{kind, bench_.Floats(x), bench_.Floats(Vec(n, 1.0)), dx, n});
    const Vec slope = OpBench::Read(dx, n);
    EXPECT_EQ(Vec(slope.begin() + 1, slope.begin() + 5), (Vec{1, 1, 0, 0}));
    EXPECT_TRUE(std::isnan(slope[5]));
  }
  Vec gates_and_ups = x;
  gates_and_ups.resize(2 * n, 1.0);
  const Buffer y = bench_.Floats(n);
  bench_.Run(SwiGluForward{bench_.Floats(gates_and_ups), y, 1, n});
  const Vec found = OpBench::Read(y, n);
  EXPECT_EQ(found[0], inf);
  ExpectClose({y.As<float>() + 1, DType::kF32}, {1e4, 90, 0, 0}, 1e-7, "swiglu");
  EXPECT_TRUE(std::isnan(found[5]));
}

TRAINYARD_CUDA_SUITE(CudaShapesTest);

}  // namespace
}  // namespace trainyard::kernels
