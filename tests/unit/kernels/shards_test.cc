// The ops of tensor parallelism.

#include <algorithm>
#include <cmath>

#include "kernels/step_state.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/elementwise.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class ShardsTest : public CpuTest {
 protected:
  // Several buffers in one allocation, each at a multiple of 128 bytes.
  struct Parts {
    Tables tables;
    Buffer At(int64_t i) const { return tables.At(i); }
  };
  Parts Make(DType type, const std::vector<int64_t>& elements) {
    Parts parts;
    int64_t end = 0;
    for (const int64_t n : elements) {
      parts.tables.list.start[parts.tables.list.count++] = end / 4;
      end += (n * SizeOf(type) + 127) / 128 * 128;
    }
    parts.tables.first = bench_.Raw(type, end / SizeOf(type));
    return parts;
  }
  static void Put(const Buffer& from, const Buffer& to, int64_t n) {
    std::memcpy(to.data, from.data, n * SizeOf(from.dtype));
  }
};

// fp32 sums in the tree that splits n at the largest power of two below.
float Tree(const std::vector<float>& values, size_t first, size_t end) {
  if (end - first == 1) return values[first];
  size_t split = 1;
  while (split * 2 < end - first) split *= 2;
  return Tree(values, first, first + split) + Tree(values, first + split, end);
}

TEST_P(ShardsTest, PartsAreAddedInTheTreeAndRoundedOnce) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 13, 128}) {
      const int64_t rows = 3, cols = count > 8 ? 5 : 1030, n = rows * cols;
      const Parts parts = Make(type, std::vector<int64_t>(count, n));
      std::vector<Vec> values;
      for (int64_t i = 0; i < count; ++i) {
        const Buffer rounded = bench_.Elements(type, RandomVec(n, static_cast<int>(i)));
        Put(rounded, parts.At(i), n);
        values.push_back(Bench::Read(rounded, n));
      }
      const Vec bias = RandomVec(cols, 99);
      Vec expected;
      for (int64_t i = 0; i < n; ++i) {
        std::vector<float> leaves;
        for (const Vec& v : values) leaves.push_back(static_cast<float>(v[i]));
        expected.push_back(Tree(leaves, 0, leaves.size()) + static_cast<float>(bias[i % cols]));
      }
      const Buffer y = bench_.Elements(type, Vec(n, 0));
      AddParts op{
          .parts = parts.tables, .bias = bench_.Floats(bias), .y = y, .rows = rows, .cols = cols};
      bench_.Run(op);
      const Vec rounded = Bench::Read(bench_.Elements(type, expected), n);
      EXPECT_EQ(Bench::Read(y, n), rounded) << count << " parts";
      op.y = parts.At(count - 1);
      bench_.Run(op);
      EXPECT_EQ(Bench::Read(op.y, n), rounded) << "in place of the last of " << count;
    }
  }
}

// A rank that makes parts number 1 and 2 of five is sent the others' rows, and has all of these.
TEST_P(ShardsTest, RowsOfPartsAreAddedAsPartsAre) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t cols : {7, 64, 1030}) {
      const int64_t rows = 5, first = 3, own = 2, all = rows * cols;
      const Parts parts = Make(type, std::vector<int64_t>(5, all));
      const Parts made = Make(type, {all, all}),
                  received = Make(type, {own * cols, own * cols, own * cols});
      for (int64_t i = 0; i < 5; ++i) {
        Put(bench_.Elements(type, RandomVec(all, static_cast<int>(i))), parts.At(i), all);
        const bool mine = i == 1 || i == 2;
        if (mine) Put(parts.At(i), made.At(i - 1), all);
        if (!mine) {
          Put(parts.At(i).From(first * cols), received.At(i == 0 ? 0 : i - 2), own * cols);
        }
      }
      const Buffer bias = bench_.Floats(RandomVec(cols, 99));
      const Buffer y = bench_.Elements(type, Vec(all, 0));
      bench_.Run(AddParts{.parts = parts.tables, .bias = bias, .y = y, .rows = rows, .cols = cols});
      const Vec sums = Bench::Read(y, all);
      const Vec expected(sums.begin() + first * cols, sums.begin() + (first + own) * cols);
      const Buffer some = bench_.Elements(type, Vec(own * cols, 0));
      AddRows op{.made = made.tables,
                 .received = received.tables,
                 .bias = bias,
                 .y = some,
                 .rows = own,
                 .cols = cols,
                 .first_row = first,
                 .first_made = 1};
      bench_.Run(op);
      EXPECT_EQ(Bench::Read(some, own * cols), expected);
      op.y = received.At(2);
      bench_.Run(op);
      EXPECT_EQ(Bench::Read(op.y, own * cols), expected) << "in place of the last received";
    }
  }
}

TEST_P(ShardsTest, ARankThatMakesNoPartAddsUpWhatItIsSent) {
  const Parts received = Make(DType::kF32, {6, 6});
  Put(bench_.Floats({1, 2, 3, 4, 5, 6}), received.At(0), 6);
  Put(bench_.Floats({10, 20, 30, 40, 50, 60}), received.At(1), 6);
  const Buffer y = bench_.Floats(Vec(6, 0));
  bench_.Run(AddRows{.received = received.tables, .y = y, .rows = 2, .cols = 3, .first_row = 4});
  EXPECT_EQ(Bench::Read(y, 6), (Vec{11, 22, 33, 44, 55, 66}));
}

TEST_P(ShardsTest, RowsAreTakenAndGathered) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Vec x = Bench::Read(bench_.Elements(type, RandomVec(35, 1)), 35);
    const Buffer some = bench_.Elements(type, Vec(14, 0));
    bench_.Run(
        TakeRows{.x = bench_.Elements(type, x), .y = some, .rows = 2, .cols = 7, .first_row = 3});
    EXPECT_EQ(Bench::Read(some, 14), Vec(x.begin() + 21, x.end()));
    const Buffer all = bench_.Elements(type, Vec(35, 1));
    bench_.Run(GatherRows{.x = some, .y = all, .rows = 2, .cols = 7, .first_row = 1});
    Vec expected(35, 1);
    std::copy(x.begin() + 21, x.end(), expected.begin() + 7);
    EXPECT_EQ(Bench::Read(all, 35), expected);
  }
}

TEST_P(ShardsTest, CopiesAreWhatTheyAreCopiesOf) {
  const Vec x = RandomVec(77, 1);
  const Parts copies = Make(DType::kF32, {77, 77});
  bench_.Run(Spread{.x = bench_.Floats(x), .copies = copies.tables, .n = 77});
  EXPECT_EQ(Bench::Read(copies.At(0), 77), x);
  EXPECT_EQ(Bench::Read(copies.At(1), 77), x);
}

TEST_P(ShardsTest, LookUpsTakeTheRowOfWhoHasIt) {
  constexpr int64_t kWidth = 37, kPlaces = 50, kVocab = 11;
  Vec table = RandomVec(kVocab * kWidth, 1);
  for (int64_t row = 0; row < kVocab; ++row) table[row * kWidth] = -0.0;
  const std::vector<int32_t> ids = RandomIds(kPlaces, kVocab, 2);
  // Rows [0, 3) are someone else's.
  Parts shards = Make(DType::kF32, {5 * kWidth, 3 * kWidth});
  Parts gradients = Make(DType::kF32, {5 * kWidth, 3 * kWidth});
  for (Parts* parts : {&shards, &gradients}) {
    parts->tables.list.rows[0] = 5;
    parts->tables.list.rows[1] = 3;
  }
  const auto rows = [&](int64_t first, int64_t count) {
    return Vec(table.begin() + first * kWidth, table.begin() + (first + count) * kWidth);
  };
  Put(bench_.Floats(rows(3, 5)), shards.At(0), 5 * kWidth);
  Put(bench_.Floats(rows(8, 3)), shards.At(1), 3 * kWidth);
  const Buffer y = bench_.Floats(Vec(kPlaces * kWidth, 1000));
  bench_.Run(EmbeddingShardsForward{.ids = bench_.Ints(ids),
                                    .y = y,
                                    .tables = shards.tables,
                                    .places = kPlaces,
                                    .width = kWidth,
                                    .first = 3,
                                    .vocab = kVocab});
  Vec expected, sums(kVocab * kWidth, 0);
  const Vec dy = RandomVec(kPlaces * kWidth, 3);
  for (int64_t i = 0; i < kPlaces; ++i) {
    const Vec row = ids[i] < 3 ? Vec(kWidth, 0) : rows(ids[i], 1);
    expected.insert(expected.end(), row.begin(), row.end());
    for (int64_t c = 0; c < kWidth; ++c) {
      float sum = static_cast<float>(sums[ids[i] * kWidth + c]);
      sum += static_cast<float>(dy[i * kWidth + c]);
      sums[ids[i] * kWidth + c] = sum;
    }
  }
  const Vec found = Bench::Read(y, kPlaces * kWidth);
  EXPECT_EQ(found, expected);
  const auto negative_zero = [](double v) { return v == 0 && std::signbit(v); };
  EXPECT_EQ(std::count_if(found.begin(), found.end(), negative_zero), 0);
  Put(bench_.Floats(Vec(5 * kWidth, 0)), gradients.At(0), 5 * kWidth);
  Put(bench_.Floats(Vec(3 * kWidth, 0)), gradients.At(1), 3 * kWidth);
  bench_.Run(EmbeddingShardsBackward{.dy = bench_.Floats(dy),
                                     .ids = bench_.Ints(ids),
                                     .gradients = gradients.tables,
                                     .places = kPlaces,
                                     .width = kWidth,
                                     .first = 3,
                                     .vocab = kVocab});
  EXPECT_EQ(Bench::Read(gradients.At(0), 5 * kWidth),
            Vec(sums.begin() + 3 * kWidth, sums.begin() + 8 * kWidth));
  EXPECT_EQ(Bench::Read(gradients.At(1), 3 * kWidth), Vec(sums.begin() + 8 * kWidth, sums.end()));
}

TEST_P(ShardsTest, CrossEntropyOverShardsAgreesWithReference) {
  // Of up to 1024, 8192 and more classes a warp, a block, a wide block of a GPU has a row.
  for (const int64_t classes : {3, 17, 1000, 5001, 27001}) {
    const int64_t rows = classes > 1000 ? 5 : 41;
    for (const int64_t shards : {1, 2, 3}) {
      Vec logits = RandomVec(rows * classes, 1, 4);
      // Where many are the largest, the first counts.
      std::fill(logits.begin() + 2 * classes, logits.begin() + 4 * classes, 0.25);
      std::vector<int32_t> targets = RandomIds(rows, static_cast<int32_t>(classes), 2);
      targets[1] = -1, targets[2] = 0, targets[3] = 1;
      const auto expected = reference::CrossEntropy(logits, targets, classes, 0.125, 0.1f, 0.01f);
      const Parts statistics =
          Make(DType::kF32, std::vector<int64_t>(shards, rows * kClassStatistics));
      const Buffer norms = bench_.Floats(rows * kRowNorm), losses = bench_.Floats(rows),
                   z_losses = bench_.Floats(rows), correct = bench_.Floats(rows);
      const auto columns = [&](const Vec& all, int64_t s) {
        Vec some;
        for (int64_t i = 0; i < rows * classes; ++i) {
          const int64_t c = i % classes;
          if (c >= classes * s / shards && c < classes * (s + 1) / shards) some.push_back(all[i]);
        }
        return some;
      };
      std::vector<Buffer> of_shard;
      for (int64_t s = 0; s < shards; ++s) {
        of_shard.push_back(bench_.Floats(columns(logits, s)));
        bench_.Run(CrossEntropyShard{.logits = of_shard[s],
                                     .targets = bench_.Ints(targets),
                                     .statistics = statistics.At(s),
                                     .rows = rows,
                                     .classes = classes * (s + 1) / shards - classes * s / shards,
                                     .first = classes * s / shards,
                                     .with_mean = true,
                                     .with_first_largest = true});
      }
      bench_.Run(CrossEntropyOfShards{.statistics = statistics.tables,
                                      .targets = bench_.Ints(targets),
                                      .losses = losses,
                                      .z_losses = z_losses,
                                      .correct = correct,
                                      .norms = norms,
                                      .rows = rows,
                                      .classes = classes,
                                      .smoothing = 0.1f,
                                      .z_loss = 0.01f});
      ExpectClose(losses, expected.losses, 1e-6, "losses");
      ExpectClose(z_losses, expected.z_losses, 3e-6, "z losses");
      ExpectClose(correct, expected.correct, 0, "correct");
      for (int64_t s = 0; s < shards; ++s) {
        const Vec gradient = columns(expected.dlogits, s);
        bench_.Run(
            CrossEntropyShardGradient{.logits = of_shard[s],
                                      .targets = bench_.Ints(targets),
                                      .norms = norms,
                                      .dlogits = of_shard[s],
                                      .rows = rows,
                                      .classes = static_cast<int64_t>(gradient.size()) / rows,
                                      .first = classes * s / shards,
                                      .all_classes = classes,
                                      .scale = 0.125f,
                                      .smoothing = 0.1f,
                                      .z_loss = 0.01f});
        ExpectClose(of_shard[s], gradient, classes > 10000 ? 1e-5 : 5e-6, "dlogits");
      }
    }
  }
}

TEST_P(ShardsTest, SumsOverCutRowsAreTheSumsOfTheCutsInTheTree) {
  for (const int64_t rows : {2, 70, 600}) {
    for (const int64_t cuts : {2, 3, 5}) {
      const int64_t cols = 37;
      const Vec x = RandomVec(rows * cols, 1), dy = RandomVec(rows * cols, 2);
      const Vec gamma = RandomVec(cols, 3), before = RandomVec(cols, 4);
      std::vector<Vec> sums, dgammas, dbetas;
      Vec all_dx;
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const int64_t first = rows * cut / cuts, n = rows * (cut + 1) / cuts - first;
        if (n == 0) continue;
        const auto part = [&](const Vec& all) {
          return bench_.Floats(Vec(all.begin() + first * cols, all.begin() + (first + n) * cols));
        };
        const Buffer sum = bench_.Floats(cols), dgamma = bench_.Floats(cols),
                     dbeta = bench_.Floats(cols), dx = bench_.Floats(n * cols);
        bench_.Run(ColumnSum{.x = part(x), .y = sum, .rows = n, .cols = cols});
        bench_.Run(LayerNormBackward{.dy = part(dy),
                                     .x = part(x),
                                     .gamma = bench_.Floats(gamma),
                                     .rstd = bench_.Floats(Vec(n, 1.5)),
                                     .dx = dx,
                                     .dgamma = dgamma,
                                     .dbeta = dbeta,
                                     .rows = n,
                                     .cols = cols});
        sums.push_back(Bench::Read(sum, cols));
        dgammas.push_back(Bench::Read(dgamma, cols));
        dbetas.push_back(Bench::Read(dbeta, cols));
        const Vec some = Bench::Read(dx, n * cols);
        all_dx.insert(all_dx.end(), some.begin(), some.end());
      }
      const auto added = [&](const std::vector<Vec>& parts) {
        Vec total;
        for (int64_t c = 0; c < cols; ++c) {
          std::vector<float> leaves;
          for (const Vec& part : parts) leaves.push_back(static_cast<float>(part[c]));
          total.push_back(static_cast<float>(before[c]) + Tree(leaves, 0, leaves.size()));
        }
        return total;
      };
      const Buffer y = bench_.Floats(before), dgamma = bench_.Floats(before),
                   dbeta = bench_.Floats(before), dx = bench_.Floats(rows * cols);
      bench_.Run(ColumnSum{.x = bench_.Floats(x),
                           .y = y,
                           .rows = rows,
                           .cols = cols,
                           .accumulate = true,
                           .cuts = cuts});
      bench_.Run(LayerNormBackward{.dy = bench_.Floats(dy),
                                   .x = bench_.Floats(x),
                                   .gamma = bench_.Floats(gamma),
                                   .rstd = bench_.Floats(Vec(rows, 1.5)),
                                   .dx = dx,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .rows = rows,
                                   .cols = cols,
                                   .accumulate_params = true,
                                   .cuts = cuts});
      EXPECT_EQ(Bench::Read(y, cols), added(sums));
      EXPECT_EQ(Bench::Read(dgamma, cols), added(dgammas));
      EXPECT_EQ(Bench::Read(dbeta, cols), added(dbetas));
      EXPECT_EQ(Bench::Read(dx, rows * cols), all_dx);
    }
  }
}

TEST_P(ShardsTest, DropoutOfSomeColumnsDropsWhatThatOfAllDrops) {
  StepState state{.seed = 3, .step = 4, .first_sample = 5};
  constexpr int64_t kSamples = 3, kRowsEach = 7;
  for (const int64_t all_cols : {13, 600, 4096}) {
    const int64_t n = kSamples * kRowsEach * all_cols;
    const Vec x = RandomVec(n, 1);
    const Buffer whole = bench_.Floats(n);
    bench_.Run(Dropout{bench_.Floats(x), whole, {&state}, 2, kSamples, kRowsEach * all_cols, 0.3f});
    for (const auto& columns_of_shard : std::vector<std::pair<int64_t, int64_t>>{
             {0, all_cols}, {1, all_cols - 1}, {all_cols / 3, all_cols / 2}}) {
      const int64_t first = columns_of_shard.first, cols = columns_of_shard.second;
      const auto columns = [&](const Vec& all) {
        Vec some;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t c = i % all_cols;
          if (c >= first && c < first + cols) some.push_back(all[i]);
        }
        return some;
      };
      const Buffer y = bench_.Floats(columns(x));
      bench_.Run(Dropout{.x = y,
                         .y = y,
                         .state = {&state},
                         .stream = 2,
                         .samples = kSamples,
                         .per_sample = kRowsEach * cols,
                         .p = 0.3f,
                         .cols = cols,
                         .first_col = first,
                         .all_cols = all_cols});
      const Vec kept = columns(Bench::Read(whole, n));
      EXPECT_EQ(Bench::Read(y, kSamples * kRowsEach * cols), kept);
      // Of these some rows, which begin in one sample and end in the next.
      const int64_t begin = kRowsEach - 1, rows = 3;
      const Vec in = columns(x);
      const Buffer part =
          bench_.Floats(Vec(in.begin() + begin * cols, in.begin() + (begin + rows) * cols));
      bench_.Run(Dropout{.x = part,
                         .y = part,
                         .state = {&state},
                         .stream = 2,
                         .samples = kSamples,
                         .per_sample = kRowsEach * cols,
                         .p = 0.3f,
                         .cols = cols,
                         .first_col = first,
                         .all_cols = all_cols,
                         .rows = rows,
                         .first_row = begin});
      EXPECT_EQ(Bench::Read(part, rows * cols),
                Vec(kept.begin() + begin * cols, kept.begin() + (begin + rows) * cols));
    }
  }
}

TRAINYARD_CPU_SUITE(ShardsTest);

}  // namespace
}  // namespace trainyard::kernels
