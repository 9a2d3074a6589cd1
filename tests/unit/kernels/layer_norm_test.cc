#include "tests/reference/layer_norm.h"

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

class LayerNormTest : public CpuTest {};

struct Case {
  int64_t rows, cols;
  bool beta, accumulate_dx, accumulate_params;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
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
  for (const Case& c : Cases()) {
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
                                .epsilon = kEpsilon});
    const auto expected = reference::LayerNorm(x, gamma, beta, c.rows, c.cols, kEpsilon);
    ExpectClose(y, expected.y, 2e-5, "y");
    ExpectClose(mean, expected.mean, 1e-6, "mean");
    ExpectClose(rstd, expected.rstd, 1e-5, "rstd");
  }
}

TEST_P(LayerNormTest, GradientAgreesWithReference) {
  for (const Case& c : Cases()) {
    const int64_t n = c.rows * c.cols;
    const Vec x = RandomVec(n, 1), dy = RandomVec(n, 2), gamma = RandomVec(c.cols, 3);
    const Vec old_dx = RandomVec(n, 4), old_dgamma = RandomVec(c.cols, 5),
              old_dbeta = RandomVec(c.cols, 6);
    const auto forward = reference::LayerNorm(x, gamma, {}, c.rows, c.cols, kEpsilon);
    auto g = reference::LayerNormBackward(dy, x, gamma, c.rows, c.cols, kEpsilon);
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
                                .epsilon = kEpsilon});
    bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                                 .x = in,
                                 .gamma = scale,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dgamma = dgamma,
                                 .rows = rows,
                                 .cols = cols});
    const auto forward = reference::LayerNorm(x, gamma, {}, rows, cols, kEpsilon, false);
    const auto g = reference::LayerNormBackward(dy, x, gamma, rows, cols, kEpsilon, false);
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
  const auto forward = reference::LayerNorm(x, gamma, {}, kRows, kCols, kEpsilon);
  const auto g = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, kEpsilon);
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
  const auto forward = reference::LayerNorm(x, gamma, {}, kRows, kCols, kEpsilon);
  const auto g = reference::LayerNormBackward(dy, x, gamma, kRows, kCols, kEpsilon);
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

TRAINYARD_CPU_SUITE(LayerNormTest);

}  // namespace
}  // namespace trainyard::kernels
