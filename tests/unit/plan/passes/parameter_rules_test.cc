#include "executor/plan/passes/parameter_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "executor/plan/graph/plan.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

v1::ParameterGroup& AddGroup(v1::JobSpec& spec, const std::string& pattern) {
  v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
  group.set_pattern(pattern);
  return group;
}

std::string ErrorOf(const v1::JobSpec& spec, const DataFacts& facts) {
  return std::string(PlanStatus(spec, facts).message());
}

// Weight decay and scale of the learning rate that AdamW has for each parameter.
std::map<std::string, std::pair<float, float>> AdamWOf(const Plan& plan) {
  std::map<std::string, std::pair<float, float>> rules;
  for (const AdamWStep& step : OpsOf<AdamWStep>(plan.end)) {
    const int64_t begin = plan.offsets[step.w], end = begin + step.n * 4;
    for (const TensorId id : plan.parameters) {
      if (plan.offsets[id] < begin || plan.offsets[id] >= end) continue;
      const auto [at, is_new] = rules.emplace(
          plan.tensors[id].name, std::pair(step.weight_decay, step.learning_rate_scale));
      EXPECT_TRUE(is_new) << at->first << " is stepped twice";
    }
  }
  return rules;
}

TEST(ParameterGroups, TheFirstThatMatchesDecides) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.5);
  AddGroup(spec, "*.h.0.*.bias").set_weight_decay(0.25);
  AddGroup(spec, "*.h.0.*").set_learning_rate_scale(0.5);
  AddGroup(spec, "*.wpe.*").set_frozen(true);
  AddGroup(spec, "*.wte.*");
  const Plan plan = PlanOf(spec, TokenFacts(11));
  const auto rules = AdamWOf(plan);
  EXPECT_EQ(rules.size(), plan.parameters.size() - 1);
  EXPECT_EQ(rules.at("transformer.h.0.ln_1.bias"), std::pair(0.25f, 1.0f));
  EXPECT_EQ(rules.at("transformer.h.0.ln_1.weight"), std::pair(0.0f, 0.5f));
  EXPECT_EQ(rules.at("transformer.h.0.mlp.c_fc.weight"), std::pair(0.5f, 0.5f));
  EXPECT_EQ(rules.at("transformer.h.1.mlp.c_fc.weight"), std::pair(0.5f, 1.0f));
  EXPECT_EQ(rules.at("transformer.h.1.mlp.c_fc.bias"), std::pair(0.0f, 1.0f));
  EXPECT_EQ(rules.at("transformer.wte.weight"), std::pair(0.5f, 1.0f));
  EXPECT_FALSE(rules.contains("transformer.wpe.weight"));
}

TEST(ParameterGroups, SgdDecaysEverythingUnlessAGroupSaysOtherwise) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.1);
  EXPECT_EQ(OpsOf<SgdStep>(PlanOf(spec, ImageFacts(4, 4, 1, 3)).end).size(), 1u);
  AddGroup(spec, "*.bias").set_weight_decay(0);
  const auto steps = OpsOf<SgdStep>(PlanOf(spec, ImageFacts(4, 4, 1, 3)).end);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].weight_decay, 0.1f);
  EXPECT_EQ(steps[1].weight_decay, 0);
}

TEST(ParameterGroups, AreRefusedWhenTheyHaveNothingToActOn) {
  v1::JobSpec spec = GptSpec();
  AddGroup(spec, "*.h.0.mlp.c_fx.weight").set_frozen(true);
  EXPECT_THAT(
      ErrorOf(spec, TokenFacts(11)),
      HasSubstr("spec.optimizer.groups[0].pattern: '*.h.0.mlp.c_fx.weight' matches no parameter; "
                "the nearest are 'transformer.h.0.mlp.c_fc.weight', "));
  spec = GptSpec();
  AddGroup(spec, "*.bias").set_weight_decay(1);
  AddGroup(spec, "*.ln_1.bias").set_frozen(true);
  EXPECT_EQ(ErrorOf(spec, TokenFacts(11)),
            "spec.optimizer.groups[1].pattern: '*.ln_1.bias' matches only parameters that groups "
            "before it take; put it before them");
  spec = GptSpec();
  AddGroup(spec, "*").set_frozen(true);
  EXPECT_EQ(ErrorOf(spec, TokenFacts(11)),
            "spec.optimizer.groups: every parameter is frozen; nothing is left to train");
}

TEST(ParameterGroups, DoNotPartWhatIsOneProduct) {
  for (const char* first : {"*.0.*.k_proj.weight", "*.0.*.q_proj.weight"}) {
    v1::JobSpec spec = LlamaSpec();
    AddGroup(spec, first).set_weight_decay(1);
    EXPECT_THAT(ErrorOf(spec, TokenFacts(11)),
                testing::AllOf(HasSubstr(absl::StrCat("groups[0].pattern: '", first, "' takes")),
                               HasSubstr("but not model.layers.0.self_attn."),
                               HasSubstr("which is one matrix product with it; take both")));
  }
  v1::JobSpec spec = LlamaSpec();
  AddGroup(spec, "*.0.*.?_proj.weight").set_weight_decay(1);
  EXPECT_EQ(ErrorOf(spec, TokenFacts(11)), "");
}

TEST(ParameterGroups, OfTablesAreTheirOwnOrOne) {
  const DataFacts facts = ClickFacts(3, 3, 4);
  v1::JobSpec spec = DlrmSpec();
  AddGroup(spec, "emb_l.1.weight").set_frozen(true);
  EXPECT_EQ(ErrorOf(spec, facts),
            "spec.optimizer.groups: emb_l.1.weight is frozen and emb_l.0.weight is not; tables are "
            "trained together: freeze all of them or none");

  spec = DlrmSpec();
  AddGroup(spec, "emb_l.1.weight").set_learning_rate_scale(2);
  EXPECT_EQ(ErrorOf(spec, facts), "");
  spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  EXPECT_THAT(ErrorOf(spec, facts), HasSubstr("which lazy_tables asks for"));
  spec.mutable_optimizer()->mutable_groups(0)->set_pattern("emb_l.*");
  const Plan plan = PlanOf(spec, facts);
  ASSERT_EQ(OpsOf<AdamWRows>(plan.end).size(), 1u);
  EXPECT_EQ(OpsOf<AdamWRows>(plan.end)[0].learning_rate_scale, 2);

  // Lazy steps of SGD do not decay.
  spec = DlrmSpec();
  spec.mutable_optimizer()->mutable_sgd()->set_lazy_tables(true);
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.1);
  EXPECT_EQ(ErrorOf(spec, facts),
            "spec.optimizer.sgd.lazy_tables: leaves rows alone that a step does not look up, which "
            "a weight decay of 0.1, as emb_l.0.weight has, would move; give the tables a group "
            "with weight_decay 0, or leave lazy_tables out");
  AddGroup(spec, "emb_l.*").set_weight_decay(0);
  EXPECT_EQ(OpsOf<SgdRows>(PlanOf(spec, facts).end).size(), 1u);

  // Plain SGD keeps tables by row when that gives the same numbers, and only then.
  spec = DlrmSpec();
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(0.1);
  EXPECT_EQ(OpsOf<SgdRows>(PlanOf(spec, facts).end).size(), 0u);
  AddGroup(spec, "emb_l.*").set_weight_decay(0);
  EXPECT_EQ(OpsOf<SgdRows>(PlanOf(spec, facts).end).size(), 1u);
  spec.mutable_optimizer()->mutable_groups(0)->set_pattern("emb_l.1.*");
  EXPECT_EQ(OpsOf<SgdRows>(PlanOf(spec, facts).end).size(), 0u);
}

// The parameters that step by Muon.
std::vector<std::string> Hidden(v1::JobSpec spec, const DataFacts& facts) {
  spec.mutable_optimizer()->mutable_muon();
  const Plan plan = PlanOf(spec, facts);
  std::vector<std::string> names;
  for (const MuonStep& step : OpsOf<MuonStep>(plan.end)) names.push_back(plan.tensors[step.x].name);
  for (std::string& name : names) name = name.substr(0, name.rfind('.'));
  return names;
}

TEST(Muon, TakesHiddenMatricesAndNothingElse) {
  EXPECT_THAT(Hidden(GptSpec(), TokenFacts(11)),
              UnorderedElementsAre(
                  "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                  "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight",
                  "transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight",
                  "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"));
  v1::JobSpec llama = LlamaSpec();
  llama.mutable_model()->mutable_llama()->set_layers(1);
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(
      Hidden(llama, TokenFacts(11)),
      UnorderedElementsAre(layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                           layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight",
                           layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight",
                           layer + "mlp.down_proj.weight"));
  EXPECT_THAT(Hidden(ConvnetSpec(), ImageFacts(8, 8, 1, 3)),
              UnorderedElementsAre("stages.0.0.weight", "layers.0.weight"));
  EXPECT_THAT(Hidden(DlrmSpec(), ClickFacts(3, 3, 4)),
              UnorderedElementsAre("bot_l.0.weight", "bot_l.2.weight", "top_l.0.weight"));
}

// A head whose product is not the last op is not known as one, but what is looked up in is.
TEST(Muon, TakesNoEmbeddingWhateverElseItIsUsedFor) {
  Graph graph;
  const TensorId ids = graph.Add({.name = "ids", .type = ElementType::kI32, .dims = {2, 3}});
  const TensorId table =
      graph.Add({.name = "table", .dims = {11, 4}, .kind = TensorKind::kParameter});
  const TensorId inner =
      graph.Add({.name = "inner", .dims = {4, 4}, .kind = TensorKind::kParameter});
  const TensorId x = graph.Add({.name = "x", .dims = {6, 4}});
  const TensorId y = graph.Add({.name = "y", .dims = {6, 4}});
  const TensorId scores = graph.Add({.name = "scores", .dims = {6, 11}});
  const TensorId logits = graph.Add({.name = "logits", .dims = {6, 11}});
  graph.ops = {EmbeddingForward{.ids = ids, .tokens = table, .y = x},
               Matmul{.a = x, .b = inner, .c = y, .transpose_b = true},
               Matmul{.a = y, .b = table, .c = scores, .transpose_b = true},
               ActivationForward{.x = scores, .y = logits}};
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->mutable_muon();
  const auto rules = RulesOf(*ResolveSpec(spec), graph, {table, inner}, logits);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ((*rules)[0].method, Method::kAdamW);
  EXPECT_EQ((*rules)[1].method, Method::kMuon);
}

TEST(Muon, LeavesTheRestToAdamWAtItsOwnLearningRate) {
  v1::JobSpec spec = GptSpec();
  v1::Muon& muon = *spec.mutable_optimizer()->mutable_muon();
  muon.mutable_adamw()->set_weight_decay(0.5);
  spec.mutable_schedule()->set_learning_rate(0.02);
  const auto rules = AdamWOf(PlanOf(spec, TokenFacts(11)));
  EXPECT_FALSE(rules.contains("transformer.h.0.attn.c_attn.weight"));
  EXPECT_EQ(rules.at("transformer.wte.weight"), std::pair(0.5f, 0.015f));
  EXPECT_EQ(rules.at("transformer.h.0.attn.c_attn.bias"), std::pair(0.0f, 0.015f));
  muon.set_scale(v1::Muon::MATCH_RMS_ADAMW);
  EXPECT_EQ(AdamWOf(PlanOf(spec, TokenFacts(11))).at("transformer.wte.weight"),
            std::pair(0.5f, 1.0f));
}

}  // namespace
}  // namespace trainyard::plan
