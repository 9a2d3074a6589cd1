#include "tests/reference/layer_norm.h"

#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr float kRowEpsilon = 1e-5f;

class LayerNormTest : public CpuTest {};

struct RowCase {
  int64_t rows, cols;
  bool beta, accumulate_dx, accumulate_params;
};

std::vector<RowCase> RowCases() {
  std::vector<RowCase> cases;
  for (const int64_t rows : {1, 3, 65, 700}) {
    for (const int64_t cols : {3, 17, 65, 128}) {
      for (int flags = 0; flags < 8; ++flags) {
        cases.push_back({rows, cols, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
      }
    }
  }
  return cases;
}

TEST_P(LayerNormTest, ForwardAgreesWithReference) {
  for (const RowCase& c : RowCases()) {
    // An offset, so that a variance from squares alone would lose its digits.
    Vec x = RandomVec(c.rows * c.cols, 1);
    for (double& v : x) v = static_cast<float>(v + 30);
    const Vec gamma = RandomVec(c.cols, 2), beta = c.beta ? RandomVec(c.cols, 3) : Vec();
    const Buffer y = bench_.Floats(c.rows * c.cols), mean = bench_.Floats(c.rows),
                 rstd = bench_.Floats(c.rows);
    bench_.Run(LayerNormForward{.x = bench_.Floats(x),
                                .gamma = bench_.Floats(gamma),
                                .beta = c.beta ? bench_.Floats(beta) : Buffer(),
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .rows = c.rows,
                                .cols = c.cols,
                                .epsilon = kRowEpsilon});
    const auto expected = reference::LayerNorm(x, gamma, beta, c.rows, c.cols, kRowEpsilon);
    ExpectClose(y, expected.y, 2e-5, "y");
    ExpectClose(mean, expected.mean, 1e-6, "mean");
    ExpectClose(rstd, expected.rstd, 1e-5, "rstd");
  }
}

TEST_P(LayerNormTest, GradientAgreesWithReference) {
  for (const RowCase& c : RowCases()) {
    const int64_t n = c.rows * c.cols;
    const Vec x = RandomVec(n, 1), dy = RandomVec(n, 2), gamma = RandomVec(c.cols, 3);
    const Vec old_dx = RandomVec(n, 4), old_dgamma = RandomVec(c.cols, 5),
              old_dbeta = RandomVec(c.cols, 6);
    const auto forward = reference::LayerNorm(x, gamma, {}, c.rows, c.cols, kRowEpsilon);
    auto g = reference::LayerNormBackward(dy, x, gamma, c.rows, c.cols, kRowEpsilon);
    const Buffer dx = c.accumulate_dx ? bench_.Floats(old_dx) : bench_.Floats(n);
    const Buffer dgamma = c.accumulate_params ? bench_.Floats(old_dgamma) : bench_.Floats(c.cols);
    const Buffer dbeta = c.accumulate_params ? bench_.Floats(old_dbeta) : bench_.Floats(c.cols);
    bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                                 .x = bench_.Floats(x),
                                 .gamma = bench_.Floats(gamma),
                                 .mean = bench_.Floats(forward.mean),
                                 .rstd = bench_.Floats(forward.rstd),
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = c.beta ? dbeta : Buffer(),
                                 .rows = c.rows,
                                 .cols = c.cols,
                                 .accumulate_dx = c.accumulate_dx,
                                 .accumulate_params = c.accumulate_params});
    ExpectClose(dx, c.accumulate_dx ? Plus(g.dx, old_dx) : g.dx, 2e-5, "dx");
    ExpectClose(dgamma, c.accumulate_params ? Plus(g.dgamma, old_dgamma) : g.dgamma, 1e-5,
                "dgamma");
    if (!c.beta) continue;
    ExpectClose(dbeta, c.accumulate_params ? Plus(g.dbeta, old_dbeta) : g.dbeta, 1e-5, "dbeta");
  }
}

TEST_P(LayerNormTest, WithoutAMeanItIsRmsNorm) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 3}, {65, 17}, {700, 128}}) {
    const int64_t n = rows * cols;
    Vec x = RandomVec(n, 1);
    for (double& v : x) v = static_cast<float>(v + 0.5);  // a mean that must not be taken out
    const Vec dy = RandomVec(n, 2), gamma = RandomVec(cols, 3);
    const Buffer y = bench_.Floats(n), rstd = bench_.Floats(rows), dx = bench_.Floats(n),
                 dgamma = bench_.Floats(cols), in = bench_.Floats(x), scale = bench_.Floats(gamma);
    bench_.Run(LayerNormForward{.x = in,
                                .gamma = scale,
                                .y = y,
                                .rstd = rstd,
                                .rows = rows,
                                .cols = cols,
                                .epsilon = kRowEpsilon});
    bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                                 .x = in,
                                 .gamma = scale,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .rows = rows,
                                 .cols = cols});
    const auto forward = reference::LayerNorm(x, gamma, {}, rows, cols, kRowEpsilon, false);
    const auto g = reference::LayerNormBackward(dy, x, gamma, rows, cols, kRowEpsilon, false);
    ExpectClose(y, forward.y, 2e-6, "y");
    ExpectClose(rstd, forward.rstd, 2e-6, "rstd");
    ExpectClose(dx, g.dx, 1e-5, "dx");
    ExpectClose(dgamma, g.dgamma, 1e-5, "dgamma");
  }
}

TEST_P(LayerNormTest, GradientMayOverwriteItsInput) {
  constexpr int64_t kRows = 65, kCols = 33;
  const Vec x = RandomVec(kRows * kCols, 1), dy = RandomVec(kRows * kCols, 2),
            gamma = RandomVec(kCols, 3);
  const auto forward = reference::LayerNorm(x, gamma, {}, kRows, kCols, kRowEpsilon);
  const auto g = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, kRowEpsilon);
  const Buffer both = bench_.Floats(dy), dgamma = bench_.Floats(kCols);
  bench_.Run(LayerNormBackward{.dy = both,
                               .x = bench_.Floats(x),
                               .gamma = bench_.Floats(gamma),
                               .mean = bench_.Floats(forward.mean),
                               .rstd = bench_.Floats(forward.rstd),
                               .dx = both,
                               .dgamma = dgamma,
                               .rows = kRows,
                               .cols = kCols});
  ExpectClose(both, g.dx, 2e-5, "dx");
  ExpectClose(dgamma, g.dgamma, 1e-5, "dgamma");
}

// What is frozen, or lies before all that is trained, is not asked for.
TEST_P(LayerNormTest, EachGradientMayBeLeftOut) {
  constexpr int64_t kRows = 65, kCols = 33;
  const Vec x = RandomVec(kRows * kCols, 1), dy = RandomVec(kRows * kCols, 2),
            gamma = RandomVec(kCols, 3);
  const auto forward = reference::LayerNorm(x, gamma, {}, kRows, kCols, kRowEpsilon);
  const auto g = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, kRowEpsilon);
  for (int wanted = 1; wanted < 8; ++wanted) {
    LayerNormBackward op{.dy = bench_.Floats(dy),
                         .x = bench_.Floats(x),
                         .gamma = bench_.Floats(gamma),
                         .mean = bench_.Floats(forward.mean),
                         .rstd = bench_.Floats(forward.rstd),
                         .rows = kRows,
                         .cols = kCols};
    if (wanted & 1) op.dx = bench_.Floats(kRows * kCols);
    if (wanted & 2) op.dgamma = bench_.Floats(kCols);
    if (wanted & 4) op.dbeta = bench_.Floats(kCols);
    bench_.Run(op);
    if (op.dx) ExpectClose(op.dx, g.dx, 2e-5, "dx");
    if (op.dgamma) ExpectClose(op.dgamma, g.dgamma, 1e-5, "dgamma");
    if (op.dbeta) ExpectClose(op.dbeta, g.dbeta, 1e-5, "dbeta");
  }
}

// Of the residual and of the norm's result, as they may meet.
struct Types {
  DType residual, y;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32},   {DType::kF32, DType::kBF16},
                            {DType::kF32, DType::kF16},   {DType::kBF16, DType::kF32},
                            {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF32},
                            {DType::kF16, DType::kF16}};

std::string NameOf(const Types& types, int64_t rows, int64_t cols) {
  return absl::StrCat(" of ", rows, " x ", cols, ", residual of type ",
                      static_cast<int>(types.residual), ", y of ", static_cast<int>(types.y));
}

Vec Rounded(DType type, Vec x) {
  for (double& v : x) v = reference::Rounded(type, v);
  return x;
}

bool SameBits(const Buffer& a, const Buffer& b, int64_t n) {
  return a.dtype == b.dtype && std::memcmp(a.data, b.data, n * SizeOf(a.dtype)) == 0;
}

TEST_P(LayerNormTest, OfASumAgreesWithReference) {
  for (const Types& types : kTypes) {
    for (const auto& [rows, cols, centred] :
         {std::tuple<int64_t, int64_t, bool>{1, 3, true}, {65, 17, false}, {9, 128, true}}) {
      const int64_t n = rows * cols;
      Vec x = RandomVec(n, 1);
      for (double& v : x) v = static_cast<float>(v + 30);
      const Vec residual = Rounded(types.residual, RandomVec(n, 2)), gamma = RandomVec(cols, 3),
                beta = RandomVec(cols, 4);
      const Buffer sum = bench_.Floats(n), y = bench_.Raw(types.y, n), rstd = bench_.Floats(rows),
                   mean = centred ? bench_.Floats(rows) : Buffer();
      bench_.Run(LayerNormForward{.x = bench_.Floats(x),
                                  .residual = bench_.Elements(types.residual, residual),
                                  .sum = sum,
                                  .gamma = bench_.Floats(gamma),
                                  .beta = bench_.Floats(beta),
                                  .y = y,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .rows = rows,
                                  .cols = cols,
                                  .epsilon = kRowEpsilon});
      const std::string what = NameOf(types, rows, cols);
      const Vec of = Rounded(DType::kF32, Plus(x, residual));
      ExpectClose(sum, of, 0, "sum" + what);
      const auto expected = reference::LayerNorm(of, gamma, beta, rows, cols, kRowEpsilon, centred);
      ExpectClose(y, expected.y, 2e-5, "y" + what);
      ExpectClose(rstd, expected.rstd, 1e-5, "rstd" + what);
      if (centred) ExpectClose(mean, expected.mean, 1e-6, "mean" + what);
    }
  }
}

// Which operands of the joined op share their memory.
enum class Shares { kNothing, kSumWithX, kSumWithResidual, kYWithResidual, kBoth };

// Odd lengths, and such that a GPU's threads hold a whole row, share it out, or cannot.
TEST_P(LayerNormTest, OfASumHasTheBitsOfTheSumAndThenTheNorm) {
  for (const Types& types : kTypes) {
    for (const auto& shape : {std::pair<int64_t, int64_t>{1, 3},
                              {5, 64},
                              {33, 67},
                              {70, 260},
                              {3, 1030},
                              {3, 2052},
                              {2, 8196},
                              {1, 8201}}) {
      const int64_t rows = shape.first, cols = shape.second, n = rows * cols;
      const Vec a = RandomVec(n, 1, 3), b = RandomVec(n, 2);
      const Buffer gamma = bench_.Floats(RandomVec(cols, 3)),
                   beta = cols % 2 == 0 ? bench_.Floats(RandomVec(cols, 4)) : Buffer();
      const bool centred = rows != 5;
      const auto norm = [&] {
        return LayerNormForward{.gamma = gamma,
                                .beta = beta,
                                .y = bench_.Raw(types.y, n),
                                .mean = centred ? bench_.Floats(rows) : Buffer(),
                                .rstd = bench_.Floats(rows),
                                .rows = rows,
                                .cols = cols,
                                .epsilon = kRowEpsilon};
      };
      LayerNormForward apart = norm();
      apart.x = bench_.Floats(n);
      bench_.Run(Add{bench_.Floats(a), bench_.Elements(types.residual, b), apart.x, n});
      bench_.Run(apart);
      for (const Shares shares : {Shares::kNothing, Shares::kSumWithX, Shares::kSumWithResidual,
                                  Shares::kYWithResidual, Shares::kBoth}) {
        const bool sum_with_residual = shares == Shares::kSumWithResidual;
        const bool y_with_residual = shares == Shares::kYWithResidual || shares == Shares::kBoth;
        if (sum_with_residual && types.residual != DType::kF32) continue;
        if (y_with_residual && types.residual != types.y) continue;
        LayerNormForward joined = norm();
        joined.x = bench_.Floats(a);
        joined.residual = bench_.Elements(types.residual, b);
        const bool sum_with_x = shares == Shares::kSumWithX || shares == Shares::kBoth;
        joined.sum = sum_with_x ? joined.x : sum_with_residual ? joined.residual : bench_.Floats(n);
        if (y_with_residual) joined.y = joined.residual;
        bench_.Run(joined);
        const std::string what =
            absl::StrCat(NameOf(types, rows, cols), ", shared memory ", static_cast<int>(shares));
        EXPECT_TRUE(SameBits(joined.sum, apart.x, n)) << "sum" << what;
        EXPECT_TRUE(SameBits(joined.y, apart.y, n)) << "y" << what;
        EXPECT_TRUE(SameBits(joined.rstd, apart.rstd, rows)) << "rstd" << what;
        EXPECT_TRUE(!centred || SameBits(joined.mean, apart.mean, rows)) << "mean" << what;
      }
    }
  }
}

TEST_P(LayerNormTest, OfASumTakesResidualAndSumOfTypesThatMeet) {
  const auto floats = [&] { return bench_.Floats(Vec(12, 1.0)); };
  const LayerNormForward whole{.x = floats(),
                               .residual = floats(),
                               .sum = floats(),
                               .gamma = floats(),
                               .y = floats(),
                               .rstd = floats(),
                               .rows = 3,
                               .cols = 4};
  const auto refusal = [&](auto&& change) {
    LayerNormForward op = whole;
    change(op);
    return bench_.device().Prepare(op).status();
  };
  EXPECT_TRUE(refusal([](auto&) {}).ok());
  EXPECT_EQ(refusal([](auto& op) { op.sum = {}; }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](auto& op) { op.residual = {}; }).code(), absl::StatusCode::kInvalidArgument);
  const auto of = [&](DType residual, DType y, DType sum = DType::kF32) {
    return refusal([&](auto& op) {
             op.residual = bench_.Raw(residual, 12);
             op.y = bench_.Raw(y, 12);
             op.sum = bench_.Raw(sum, 12);
           })
        .code();
  };
  EXPECT_EQ(of(DType::kBF16, DType::kBF16), absl::StatusCode::kOk);
  EXPECT_EQ(of(DType::kBF16, DType::kF16), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(of(DType::kF16, DType::kBF16), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(of(DType::kI32, DType::kF32), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(of(DType::kBF16, DType::kBF16, DType::kBF16), absl::StatusCode::kUnimplemented);
}

TRAINYARD_CPU_SUITE(LayerNormTest);

}  // namespace
}  // namespace trainyard::kernels
