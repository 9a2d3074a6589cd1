#include "tests/reference/attention.h"

#include "tests/unit/kernels/cpu_fixture.h"

namespace trainyard::kernels {
namespace {

using reference::AttentionShape;

class AttentionTest : public CpuTest {
 protected:
  AttentionForward Forward(const AttentionShape& s, const Vec& qkv) {
    return {.qkv = bench_.Floats(qkv),
            .y = bench_.Floats(s.y_size()),
            .lse = bench_.Floats(s.lse_size()),
            .batch = s.batch,
            .time = s.time,
            .heads = s.heads,
            .kv_heads = s.kv_heads(),
            .head_dim = s.head_dim,
            .scale = static_cast<float>(s.scale),
            .causal = s.causal,
            .lengths = Lengths(s)};
  }

  Buffer Lengths(const AttentionShape& s) {
    return s.lengths.empty() ? Buffer() : bench_.Ints(s.lengths);
  }
};

std::vector<AttentionShape> Shapes() {
  std::vector<AttentionShape> shapes;
  for (const bool causal : {true, false}) {
    for (const auto& [time, head_dim] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 17}, {17, 3}, {65, 32}, {64, 32}, {33, 64}, {130, 20}}) {
      shapes.push_back({.batch = 2,
                        .time = time,
                        .heads = 3,
                        .head_dim = head_dim,
                        .scale = 0.25,
                        .causal = causal});
    }
  }
  for (const int64_t group : {2, 4}) {
    shapes.push_back(
        {.batch = 2, .time = 35, .heads = 4, .head_dim = 20, .scale = 0.25, .group = group});
  }
  for (const bool causal : {true, false}) {
    shapes.push_back({.batch = 4,
                      .time = 70,
                      .heads = 2,
                      .head_dim = 20,
                      .scale = 0.25,
                      .causal = causal,
                      .group = 2,
                      .lengths = {70, 1, 33, 64}});
  }
  return shapes;
}

TEST_P(AttentionTest, ForwardAgreesWithReference) {
  for (const AttentionShape& s : Shapes()) {
    const Vec qkv = RandomVec(s.qkv_size(), 1);
    const AttentionForward op = Forward(s, qkv);
    bench_.Run(op);
    const auto expected = reference::Attention(qkv, s);
    ExpectClose(op.y, expected.y, 5e-6, "y");
    ExpectClose(op.lse, expected.lse, 2e-6, "lse");
  }
}

TEST_P(AttentionTest, GradientAgreesWithReference) {
  for (const AttentionShape& s : Shapes()) {
    const Vec qkv = RandomVec(s.qkv_size(), 1), dy = RandomVec(s.y_size(), 2);
    const auto forward = reference::Attention(qkv, s);
    const Buffer dqkv = bench_.Floats(s.qkv_size());
    bench_.Run(AttentionBackward{.dy = bench_.Floats(dy),
                                 .qkv = bench_.Floats(qkv),
                                 .y = bench_.Floats(forward.y),
                                 .lse = bench_.Floats(forward.lse),
                                 .dqkv = dqkv,
                                 .batch = s.batch,
                                 .time = s.time,
                                 .heads = s.heads,
                                 .kv_heads = s.kv_heads(),
                                 .head_dim = s.head_dim,
                                 .scale = static_cast<float>(s.scale),
                                 .causal = s.causal,
                                 .lengths = Lengths(s)});
    // A single key has gradients of zero, of which rounding leaves a little.
    const double tolerance = s.lengths.empty() ? 1e-5 : 2e-5;
    ExpectClose(dqkv, reference::AttentionBackward(dy, qkv, s), tolerance, "dqkv");
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const AttentionShape s{.batch = 1, .time = 33, .heads = 1, .head_dim = 8, .scale = 1};
  const Vec qkv = RandomVec(s.qkv_size(), 1, 20);
  const AttentionForward op = Forward(s, qkv);
  bench_.Run(op);
  const auto expected = reference::Attention(qkv, s);
  ExpectClose(op.y, expected.y, 1e-3, "y");
  ExpectClose(op.lse, expected.lse, 1e-5, "lse");
}

// Position t may not look ahead: what comes later changes nothing before it.
TEST_P(AttentionTest, CausalOutputIgnoresTheFuture) {
  const AttentionShape s{.batch = 1, .time = 40, .heads = 2, .head_dim = 16, .scale = 0.25};
  Vec qkv = RandomVec(s.qkv_size(), 1);
  const AttentionForward first = Forward(s, qkv);
  bench_.Run(first);
  const int64_t row = 3 * s.heads * s.head_dim;
  for (int64_t i = 25 * row; i < s.qkv_size(); ++i) qkv[i] = 1e4;
  const AttentionForward second = Forward(s, qkv);
  bench_.Run(second);
  const int64_t seen = 25 * s.heads * s.head_dim;
  EXPECT_EQ(Bench::Read(first.y, seen), Bench::Read(second.y, seen));
}

// Padding may hold anything that is finite: it reaches no position and gets no gradient as a key.
TEST_P(AttentionTest, PaddingIsNotSeen) {
  const AttentionShape s{.batch = 2,
                         .time = 40,
                         .heads = 2,
                         .head_dim = 16,
                         .scale = 0.25,
                         .causal = false,
                         .lengths = {25, 40}};
  Vec qkv = RandomVec(s.qkv_size(), 1);
  const AttentionForward first = Forward(s, qkv);
  bench_.Run(first);
  const int64_t row = 3 * s.heads * s.head_dim, width = s.heads * s.head_dim;
  for (int64_t t = 25; t < s.time; ++t) {
    for (int64_t i = 0; i < row; ++i) qkv[t * row + i] = 1e4;
  }
  const AttentionForward second = Forward(s, qkv);
  bench_.Run(second);
  EXPECT_EQ(Bench::Read(first.y, 25 * width), Bench::Read(second.y, 25 * width));

  const Buffer dqkv = bench_.Floats(s.qkv_size());
  bench_.Run(AttentionBackward{.dy = bench_.Floats(RandomVec(s.y_size(), 2)),
                               .qkv = second.qkv,
                               .y = second.y,
                               .lse = second.lse,
                               .dqkv = dqkv,
                               .batch = s.batch,
                               .time = s.time,
                               .heads = s.heads,
                               .kv_heads = s.heads,
                               .head_dim = s.head_dim,
                               .scale = 0.25f,
                               .causal = false,
                               .lengths = second.lengths});
  const Vec gradient = Bench::Read(dqkv, s.qkv_size());
  for (int64_t t = 25; t < s.time; ++t) {
    for (int64_t i = width; i < row; ++i) ASSERT_EQ(gradient[t * row + i], 0) << t << " " << i;
  }
}

TRAINYARD_CPU_SUITE(AttentionTest);

}  // namespace
}  // namespace trainyard::kernels
