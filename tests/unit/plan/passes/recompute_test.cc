#include "executor/plan/passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "absl/strings/strip.h"
#include "executor/plan/assembly.h"
#include "executor/plan/build.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"
#include "tests/unit/plan/sums_apart.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;

void AddModel(const char* name, v1::JobSpec spec, const DataFacts& facts,
              std::vector<ModelCase>& cases) {
  spec.mutable_training()->set_batch_size(8);
  cases.push_back({name, std::move(spec), facts});
}

// Models of the sizes that people train, of every family with more than a few layers.
std::vector<ModelCase> DeepModels() {
  std::vector<ModelCase> cases;
  AddModel("gpt", Gpt2Spec(), TokenFacts(50257), cases);
  v1::JobSpec spec = CharGptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  AddModel("char gpt with dropout", spec, TokenFacts(65), cases);
  v1::Llama& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(8);
  llama.set_heads(8);
  llama.set_kv_heads(2);
  llama.set_width(256);
  llama.set_context(128);
  AddModel("llama", spec, TokenFacts(1000), cases);
  spec = BertSpec();
  spec.mutable_model()->mutable_bert()->set_layers(6);
  spec.mutable_model()->mutable_bert()->set_heads(4);
  spec.mutable_model()->mutable_bert()->set_width(128);
  spec.mutable_model()->mutable_bert()->set_mlp_width(512);
  spec.mutable_model()->mutable_bert()->set_context(64);
  spec.mutable_model()->mutable_bert()->set_dropout(0.1);
  AddModel("bert", spec, DocumentFacts(500), cases);
  spec = VitSpec();
  spec.mutable_model()->mutable_vit()->set_layers(6);
  spec.mutable_model()->mutable_vit()->set_width(64);
  spec.mutable_model()->mutable_vit()->set_mlp_width(256);
  AddModel("vit", spec, ImageFacts(16, 16, 3, 10), cases);
  spec = ResnetSpec();
  spec.mutable_model()->mutable_resnet()->set_width(64);
  AddModel("resnet 18", spec, ImageFacts(32, 32, 3, 10), cases);
  spec.mutable_model()->mutable_resnet()->set_depth(50);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
  AddModel("resnet 50", spec, ImageFacts(224, 224, 3, 10), cases);
  spec = MobilenetSpec();
  spec.mutable_model()->mutable_mobilenet()->set_dropout(0.2);
  AddModel("mobilenet", spec, ImageFacts(96, 96, 3, 10), cases);
  return cases;
}

// The same with few layers, where not much can be left out.
std::vector<ModelCase> AllModels() {
  std::vector<ModelCase> cases = DeepModels();
  AddModel("mlp", MlpSpec(), ImageFacts(28, 28, 1, 10), cases);
  AddModel("convnet", ConvnetSpec(), ImageFacts(28, 28, 1, 10), cases);
  AddModel("layers of images", ImageLayersSpec(), ImageFacts(12, 12, 3, 10), cases);
  AddModel("layers of tokens", TokenLayersSpec(), TokenFacts(40), cases);
  AddModel("dlrm", DlrmSpec(), ClickFacts(5, 4, 30), cases);
  return cases;
}

Plan WithShare(v1::JobSpec spec, const DataFacts& facts, double share) {
  spec.mutable_training()->mutable_recompute()->set_activation_share(share);
  return PlanOf(spec, facts);
}

// Half the activations for at most a third of the work more: what the acceptance of "1.35 times the
// time" rests on.
TEST(Recompute, HalvesActivationsForLittleMoreWork) {
  for (const ModelCase& c : DeepModels()) {
    SCOPED_TRACE(c.name);
    const Plan all = PlanOf(c.spec, c.facts);
    const Plan half = WithShare(c.spec, c.facts, 0.5);
    EXPECT_LE(2 * half.summary.activation_bytes(), all.summary.activation_bytes());
    EXPECT_LE(half.summary.bytes_per_slot(), all.summary.bytes_per_slot());
    const double more = half.summary.flops_per_step() / all.summary.flops_per_step();
    EXPECT_LE(more, 1.3);
    ASSERT_EQ(half.summary.passes(0).name(), "recompute");
    EXPECT_DOUBLE_EQ(half.summary.passes(0).added_flops(),
                     half.summary.flops_per_step() - all.summary.flops_per_step());
    std::printf("%-24s %.3f of the bytes, %.3f of the FLOP, %+d kernels\n", c.name,
                static_cast<double>(half.summary.activation_bytes()) /
                    static_cast<double>(all.summary.activation_bytes()),
                more, static_cast<int>(half.micro.size()) - static_cast<int>(all.micro.size()));
  }
}

TEST(Recompute, HoldsEveryBudgetDownToTheLeastAndRefusesLess) {
  for (ModelCase& c : AllModels()) {
    SCOPED_TRACE(c.name);
    const int64_t all = PlanOf(c.spec, c.facts).summary.activation_bytes();
    const int64_t least = Recomputing(c.facts, c.spec);
    EXPECT_LE(least, all);
    v1::Recompute& recompute = *c.spec.mutable_training()->mutable_recompute();
    for (int i = 0; i <= 6; ++i) {
      const int64_t budget = least + (all - least) * i / 6;
      recompute.set_activation_bytes(budget);
      EXPECT_LE(PlanOf(c.spec, c.facts).summary.activation_bytes(), budget);
    }
    recompute.set_activation_bytes(least / 2);
    const absl::Status refused = BuildPlan(ResolveSpec(c.spec).value(), c.facts).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("spec.training.recompute.activation_bytes: ", least / 2,
                                       " cannot be held: activations take at least ")));
  }
}

// An op by what it does: its name and the tensors that it touches, those computed again under their
// first name.
std::string NameOf(const Plan& plan, Op op) {
  std::string name = OpName(op);
  if (auto* const norm = std::get_if<BatchNormForward>(&op))
    norm->running_mean = norm->running_var = kNone;
  VisitOperands(op, [&](TensorId id, Access) {
    absl::string_view tensor = plan.tensors[id].name;
    absl::ConsumeSuffix(&tensor, " again");
    absl::StrAppend(&name, " ", tensor);
  });
  return name;
}

TEST(Recompute, RepeatsOpsOfTheForwardPassAtMostOnceAndKeepsTheOrderOfAllOthers) {
  for (ModelCase& c : AllModels()) {
    SCOPED_TRACE(c.name);
    const Plan all = PlanOf(c.spec, c.facts);
    Recomputing(c.facts, c.spec);
    const Plan plan = PlanOf(c.spec, c.facts);
    std::map<std::string, int> times;
    std::vector<std::string> first, expected;
    for (const Op& op : SumsApart(all.micro)) expected.push_back(NameOf(all, op));
    for (const Op& op : SumsApart(plan.micro)) {
      const std::string name = NameOf(plan, op);
      // Names of ops that only accumulate may be the same twice, as in the plan that keeps all.
      if (++times[name] <= std::count(expected.begin(), expected.end(), name))
        first.push_back(name);
    }
    EXPECT_EQ(first, expected);
    for (const auto& [name, n] : times) {
      EXPECT_LE(n, 2 * std::count(expected.begin(), expected.end(), name)) << name;
    }
  }
}

TEST(Recompute, MovesRunningStatisticsOnce) {
  v1::JobSpec spec = ResnetSpec();
  const DataFacts facts = ImageFacts(32, 32, 3, 10);
  Recomputing(facts, spec);
  const Plan plan = PlanOf(spec, facts);
  std::map<TensorId, int> moves;
  int again = 0;
  for (const Op& op : plan.micro) {
    if (const auto* norm = std::get_if<BatchNormForward>(&op)) again += norm->again;
    VisitOperands(op, [&](TensorId id, Access access) {
      EXPECT_NE(plan.tensors[id].kind, TensorKind::kBuffer);
      const bool pending = plan.tensors[id].kind == TensorKind::kPendingBuffer;
      if (pending && access != Access::kRead) ++moves[id];
    });
  }
  EXPECT_GT(again, 5);
  EXPECT_EQ(moves.size(), plan.buffers.size());
  for (const auto& [id, n] : moves) EXPECT_EQ(n, 1) << plan.tensors[id].name;
}

TEST(Recompute, OfManyRepeatedLayersGoesAsFarAsOfAFew) {
  v1::JobSpec spec = MlpSpec();
  *spec.mutable_model()->mutable_layers() = LayersOf(R"(
    layers { flatten {} }
    layers { linear { out: 64 } }
    layers { block { repeat: 60 layers { linear { out: 64 } } layers { activation: GELU } } }
    layers { linear {} }
  )");
  spec = ResolveSpec(spec).value();
  const DataFacts facts = ImageFacts(8, 8, 1, 10);
  const auto activations = [&](int64_t bytes) {
    const auto plan = Assemble(spec, facts, bytes);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->summary.activation_bytes();
  };
  // Of each layer one of its two values is needed at the least, and some are alive at once.
  EXPECT_LE(activations(1), activations(std::numeric_limits<int64_t>::max()) * 2 / 3);
}

}  // namespace
}  // namespace trainyard::plan
