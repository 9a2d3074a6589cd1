#include "executor/plan/passes/residual_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/layout.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"
#include "tests/unit/plan/sums_apart.h"

namespace trainyard::plan {
namespace {

// Norms of sums, and sums of their own.
struct Found {
  int joined = 0, adds = 0;
  bool operator==(const Found&) const = default;
};
Found In(const std::vector<Op>& ops) {
  Found found;
  for (const auto& norm : OpsOf<LayerNormForward>(ops)) found.joined += norm.residual != kNone;
  found.adds = static_cast<int>(OpsOf<Add>(ops).size());
  return found;
}

std::vector<ModelCase> Transformers() {
  return {
      {"gpt", GptSpec(), TokenFacts(11)},          {"char gpt", CharGptSpec(), TokenFacts(65)},
      {"llama", LlamaSpec(), TokenFacts(11)},      {"bert", BertSpec(), DocumentFacts(40)},
      {"vit", VitSpec(), ImageFacts(8, 6, 3, 10)}, {"layers", TokenLayersSpec(), TokenFacts(40)}};
}

// In each precision, as it is, with dropout or adapters, in micro-batches and recomputing.
std::vector<ModelCase> Variants() {
  std::vector<ModelCase> cases = Transformers();
  cases.push_back({"mlp", MlpSpec(), ImageFacts(28, 28, 1, 10)});
  cases.push_back({"resnet", ResnetSpec(), ImageFacts(32, 32, 3, 10)});
  for (size_t i = 0, n = cases.size(); i < n; ++i) {
    ModelCase c = cases[i];
    c.spec.mutable_training()->set_batch_size(8);
    c.spec.mutable_training()->set_micro_batch_size(2);
    cases.push_back(c);
    c.spec.mutable_evaluation()->set_batch_size(32);
    cases.push_back(c);
  }
  ModelCase adapted = {"adapted llama", LlamaSpec(), TokenFacts(11)};
  adapted.spec.mutable_fine_tune()->mutable_lora()->set_rank(2);
  adapted.spec.mutable_fine_tune()->mutable_lora()->set_dropout(0.1);
  cases.push_back(adapted);
  ModelCase dropped = {"gpt with dropout", CharGptSpec(), TokenFacts(65)};
  dropped.spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  cases.push_back(dropped);
  for (size_t i = 0, n = cases.size(); i < n; ++i) {
    for (const auto compute : {v1::Precision::BF16, v1::Precision::FP16}) {
      cases.push_back(cases[i]);
      cases.back().spec.mutable_precision()->set_compute(compute);
    }
  }
  return cases;
}

std::string NameOf(const ModelCase& c) {
  return absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString(), " ",
                      c.spec.training().ShortDebugString());
}

TEST(ResidualNorm, TakesEverySumOfATransformerButTheLastOfAVit) {
  for (const ModelCase& c : Transformers()) {
    SCOPED_TRACE(c.name);
    const Plan plan = PlanOf(c.spec, c.facts);
    const Plan apart = SumsApart(plan);
    const int sums = static_cast<int>(OpsOf<Add>(apart.evaluate).size());
    const int left = c.spec.model().has_vit() ? 1 : c.spec.model().has_layers() ? sums : 0;
    ASSERT_GT(sums, 0);
    if (c.spec.model().has_layers()) continue;  // whatever the list says
    EXPECT_EQ(In(plan.micro), (Found{sums - left, left}));
    EXPECT_EQ(In(plan.evaluate), (Found{sums - left, left}));
    const auto& passes = plan.summary.passes();
    ASSERT_EQ(passes.size(), 2);
    EXPECT_EQ(passes[0].name(), "residual_norm");
    EXPECT_EQ(passes[0].ops_before() - passes[0].ops_after(), sums - left);
    EXPECT_EQ(passes[0].added_flops(), 0);
    EXPECT_LE(passes[0].bytes_after(), passes[0].bytes_before());
    EXPECT_EQ(passes[1].name(), "share_gradients");
  }
  const Plan resnet = PlanOf(ResnetSpec(), ImageFacts(32, 32, 3, 10));
  for (const v1::PassSummary& pass : resnet.summary.passes()) {
    EXPECT_NE(pass.name(), "residual_norm") << "has no such sum";
  }
}

TEST(ResidualNorm, OfAnInferencePlanIsThatOfItsEvaluation) {
  const v1::JobSpec spec = *ResolveSpec(LlamaSpec());
  const Plan plan = *BuildInferencePlan(spec, TokenFacts(11), 1);
  EXPECT_EQ(In(plan.evaluate).adds, 0);
  EXPECT_GT(In(plan.evaluate).joined, 0);
}

// What the same ops need with their sums apart.
struct Needs {
  int64_t activations = 0, arena = 0;
};
Needs NeedsOf(Plan plan) {
  std::vector<int64_t> offsets(plan.tensors.size());
  const auto packed = [&](const std::vector<Op>& ops, const std::vector<TensorId>& results) {
    return PackActivations(plan.tensors, ops, results, offsets);
  };
  std::vector<TensorId> scalars;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].kind == TensorKind::kScalar) scalars.push_back(static_cast<TensorId>(i));
  }
  Needs needs;
  needs.activations = std::max({packed(plan.micro, {}), packed(plan.end, {})});
  LayOut(scalars, plan);
  needs.arena = plan.arena_bytes;
  return needs;
}

TEST(ResidualNorm, NeedsNoMoreMemory) {
  int joined = 0, recomputed = 0;
  for (ModelCase& c : Variants()) {
    SCOPED_TRACE(NameOf(c));
    for (const bool recompute : {false, true}) {
      if (recompute) Recomputing(c.facts, c.spec);
      const Plan plan = PlanOf(c.spec, c.facts);
      const Plan apart = SumsApart(plan);
      EXPECT_LE(NeedsOf(plan).activations, NeedsOf(apart).activations);
      EXPECT_LE(plan.arena_bytes, NeedsOf(apart).arena);
      joined += In(plan.micro).joined;
      for (const auto& norm : OpsOf<LayerNormForward>(plan.micro)) {
        const std::string& name = plan.tensors[norm.y].name;
        recomputed += name.ends_with(" again") && norm.residual != kNone;
      }
    }
  }
  EXPECT_GT(joined, 300);
  EXPECT_GT(recomputed, 5) << "no repeated sum is in its norm";
}

// The ops of a small graph: two sums of which the second reads the first's, with a norm each.
class Stream : public ::testing::Test {
 protected:
  TensorId Tensor(const char* name, ElementType type = ElementType::kF32,
                  TensorKind kind = TensorKind::kActivation) {
    tensors_.push_back({.name = name, .type = type, .dims = {4, 32}, .kind = kind});
    return static_cast<TensorId>(tensors_.size()) - 1;
  }
  // x and branch come from somewhere, sum and norm go somewhere.
  std::vector<Op> Ops(TensorId x, TensorId branch, TensorId sum, TensorId y) {
    const TensorId gamma = Tensor("gamma", kF32, TensorKind::kParameter);
    const TensorId rstd = Tensor("rstd");
    return {
        Zero{.x = x, .n = 128}, Zero{.x = branch, .n = 128},
        Add{.a = x, .b = branch, .y = sum, .n = 128},
        LayerNormForward{.x = sum, .gamma = gamma, .y = y, .rstd = rstd, .rows = 4, .cols = 32}};
  }
  size_t Join(ResidualNorms which, std::vector<Op>& ops, const std::vector<TensorId>& results) {
    const JoinedNorms joined = JoinResidualNorms(which, tensors_, results, 3, ops);
    EXPECT_EQ(joined.in_forward, joined.count);
    return joined.count;
  }
  size_t Count(ResidualNorms which, std::vector<Op> ops, const std::vector<TensorId>& results) {
    return Join(which, ops, results);
  }

  std::vector<plan::Tensor> tensors_;
};

constexpr auto kAll = ResidualNorms::kAll, kWithoutMore = ResidualNorms::kWithoutMore;

TEST_F(Stream, JoinsASumWithTheNormRightBehindItAlone) {
  const TensorId x = Tensor("x"), branch = Tensor("branch"), sum = Tensor("sum"), y = Tensor("y");
  const std::vector<Op> ops = Ops(x, branch, sum, y);
  std::vector<Op> joined = ops;
  ASSERT_EQ(Join(kAll, joined, {sum, y}), 1u);
  ASSERT_EQ(joined.size(), 3u);
  const auto& norm = std::get<LayerNormForward>(joined[2]);
  EXPECT_EQ(norm.x, x);
  EXPECT_EQ(norm.residual, branch);
  EXPECT_EQ(norm.sum, sum);
  EXPECT_EQ(norm.y, y);
  EXPECT_EQ(In(SumsApart(joined)), In(ops));
  EXPECT_EQ(Count(kAll, joined, {sum, y}), 0u) << "what is joined stays as it is";

  std::vector<Op> between = ops;
  between.insert(between.begin() + 3, Zero{.x = Tensor("other"), .n = 128});
  EXPECT_EQ(Count(kAll, between, {sum, y}), 0u);
  std::vector<Op> another = ops;
  std::get<LayerNormForward>(another[3]).x = x;
  EXPECT_EQ(Count(kAll, another, {sum, y}), 0u);
  std::vector<Op> last = ops;
  last.pop_back();
  EXPECT_EQ(Count(kAll, last, {sum}), 0u);
}

TEST_F(Stream, JoinsOnlyTypesThatTheKernelsTake) {
  const auto count = [&](ElementType branch, ElementType y) {
    const TensorId sum = Tensor("sum"), result = Tensor("y", y);
    return Count(kAll, Ops(Tensor("x"), Tensor("branch", branch), sum, result), {sum, result});
  };
  EXPECT_EQ(count(kF32, kBF16), 1u);
  EXPECT_EQ(count(kBF16, kF32), 1u);
  EXPECT_EQ(count(kBF16, kBF16), 1u);
  EXPECT_EQ(count(kBF16, ElementType::kF16), 0u);
  const TensorId narrow = Tensor("x", kBF16), y = Tensor("y");
  EXPECT_EQ(Count(kAll, Ops(narrow, Tensor("branch", kBF16), Tensor("sum", kBF16), y), {y}), 0u);
}

// What the sum reads last must go to what is written, one for one.
TEST_F(Stream, WithoutMoreJoinsWhereWhatEndsIsWrittenOver) {
  struct Case {
    ElementType branch, y;
    bool x_lives, branch_lives;
    size_t expected;
  };
  for (const Case& c : {Case{kF32, kF32, false, false, 1}, Case{kF32, kF32, true, false, 1},
                        Case{kF32, kBF16, true, false, 1}, Case{kF32, kBF16, false, false, 0},
                        Case{kBF16, kBF16, true, false, 1}, Case{kBF16, kBF16, false, false, 1},
                        Case{kBF16, kF32, true, false, 0}, Case{kBF16, kF32, false, false, 0},
                        Case{kBF16, kF32, false, true, 1}, Case{kBF16, kF32, true, true, 1}}) {
    const TensorId x = Tensor("x"), branch = Tensor("branch", c.branch), sum = Tensor("sum"),
                   y = Tensor("y", c.y);
    std::vector<TensorId> results = {sum, y};
    if (c.x_lives) results.push_back(x);
    if (c.branch_lives) results.push_back(branch);
    const std::vector<Op> ops = Ops(x, branch, sum, y);
    EXPECT_EQ(Count(kAll, ops, results), 1u);
    EXPECT_EQ(Count(kWithoutMore, ops, results), c.expected)
        << static_cast<int>(c.branch) << static_cast<int>(c.y) << c.x_lives << c.branch_lives;
    // What the packing makes of it: fewer bytes or as many, where it says so.
    std::vector<Op> joined = ops;
    Join(kAll, joined, results);
    std::vector<int64_t> offsets(tensors_.size());
    const int64_t before = PackActivations(tensors_, ops, results, offsets);
    const int64_t after = PackActivations(tensors_, joined, results, offsets);
    EXPECT_TRUE(after <= before || c.expected == 0) << after << " " << before;
    EXPECT_NE(offsets[sum], offsets[y]) << "both took the memory of one operand";
  }
}

}  // namespace
}  // namespace trainyard::plan
