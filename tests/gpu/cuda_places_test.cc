// Operands that do not begin where 16 bytes do are read by elements, in the same order: an op gives
// the same bits wherever its operands lie.

#include "kernels/step_state.h"
#include "tests/gpu/op_bench.h"
#include "tests/reference/element.h"

namespace trainyard::kernels {
namespace {

class CudaPlacesTest : public CudaTest {
 protected:
  // `values` in a buffer of their own, `place_` elements from its beginning.
  Buffer Put(DType type, const Vec& values) {
    Vec padded(place_, 0.0);
    padded.insert(padded.end(), values.begin(), values.end());
    Buffer b = bench_.Elements(type, padded);
    b.data = static_cast<char*>(b.data) + place_ * SizeOf(type);
    return b;
  }

  // What `results` returns where operands begin where they should, and an element further.
  template <typename F>
  void ExpectTheSameBits(const F& results) {
    place_ = 0;
    const std::vector<Vec> aligned = results();
    place_ = 1;
    EXPECT_EQ(results(), aligned);
  }

  int64_t place_ = 0;
};

constexpr DType kPlacedTypes[] = {DType::kF32, DType::kBF16};

TEST_P(CudaPlacesTest, BatchNorm) {
  constexpr int64_t kRows = 700, kCols = 40, kN = kRows * kCols;
  const Vec x = RandomVec(kN, 1), dy = RandomVec(kN, 2), gamma = RandomVec(kCols, 3);
  for (const DType type : kPlacedTypes) {
    ExpectTheSameBits([&] {
      const Buffer in = Put(type, x), y = Put(type, x), mean = bench_.Floats(kCols),
                   rstd = bench_.Floats(kCols), scale = bench_.Floats(gamma), g = Put(type, dy),
                   dx = Put(type, dy), dgamma = bench_.Floats(kCols), dbeta = bench_.Floats(kCols);
      bench_.Run(BatchNormForward{.x = in,
                                  .gamma = scale,
                                  .beta = bench_.Floats(Vec(kCols, 0.5)),
                                  .residual = y,
                                  .y = y,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .running_mean = bench_.Floats(Vec(kCols, 0.0)),
                                  .running_var = bench_.Floats(Vec(kCols, 0.0)),
                                  .rows = kRows,
                                  .cols = kCols,
                                  .relu = true});
      bench_.Run(BatchNormBackward{.dy = g,
                                   .x = in,
                                   .y = y,
                                   .gamma = scale,
                                   .mean = mean,
                                   .rstd = rstd,
                                   .dx = dx,
                                   .dresidual = g,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .rows = kRows,
                                   .cols = kCols});
      std::vector<Vec> all;
      for (const Buffer& b : {y, dx, g}) all.push_back(OpBench::Read(b, kN));
      for (const Buffer& b : {mean, rstd, dgamma, dbeta}) all.push_back(OpBench::Read(b, kCols));
      return all;
    });
  }
}

TEST_P(CudaPlacesTest, ColumnSum) {
  for (const auto& [rows, cols] : {std::pair{700, 40}, {9000, 264}, {5, 8}}) {
    const Vec x = RandomVec(int64_t{rows} * cols, 1);
    for (const DType type : kPlacedTypes) {
      ExpectTheSameBits([&] {
        const Buffer y = bench_.Floats(cols);
        bench_.Run(ColumnSum{Put(type, x), y, rows, cols});
        return std::vector<Vec>{OpBench::Read(y, cols)};
      });
    }
  }
}

TEST_P(CudaPlacesTest, Maps) {
  for (const int64_t n : {5, 2048, 5003}) {
    const Vec x = RandomVec(n, 1, 2), dy = RandomVec(n, 2);
    for (const DType type : kPlacedTypes) {
      for (const auto kind : {ActivationKind::kRelu, ActivationKind::kRelu6, ActivationKind::kGelu,
                              ActivationKind::kGeluTanh}) {
        ExpectTheSameBits([&] {
          const Buffer in = Put(type, x), y = Put(type, x), dx = Put(type, dy),
                       wide = Put(DType::kF32, x), narrow = Put(type, dy);
          bench_.Run(ActivationForward{kind, in, y, n});
          bench_.Run(ActivationBackward{kind, in, dx, dx, n});
          bench_.Run(Add{wide, narrow, wide, n});
          if (type != DType::kF32) bench_.Run(Cast{wide, narrow, n});
          std::vector<Vec> all;
          for (const Buffer& b : {y, dx, wide, narrow}) all.push_back(OpBench::Read(b, n));
          return all;
        });
      }
    }
  }
}

TEST_P(CudaPlacesTest, GatesDropoutAndRotary) {
  constexpr int64_t kRows = 70, kCols = 48, kN = kRows * kCols;
  const Vec x = RandomVec(2 * kN, 1), dy = RandomVec(kN, 2);
  StepState state{.seed = 3, .step = 5, .first_sample = 7};
  for (const DType type : kPlacedTypes) {
    ExpectTheSameBits([&] {
      const Buffer in = Put(type, x), y = Put(type, dy), dropped = Put(type, dy),
                   turned = Put(type, dy), dx = Put(type, x);
      bench_.Run(SwiGluForward{in, y, kRows, kCols});
      bench_.Run(SwiGluBackward{dx, dropped, dx, kRows, kCols});
      bench_.Run(Dropout{dropped, dropped, {&state}, 5, kRows, kCols, 0.2f});
      bench_.Run(Rotary{.x = turned,
                        .y = turned,
                        .batch = 2,
                        .time = kRows / 2,
                        .heads = 3,
                        .rotated = 2,
                        .head_dim = 16});
      std::vector<Vec> all = {OpBench::Read(dx, 2 * kN)};
      for (const Buffer& b : {y, dropped, turned}) all.push_back(OpBench::Read(b, kN));
      return all;
    });
  }
}

TEST_P(CudaPlacesTest, OptimizersAndTheirSums) {
  StepState state{.learning_rate = 0.01f, .updates = 3};
  for (const int64_t n : {3, 5003}) {
    const Vec w = RandomVec(n, 1), g = RandomVec(n, 2), m = RandomVec(n, 3);
    Vec v = RandomVec(n, 4);
    for (double& square : v) square *= square;
    for (const DType type : kPlacedTypes) {
      ExpectTheSameBits([&] {
        const auto put = [&](const Vec& values) { return Put(DType::kF32, values); };
        const Buffer grad = Put(type, g), copy = Put(DType::kBF16, g), average = put(w),
                     sum = bench_.Raw(DType::kF64, 1);
        std::vector<Buffer> moved = {average, copy};
        const auto fresh = [&](const Vec& values) {
          moved.push_back(put(values));
          return moved.back();
        };
        bench_.Run(AdamWStep{.w = fresh(w),
                             .grad = grad,
                             .m = fresh(m),
                             .v = fresh(v),
                             .state = {&state},
                             .copy = copy,
                             .n = n});
        bench_.Run(SgdStep{.w = fresh(w),
                           .grad = grad,
                           .velocity = fresh(m),
                           .state = {&state},
                           .n = n,
                           .momentum = 0.5f,
                           .nesterov = true});
        for (const bool adapt : {false, true}) {
          bench_.Run(LambStep{.w = fresh(w),
                              .grad = put(g),
                              .m = fresh(m),
                              .v = fresh(v),
                              .state = {&state},
                              .n = n,
                              .adapt = adapt});
        }
        bench_.Run(
            EmaStep{.average = average, .w = put(m), .state = {&state}, .n = n, .decay = 0.9});
        bench_.Run(SquaredNorm{grad, sum, n, false});
        std::vector<Vec> all = {Vec{*sum.As<double>()}};
        for (const Buffer& b : moved) all.push_back(OpBench::Read(b, n));
        return all;
      });
    }
  }
}

TEST_P(CudaPlacesTest, Embedding) {
  constexpr int64_t kPlaces = 50, kWidth = 520, kVocab = 9;
  const Vec tokens = RandomVec(kVocab * kWidth, 1), positions = RandomVec(kPlaces * kWidth, 2);
  const std::vector<int32_t> ids = RandomIds(kPlaces, kVocab, 3);
  ExpectTheSameBits([&] {
    const Buffer y = Put(DType::kF32, positions);
    bench_.Run(EmbeddingForward{bench_.Ints(ids), Put(DType::kF32, tokens),
                                Put(DType::kF32, positions), y, 1, kPlaces, kWidth, kVocab});
    return std::vector<Vec>{OpBench::Read(y, kPlaces * kWidth)};
  });
}

TEST_P(CudaPlacesTest, CrossEntropy) {
  constexpr int64_t kRows = 3;
  for (const int64_t classes : {13, 1000, 2056, 17'001}) {
    const Vec logits = RandomVec(kRows * classes, 1, 4);
    std::vector<int32_t> targets = RandomIds(kRows, static_cast<int32_t>(classes), 2);
    targets[1] = -1;
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      ExpectTheSameBits([&] {
        const Buffer both = Put(type, logits), losses = bench_.Floats(kRows),
                     correct = bench_.Floats(kRows);
        bench_.Run(CrossEntropy{.logits = both,
                                .targets = bench_.Ints(targets),
                                .losses = losses,
                                .correct = correct,
                                .dlogits = both,
                                .rows = kRows,
                                .classes = classes,
                                .smoothing = 0.1f,
                                .z_loss = 1e-3f});
        return std::vector<Vec>{OpBench::Read(both, kRows * classes), OpBench::Read(losses, kRows),
                                OpBench::Read(correct, kRows)};
      });
    }
  }
}

TRAINYARD_CUDA_SUITE(CudaPlacesTest);

}  // namespace
}  // namespace trainyard::kernels
