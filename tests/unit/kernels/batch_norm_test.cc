#include "tests/reference/batch_norm.h"

#include "tests/reference/element.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

constexpr float kEpsilon = 1e-5f, kMomentum = 0.1f;

class BatchNormTest : public CpuTest {};

struct Case {
  int64_t rows, cols;
  bool residual, relu, accumulate;

  reference::BatchNormShape shape() const {
    return {.rows = rows, .cols = cols, .epsilon = kEpsilon, .relu = relu};
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t rows : {5, 33, 1500}) {
    for (const int64_t cols : {1, 17, 64, 131}) {
      for (int flags = 0; flags < 8; ++flags) {
        cases.push_back({rows, cols, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
      }
    }
  }
  cases.push_back({70'000, 3, true, true, false});
  cases.push_back({200, 1030, true, true, true});
  return cases;
}

// An offset, so that a variance from squares alone would lose its digits.
Vec Shifted(Vec x) {
  for (double& v : x) v = static_cast<float>(v + 30);
  return x;
}

TEST_P(BatchNormTest, ForwardAgreesWithReferenceAndMovesTheRunningStatistics) {
  std::vector<Case> cases = Cases();
  cases.push_back({2, 65, true, true, false});
  for (const Case& c : cases) {
    const int64_t n = c.rows * c.cols;
    const Vec x = Shifted(RandomVec(n, 1)), gamma = RandomVec(c.cols, 2),
              beta = RandomVec(c.cols, 3), residual = c.residual ? RandomVec(n, 4) : Vec();
    const Vec old_mean = RandomVec(c.cols, 5), old_var = RandomVec(c.cols, 6);
    const Buffer y = bench_.Floats(n), mean = bench_.Floats(c.cols), rstd = bench_.Floats(c.cols),
                 running_mean = bench_.Floats(old_mean), running_var = bench_.Floats(old_var);
    bench_.Run(BatchNormForward{.x = bench_.Floats(x),
                                .gamma = bench_.Floats(gamma),
                                .beta = bench_.Floats(beta),
                                .residual = c.residual ? bench_.Floats(residual) : Buffer(),
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .running_mean = running_mean,
                                .running_var = running_var,
                                .rows = c.rows,
                                .cols = c.cols,
                                .epsilon = kEpsilon,
                                .momentum = kMomentum,
                                .relu = c.relu});
    const auto expected = reference::BatchNorm(x, gamma, beta, residual, c.shape());
    const std::string of = " of " + std::to_string(c.rows) + " x " + std::to_string(c.cols);
    ExpectClose(y, expected.y, 2e-5, "y" + of);
    ExpectClose(mean, expected.mean, 1e-7, "mean" + of);
    ExpectClose(rstd, expected.rstd, 2e-6, "rstd" + of);
    ExpectClose(running_mean, reference::Moved(old_mean, expected.mean, kMomentum), 1e-6,
                "running mean" + of);
    ExpectClose(
        running_var,
        reference::Moved(old_var, reference::Unbiased(expected.variance, c.rows), kMomentum), 1e-6,
        "running var" + of);
  }
}

// From the moments of the first time, with the same bits.
TEST_P(BatchNormTest, ASecondTimeGivesTheSameBits) {
  for (const Case& c : Cases()) {
    const int64_t n = c.rows * c.cols;
    BatchNormForward op{.x = bench_.Floats(Shifted(RandomVec(n, 1))),
                        .gamma = bench_.Floats(RandomVec(c.cols, 2)),
                        .beta = bench_.Floats(RandomVec(c.cols, 3)),
                        .residual = c.residual ? bench_.Floats(RandomVec(n, 4)) : Buffer(),
                        .y = bench_.Floats(n),
                        .mean = bench_.Floats(c.cols),
                        .rstd = bench_.Floats(c.cols),
                        .running_mean = bench_.Floats(c.cols),
                        .running_var = bench_.Floats(c.cols),
                        .rows = c.rows,
                        .cols = c.cols,
                        .epsilon = kEpsilon,
                        .momentum = kMomentum,
                        .relu = c.relu};
    bench_.Run(op);
    const Buffer y = op.y;
    op.y = bench_.Floats(n);
    op.running_mean = op.running_var = Buffer();
    op.again = true;
    bench_.Run(op);
    ExpectClose(op.y, bench_.Read(y, n), 0, "y");
  }
}

TEST_P(BatchNormTest, InferenceAgreesWithReference) {
  for (const Case& c : Cases()) {
    const int64_t n = c.rows * c.cols;
    const Vec x = RandomVec(n, 1), gamma = RandomVec(c.cols, 2), beta = RandomVec(c.cols, 3),
              residual = c.residual ? RandomVec(n, 4) : Vec(), mean = RandomVec(c.cols, 5);
    Vec variance = RandomVec(c.cols, 6);
    for (double& v : variance) v = static_cast<float>(v * v);
    // Over its own input with one flag, over the residual with another.
    const Buffer in = bench_.Floats(x), other = c.residual ? bench_.Floats(residual) : Buffer();
    const Buffer y = c.accumulate ? in : c.residual ? other : bench_.Floats(n);
    bench_.Run(BatchNormInference{.x = in,
                                  .gamma = bench_.Floats(gamma),
                                  .beta = bench_.Floats(beta),
                                  .residual = other,
                                  .running_mean = bench_.Floats(mean),
                                  .running_var = bench_.Floats(variance),
                                  .y = y,
                                  .rows = c.rows,
                                  .cols = c.cols,
                                  .epsilon = kEpsilon,
                                  .relu = c.relu});
    ExpectClose(y,
                reference::BatchNormInference(x, gamma, beta, residual, mean, variance, c.shape()),
                1e-5, "y");
  }
}

TEST_P(BatchNormTest, GradientAgreesWithReference) {
  for (const Case& c : Cases()) {
    const int64_t n = c.rows * c.cols;
    const Vec x = Shifted(RandomVec(n, 1)), dy = RandomVec(n, 2), gamma = RandomVec(c.cols, 3);
    const Vec y = c.relu ? RandomVec(n, 4) : Vec();  // its sign is all that counts
    const Vec old_dgamma = RandomVec(c.cols, 5), old_dbeta = RandomVec(c.cols, 6);
    const auto forward = reference::BatchNorm(x, gamma, Vec(c.cols, 0.0), {}, c.shape());
    const auto g = reference::BatchNormBackward(dy, x, y, gamma, c.shape());
    const Buffer dx = bench_.Floats(n), dresidual = c.residual ? bench_.Floats(n) : Buffer();
    const Buffer dgamma = c.accumulate ? bench_.Floats(old_dgamma) : bench_.Floats(c.cols);
    const Buffer dbeta = c.accumulate ? bench_.Floats(old_dbeta) : bench_.Floats(c.cols);
    bench_.Run(BatchNormBackward{.dy = bench_.Floats(dy),
                                 .x = bench_.Floats(x),
                                 .y = c.relu ? bench_.Floats(y) : Buffer(),
                                 .gamma = bench_.Floats(gamma),
                                 .mean = bench_.Floats(forward.mean),
                                 .rstd = bench_.Floats(forward.rstd),
                                 .dx = dx,
                                 .dresidual = dresidual,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .rows = c.rows,
                                 .cols = c.cols,
                                 .accumulate_params = c.accumulate});
    ExpectClose(dx, g.dx, 2e-5, "dx");
    ExpectClose(dgamma, c.accumulate ? Plus(g.dgamma, old_dgamma) : g.dgamma, 2e-5, "dgamma");
    ExpectClose(dbeta, c.accumulate ? Plus(g.dbeta, old_dbeta) : g.dbeta, 1e-5, "dbeta");
    if (c.residual) ExpectClose(dresidual, g.dresidual, 0, "dresidual");
  }
}

// What is frozen, or lies before all that is trained, is not asked for.
TEST_P(BatchNormTest, EachGradientMayBeLeftOut) {
  constexpr int64_t kRows = 65, kCols = 33, kN = kRows * kCols;
  const reference::BatchNormShape shape{
      .rows = kRows, .cols = kCols, .epsilon = kEpsilon, .relu = true};
  const Vec x = RandomVec(kN, 1), dy = RandomVec(kN, 2), gamma = RandomVec(kCols, 3),
            y = RandomVec(kN, 4);
  const auto forward = reference::BatchNorm(x, gamma, Vec(kCols, 0.0), {}, shape);
  const auto g = reference::BatchNormBackward(dy, x, y, gamma, shape);
  for (int wanted = 1; wanted < 16; ++wanted) {
    BatchNormBackward op{.dy = bench_.Floats(dy),
                         .x = bench_.Floats(x),
                         .y = bench_.Floats(y),
                         .gamma = bench_.Floats(gamma),
                         .mean = bench_.Floats(forward.mean),
                         .rstd = bench_.Floats(forward.rstd),
                         .rows = kRows,
                         .cols = kCols};
    if (wanted & 1) op.dx = bench_.Floats(kN);
    if (wanted & 2) op.dgamma = bench_.Floats(kCols);
    if (wanted & 4) op.dbeta = bench_.Floats(kCols);
    if (wanted & 8) op.dresidual = bench_.Floats(kN);
    bench_.Run(op);
    if (op.dx) ExpectClose(op.dx, g.dx, 2e-5, "dx");
    if (op.dgamma) ExpectClose(op.dgamma, g.dgamma, 2e-5, "dgamma");
    if (op.dbeta) ExpectClose(op.dbeta, g.dbeta, 1e-5, "dbeta");
    if (op.dresidual) ExpectClose(op.dresidual, g.dresidual, 0, "dresidual");
  }
}

TEST_P(BatchNormTest, BothDirectionsWorkInPlace) {
  constexpr int64_t kRows = 700, kCols = 65, kN = kRows * kCols;
  const reference::BatchNormShape shape{
      .rows = kRows, .cols = kCols, .epsilon = kEpsilon, .relu = true};
  const Vec x = RandomVec(kN, 1), gamma = RandomVec(kCols, 2), beta = RandomVec(kCols, 3),
            residual = RandomVec(kN, 4), dy = RandomVec(kN, 5);
  const Buffer in = bench_.Floats(x), y = bench_.Floats(residual), mean = bench_.Floats(kCols),
               rstd = bench_.Floats(kCols), gradient = bench_.Floats(dy),
               dgamma = bench_.Floats(kCols), dbeta = bench_.Floats(kCols);
  bench_.Run(BatchNormForward{.x = in,
                              .gamma = bench_.Floats(gamma),
                              .beta = bench_.Floats(beta),
                              .residual = y,
                              .y = y,
                              .mean = mean,
                              .rstd = rstd,
                              .running_mean = bench_.Floats(Vec(kCols, 0.0)),
                              .running_var = bench_.Floats(Vec(kCols, 1.0)),
                              .rows = kRows,
                              .cols = kCols,
                              .epsilon = kEpsilon,
                              .relu = true});
  const auto expected = reference::BatchNorm(x, gamma, beta, residual, shape);
  ExpectClose(y, expected.y, 1e-5, "y");
  bench_.Run(BatchNormBackward{.dy = gradient,
                               .x = in,
                               .y = y,
                               .gamma = bench_.Floats(gamma),
                               .mean = mean,
                               .rstd = rstd,
                               .dx = in,
                               .dresidual = gradient,
                               .dgamma = dgamma,
                               .dbeta = dbeta,
                               .rows = kRows,
                               .cols = kCols});
  const auto g = reference::BatchNormBackward(dy, x, Bench::Read(y, kN), gamma, shape);
  ExpectClose(in, g.dx, 2e-5, "dx");
  ExpectClose(gradient, g.dresidual, 0, "dresidual");
  ExpectClose(dgamma, g.dgamma, 1e-5, "dgamma");
}

// Columns that come in whole groups of neighbours, more and fewer than a cache line holds; each
// with a mean of its own.
TEST_P(BatchNormTest, ManyColumnsOf16BitsAgreeWithReference) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {5, 8}, {4100, 8}, {2300, 24}, {301, 264}, {67, 512}}) {
      const int64_t n = rows * cols;
      const reference::BatchNormShape shape{
          .rows = rows, .cols = cols, .epsilon = kEpsilon, .relu = true};
      const auto draw = [&, cols = cols](int seed, double apart) {
        Vec x = RandomVec(n, seed);
        for (int64_t i = 0; i < n; ++i) {
          x[i] = reference::Rounded(type, x[i] + apart * static_cast<double>(i % cols));
        }
        return x;
      };
      const Vec x = draw(1, 0.05), residual = draw(2, 0), dy = draw(3, 0),
                gamma = RandomVec(cols, 4), beta = RandomVec(cols, 5);
      const Buffer in = bench_.Elements(type, x), y = bench_.Elements(type, residual),
                   mean = bench_.Floats(cols), rstd = bench_.Floats(cols),
                   gradient = bench_.Elements(type, dy), dx = bench_.Raw(type, n),
                   dgamma = bench_.Floats(cols), dbeta = bench_.Floats(cols),
                   running_mean = bench_.Floats(Vec(cols, 0.0)),
                   running_var = bench_.Floats(Vec(cols, 0.0));
      bench_.Run(BatchNormForward{.x = in,
                                  .gamma = bench_.Floats(gamma),
                                  .beta = bench_.Floats(beta),
                                  .residual = y,
                                  .y = y,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .running_mean = running_mean,
                                  .running_var = running_var,
                                  .rows = rows,
                                  .cols = cols,
                                  .epsilon = kEpsilon,
                                  .momentum = 1,
                                  .relu = true});
      const auto expected = reference::BatchNorm(x, gamma, beta, residual, shape);
      const std::string of = " of " + std::to_string(rows) + " x " + std::to_string(cols);
      ExpectClose(y, expected.y, 2e-5, "y" + of);
      ExpectClose(mean, expected.mean, 2e-6, "mean" + of);
      ExpectClose(rstd, expected.rstd, 2e-6, "rstd" + of);
      ExpectClose(running_var, reference::Unbiased(expected.variance, rows), 2e-6, "var" + of);
      bench_.Run(BatchNormBackward{.dy = gradient,
                                   .x = in,
                                   .y = y,
                                   .gamma = bench_.Floats(gamma),
                                   .mean = mean,
                                   .rstd = rstd,
                                   .dx = dx,
                                   .dresidual = gradient,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .rows = rows,
                                   .cols = cols});
      const auto g = reference::BatchNormBackward(dy, x, Bench::Read(y, n), gamma, shape);
      ExpectClose(dx, g.dx, 1e-4, "dx" + of);
      ExpectClose(gradient, g.dresidual, 0, "dresidual" + of);
      ExpectClose(dgamma, g.dgamma, 2e-5, "dgamma" + of);
      ExpectClose(dbeta, g.dbeta, 2e-5, "dbeta" + of);
    }
  }
}

TEST_P(BatchNormTest, ASingleRowHasNoVarianceAndIsRefused) {
  const Buffer b = bench_.Floats(4);
  const BatchNormForward op{.x = b,
                            .gamma = b,
                            .beta = b,
                            .y = b,
                            .mean = b,
                            .rstd = b,
                            .running_mean = b,
                            .running_var = b,
                            .rows = 1,
                            .cols = 4};
  EXPECT_EQ(bench_.device().Prepare(op).status().code(), absl::StatusCode::kInvalidArgument);
}

TRAINYARD_CPU_SUITE(BatchNormTest);

}  // namespace
}  // namespace trainyard::kernels
