#include "tests/reference/recommender.h"

#include "kernels/step_state.h"
#include "tests/reference/optimizer.h"
#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

class RecommenderTest : public CpuTest {};

// Tables in one buffer, with a gap of `kGap` floats after each, as the padding of an arena.
constexpr int64_t kGap = 5;

TableList ListOf(const std::vector<int64_t>& rows, int64_t width) {
  TableList list{.count = static_cast<int64_t>(rows.size())};
  int64_t at = 0;
  for (size_t t = 0; t < rows.size(); ++t) {
    list.start[t] = at;
    list.rows[t] = rows[t];
    at += rows[t] * width + kGap;
  }
  return list;
}

std::vector<Vec> RandomTables(const std::vector<int64_t>& rows, int64_t width, int seed) {
  std::vector<Vec> tables;
  for (const int64_t n : rows) tables.push_back(RandomVec(n * width, seed++));
  return tables;
}

Vec Packed(const std::vector<Vec>& tables) {
  Vec all;
  for (const Vec& table : tables) {
    all.insert(all.end(), table.begin(), table.end());
    all.insert(all.end(), kGap, 7.0);  // stays as it is
  }
  return all;
}

// [samples, tables]: each in its table, few rows so that many repeat.
std::vector<int32_t> RandomRows(int64_t samples, const std::vector<int64_t>& rows, int seed) {
  std::vector<int32_t> ids(samples * rows.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    const auto column =
        RandomIds(samples, static_cast<int32_t>(rows[t]), seed + static_cast<int>(t));
    for (int64_t s = 0; s < samples; ++s) ids[s * rows.size() + t] = column[s];
  }
  return ids;
}

const std::vector<int64_t> kRows = {11, 1, 300};

TEST_P(RecommenderTest, TablesAgreeWithReference) {
  for (const int64_t width : {1, 3, 16, 65}) {
    for (const int64_t batch : {1, 3, 130}) {
      const std::vector<Vec> tables = RandomTables(kRows, width, 1);
      const std::vector<int32_t> ids = RandomRows(batch, kRows, 2);
      const Buffer y = bench_.Floats(batch * 3 * width);
      bench_.Run(
          EmbeddingTablesForward{.ids = bench_.Ints(ids),
                                 .y = y,
                                 .tables = {bench_.Floats(Packed(tables)), ListOf(kRows, width)},
                                 .batch = batch,
                                 .width = width});
      ExpectClose(y, reference::EmbeddingTables(ids, tables, batch, width), 0, "y");
    }
  }
}

TEST_P(RecommenderTest, GradientOfTablesIsAddedToWhatIsThere) {
  for (const int64_t width : {1, 3, 16, 65}) {
    for (const int64_t batch : {1, 3, 130, 1100}) {
      const std::vector<Vec> before = RandomTables(kRows, width, 1);
      const std::vector<int32_t> ids = RandomRows(batch, kRows, 2);
      const Vec dy = RandomVec(batch * 3 * width, 3);
      const Buffer gradients = bench_.Floats(Packed(before));
      bench_.Run(EmbeddingTablesBackward{.dy = bench_.Floats(dy),
                                         .ids = bench_.Ints(ids),
                                         .gradients = {gradients, ListOf(kRows, width)},
                                         .batch = batch,
                                         .width = width});
      std::vector<Vec> expected = reference::EmbeddingTablesBackward(ids, dy, kRows, batch, width);
      for (size_t t = 0; t < expected.size(); ++t) expected[t] = Plus(expected[t], before[t]);
      ExpectClose(gradients, Packed(expected), 5e-6, "gradients");
    }
  }
}

TEST_P(RecommenderTest, RowsAreKeptWhereTheirSamplesLieInTheStep) {
  constexpr int64_t kBatch = 4, kSamples = 12, kCount = 3, kWidth = 5;
  const std::vector<int32_t> ids = RandomRows(kBatch, kRows, 1), before(kSamples * kCount, -7);
  const Vec dy = RandomVec(kBatch * kCount * kWidth, 2);
  Vec expected(kSamples * kCount * kWidth, 9.0);
  const Buffer kept_dy = bench_.Floats(expected), kept_ids = bench_.Ints(before);
  // The third rank of a global batch: its 12 samples begin at 24.
  StepState state{.first_sample = 24 + 8};
  bench_.Run(KeepRows{.dy = bench_.Floats(dy),
                      .ids = bench_.Ints(ids),
                      .kept_dy = kept_dy,
                      .kept_ids = kept_ids,
                      .state = {&state},
                      .samples = kSamples,
                      .batch = kBatch,
                      .count = kCount,
                      .width = kWidth});
  std::copy(dy.begin(), dy.end(), expected.begin() + 8 * kCount * kWidth);
  ExpectClose(kept_dy, expected, 0, "kept_dy");
  for (int64_t i = 0; i < kSamples * kCount; ++i) {
    EXPECT_EQ(kept_ids.As<int32_t>()[i], i < 8 * kCount ? -7 : ids[i - 8 * kCount]);
  }
}

TEST_P(RecommenderTest, MergedRowsAgreeWithReference) {
  for (const int64_t width : {1, 16, 37}) {
    for (const int64_t samples : {1, 3, 130, 2100}) {
      std::vector<int32_t> ids = RandomRows(samples, kRows, 2);
      Vec grad;  // such that sums are exact
      for (const int32_t v : RandomIds(samples * 3 * width, 1000, 3)) grad.push_back(v / 8.0 - 60);
      const Buffer merged_ids = bench_.Ints(ids), merged = bench_.Floats(grad);
      bench_.Run(MergeRows{merged, merged_ids, samples, 3, width});
      reference::MergeRows(ids, grad, samples, 3, width);
      ExpectClose(merged, grad, 0, "grad");
      for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(merged_ids.As<int32_t>()[i], ids[i]) << i;
    }
  }
}

TEST_P(RecommenderTest, RowsOfLogicalRanksAreAddedUpByTheirTree) {
  constexpr int64_t kWidth = 3, kOfRank = 7;
  for (const int64_t logical_ranks : {1, 2, 3, 5, 6, 8, 13, 64, 100}) {
    const int64_t samples = logical_ranks * kOfRank;
    // Of the first table every rank has many, of the last few have the same.
    std::vector<int32_t> ids = RandomRows(samples, kRows, static_cast<int>(logical_ranks));
    std::vector<float> grad;
    for (const double v : RandomVec(samples * 3 * kWidth, 3)) grad.push_back(static_cast<float>(v));
    const Buffer merged_ids = bench_.Ints(ids);
    const Buffer merged = bench_.Floats(Vec(grad.begin(), grad.end()));
    bench_.Run(MergeRows{merged, merged_ids, samples, 3, kWidth, logical_ranks});
    reference::MergeRowsByTree(ids, grad, samples, 3, kWidth, logical_ranks);
    ExpectClose(merged, Vec(grad.begin(), grad.end()), 0, "grad");
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(merged_ids.As<int32_t>()[i], ids[i]) << i;
  }
}

// Rows that collide in any hash of the low bits, and the largest ids there are.
TEST_P(RecommenderTest, RowsFarApartAreMergedToo) {
  std::vector<int32_t> ids = {0, 1 << 30, 0, 2147483647, 1 << 20, 1 << 30, 1 << 30, 2147483647};
  Vec grad = {1, 2, 3, 4, 5, 6, 7, 8};
  const Buffer merged_ids = bench_.Ints(ids), merged = bench_.Floats(grad);
  bench_.Run(MergeRows{merged, merged_ids, 8, 1, 1});
  EXPECT_EQ(Bench::Read(merged, 8), (Vec{4, 15, 0, 12, 5, 0, 0, 0}));
  EXPECT_EQ(std::vector<int32_t>(merged_ids.As<int32_t>(), merged_ids.As<int32_t>() + 8),
            (std::vector<int32_t>{0, 1 << 30, -1, 2147483647, 1 << 20, -1, -1, -1}));
}

// One step on rows against a sweep of whole tables with the same gradient.
TEST_P(RecommenderTest, SgdOnRowsGivesTheBitsOfASweep) {
  for (const int64_t width : {1, 16, 37}) {
    for (const bool scaled : {false, true}) {
      constexpr int64_t kSamples = 130;
      const Vec before = Packed(RandomTables(kRows, width, 1));
      const auto n = static_cast<int64_t>(before.size());
      const Buffer ids = bench_.Ints(RandomRows(kSamples, kRows, 2));
      const Buffer grad = bench_.Floats(RandomVec(kSamples * 3 * width, 3));
      const Buffer scale = scaled ? bench_.Floats(Vec{0.3}) : Buffer();
      const Buffer dense = bench_.Floats(Vec(n, 0.0));
      const Buffer rows = bench_.Floats(before), swept = bench_.Floats(before);
      StepState state{.step = 3, .learning_rate = 0.1f};
      const TableList tables = ListOf(kRows, width);
      bench_.Run(MergeRows{grad, ids, kSamples, 3, width});
      for (int64_t p = 0; p < kSamples * 3; ++p) {
        const int32_t id = ids.As<int32_t>()[p];
        for (int64_t c = 0; c < width && id >= 0; ++c) {
          dense.As<float>()[tables.start[p % 3] + id * width + c] = grad.As<float>()[p * width + c];
        }
      }
      bench_.Run(SgdRows{.grad = grad,
                         .ids = ids,
                         .grad_scale = scale,
                         .state = {&state},
                         .tables = {rows, tables},
                         .samples = kSamples,
                         .width = width});
      bench_.Run(
          SgdStep{.w = swept, .grad = dense, .grad_scale = scale, .state = {&state}, .n = n});
      EXPECT_EQ(Bench::Read(rows, n), Bench::Read(swept, n));
      EXPECT_NE(Bench::Read(rows, n), before);
    }
  }
}

TEST_P(RecommenderTest, AdamWOnRowsFollowsReferenceAndLeavesOthersAlone) {
  constexpr int64_t kSamples = 5, kWidth = 16;
  const std::vector<int64_t> one = {20};
  const reference::AdamWRates rates{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
  Vec w = RandomVec(20 * kWidth, 1), m(20 * kWidth, 0.0), v(20 * kWidth, 0.0);
  StepState state{.learning_rate = 3e-3f};
  const Buffer grad = bench_.Floats(kSamples * kWidth), ids = bench_.Ints({3, -1, 7, 0, 19});
  const TableList table = ListOf(one, kWidth);
  const AdamWRows op{.grad = grad,
                     .ids = ids,
                     .grad_scale = bench_.Floats(Vec{0.5}),
                     .state = {&state},
                     .tables = {bench_.Floats(w), table},
                     .m = {bench_.Floats(m), table},
                     .v = {bench_.Floats(v), table},
                     .samples = kSamples,
                     .width = kWidth,
                     .beta1 = 0.9f,
                     .beta2 = 0.99f,
                     .epsilon = 1e-8f,
                     .weight_decay = 0.1f};
  for (state.updates = 0; state.updates < 10; ++state.updates) {
    const Vec g = RandomVec(kSamples * kWidth, 100 + static_cast<int>(state.updates));
    for (size_t i = 0; i < g.size(); ++i) grad.As<float>()[i] = static_cast<float>(g[i]);
    bench_.Run(op);
    for (int64_t s = 0; s < kSamples; ++s) {
      const int32_t id = ids.As<int32_t>()[s];
      if (id < 0) continue;
      const auto row = [&](Vec& all) { return all.begin() + id * kWidth; };
      reference::AdamWState at{Vec(row(w), row(w) + kWidth), Vec(row(m), row(m) + kWidth),
                               Vec(row(v), row(v) + kWidth)};
      reference::AdamWStep(Vec(g.begin() + s * kWidth, g.begin() + (s + 1) * kWidth), 0.5, rates,
                           state.updates, at);
      std::copy(at.w.begin(), at.w.end(), row(w));
      std::copy(at.m.begin(), at.m.end(), row(m));
      std::copy(at.v.begin(), at.v.end(), row(v));
    }
  }
  ExpectClose(op.tables.first, w, 1e-5, "w");
  ExpectClose(op.m.first, m, 1e-5, "m");
  ExpectClose(op.v.first, v, 1e-5, "v");
}

TEST_P(RecommenderTest, InteractionAgreesWithReference) {
  for (const int64_t width : {1, 3, 16, 37}) {
    for (const int64_t count : {1, 2, 15, 16, 26, 33}) {
      for (const int64_t batch : {1, 3, 67}) {
        const reference::InteractionShape s{.batch = batch, .count = count, .width = width};
        const Vec x = RandomVec(batch * width, 1), e = RandomVec(batch * count * width, 2);
        const Vec dy = RandomVec(batch * s.out(), 3);
        const Buffer xs = bench_.Floats(x), es = bench_.Floats(e),
                     y = bench_.Floats(batch * s.out());
        const Buffer dx = bench_.Floats(batch * width), de = bench_.Floats(batch * count * width);
        bench_.Run(InteractionForward{xs, es, y, batch, count, width});
        ExpectClose(y, reference::Interaction(x, e, s), 3e-6, "y");
        bench_.Run(InteractionBackward{bench_.Floats(dy), xs, es, dx, de, batch, count, width});
        const auto g = reference::InteractionBackward(dy, x, e, s);
        ExpectClose(dx, g.dx, 3e-6, "dx");
        ExpectClose(de, g.de, 3e-6, "de");
        // Each alone.
        const Buffer dx_alone = bench_.Floats(batch * width),
                     de_alone = bench_.Floats(batch * count * width);
        bench_.Run(
            InteractionBackward{bench_.Floats(dy), xs, es, dx_alone, {}, batch, count, width});
        bench_.Run(
            InteractionBackward{bench_.Floats(dy), xs, es, {}, de_alone, batch, count, width});
        ExpectClose(dx_alone, g.dx, 3e-6, "dx alone");
        ExpectClose(de_alone, g.de, 3e-6, "de alone");
      }
    }
  }
}

TEST_P(RecommenderTest, BinaryCrossEntropyAgreesWithReference) {
  for (const int64_t rows : {1, 3, 17, 65, 20'001}) {
    const Vec logits = RandomVec(rows, 1, 8);
    std::vector<int32_t> targets = RandomIds(rows, 2, 2);
    if (rows > 1) targets[1] = -1;
    const auto expected = reference::BinaryCrossEntropy(logits, targets, 0.125);
    const Buffer losses = bench_.Floats(rows), correct = bench_.Floats(rows);
    const Buffer apart = bench_.Floats(rows), in_place = bench_.Floats(logits);
    BinaryCrossEntropy op{.logits = bench_.Floats(logits),
                          .targets = bench_.Ints(targets),
                          .losses = losses,
                          .correct = correct,
                          .dlogits = apart,
                          .rows = rows,
                          .scale = 0.125f};
    bench_.Run(op);
    for (int64_t r = 0; r < rows; ++r) {  // relative, however small the loss
      ASSERT_NEAR(losses.As<float>()[r], expected.losses[r], 2e-6 * expected.losses[r])
          << logits[r];
    }
    ExpectClose(correct, expected.correct, 0, "correct");
    ExpectClose(apart, expected.dlogits, 2e-6, "dlogits");
    op.logits = op.dlogits = in_place;
    op.correct = Buffer();
    bench_.Run(op);
    ExpectClose(in_place, expected.dlogits, 2e-6, "dlogits in place of logits");
  }
}

TEST_P(RecommenderTest, ExtremeLogitsGiveTheirLoss) {
  const Buffer losses = bench_.Floats(6), correct = bench_.Floats(6);
  bench_.Run(BinaryCrossEntropy{.logits = bench_.Floats({1e6, -1e6, -1e6, 3e38, 0, NAN}),
                                .targets = bench_.Ints({1, 0, 1, 0, 0, 1}),
                                .losses = losses,
                                .correct = correct,
                                .rows = 6});
  const Vec found = Bench::Read(losses, 6);
  EXPECT_EQ(Vec(found.begin(), found.begin() + 3), (Vec{0, 0, 1e6}));
  EXPECT_FLOAT_EQ(static_cast<float>(found[3]), 3e38f);
  EXPECT_TRUE(std::isnan(found[5]));
  EXPECT_EQ(Bench::Read(correct, 5), (Vec{1, 1, 0, 0, 1}));  // no evidence is no click
}

TEST_P(RecommenderTest, AnIdOutsideItsTableAborts) {
  if (GetParam().threads > 1) GTEST_SKIP() << "a child of fork has no threads of the pool";
  const EmbeddingTablesForward op{
      .ids = bench_.Ints({0, 0, 10, 0, 1, 0}),
      .y = bench_.Floats(6 * 2),
      .tables = {bench_.Floats(Packed(RandomTables(kRows, 2, 1))), ListOf(kRows, 2)},
      .batch = 2,
      .width = 2};
  EXPECT_DEATH(bench_.Run(op), "id 1 of table 1 in sample 1; it has 1");
}

TRAINYARD_CPU_SUITE(RecommenderTest);

}  // namespace
}  // namespace trainyard::kernels
