// Low-rank adaptation: which weights, what is refused, and what it costs.

#include "executor/plan/passes/lora.h"
#include "executor/plan/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/match.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;
using ::testing::ElementsAre;
using ::testing::SizeIs;

v1::Lora& LoraOf(v1::JobSpec& spec) { return *spec.mutable_fine_tune()->mutable_lora(); }

v1::JobSpec Adapted(v1::JobSpec spec, int rank, const std::vector<std::string>& targets = {}) {
  LoraOf(spec).set_rank(rank);
  for (const std::string& target : targets) LoraOf(spec).add_targets(target);
  return spec;
}

std::vector<std::string> AdaptedNames(const Plan& plan) {
  std::vector<std::string> names;
  for (const Adapter& adapter : plan.adapters) names.push_back(adapter.stored.name);
  return names;
}

TEST(Lora, RefusesWhatCannotBe) {
  const DataFacts tokens = TokenFacts(11), images = ImageFacts(6, 5, 1, 3);
  struct Bad {
    v1::JobSpec from;
    DataFacts facts;
    std::function<void(v1::JobSpec&)> spoil;
    std::string message;
  };
  const std::vector<Bad> table = {
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_rank(0); },
       "spec.fine_tune.lora.rank: 0 is not in [1, 1024]"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_rank(1025); },
       "spec.fine_tune.lora.rank: 1025 is not in [1, 1024]"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_alpha(0); },
       "spec.fine_tune.lora.alpha: 0 is not a finite number above 0"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_alpha(NAN); },
       "spec.fine_tune.lora.alpha: nan is not a finite number above 0"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_dropout(1); },
       "spec.fine_tune.lora.dropout: 1 is not in [0, 1)"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_targets(""); },
       "spec.fine_tune.lora.targets[0]: is empty; name tensors, or leave it out"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_also_train(""); },
       "spec.fine_tune.lora.also_train[0]: is empty; name tensors, or leave it out"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).set_rank(9); },
       "spec.fine_tune.lora.rank: 9 is more than the smaller side of "
       "transformer.h.0.attn.c_attn.weight [8, 24]"},
      {LlamaSpec(), tokens,
       [](auto& s) {
         LoraOf(s).set_rank(5);
         LoraOf(s).add_targets("*v_proj.weight");
       },
       "spec.fine_tune.lora.rank: 5 is more than the smaller side of "
       "model.layers.0.self_attn.v_proj.weight [4, 8]"},
      {LlamaSpec(), tokens, [](auto& s) { LoraOf(s).add_targets("*.q_pro.weight"); },
       "spec.fine_tune.lora.targets[0]: '*.q_pro.weight' matches no parameter; the nearest weights "
       "are 'model.layers.0.self_attn.q_proj.weight', 'model.layers.1.self_attn.q_proj.weight', "
       "'model.layers.0.self_attn.k_proj.weight'"},
      {LlamaSpec(), tokens,
       [](auto& s) {
         LoraOf(s).add_targets("*.q_proj.weight");
         LoraOf(s).add_targets("lm_head.weight");
       },
       "spec.fine_tune.lora.targets[1]: 'lm_head.weight' matches no weight of a linear layer: "
       "lm_head.weight makes the logits; also_train trains it as it is"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_targets("*.w?e.weight"); },
       "spec.fine_tune.lora.targets[0]: '*.w?e.weight' matches no weight of a linear layer: "
       "transformer.wte.weight is an embedding; also_train trains it as it is"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_targets("*.wpe.weight"); },
       "spec.fine_tune.lora.targets[0]: '*.wpe.weight' matches no weight of a linear layer: "
       "transformer.wpe.weight is an embedding; also_train trains it as it is"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_targets("*.ln_1.*"); },
       "spec.fine_tune.lora.targets[0]: '*.ln_1.*' matches no weight of a linear layer: "
       "transformer.h.0.ln_1.weight is no matrix of a linear layer"},
      {ConvnetSpec(), images, [](auto& s) { LoraOf(s).add_targets("stages.*"); },
       "spec.fine_tune.lora.targets[0]: 'stages.*' matches no weight of a linear layer: "
       "stages.0.0.weight is a convolution's"},
      {DlrmSpec(), ClickFacts(3, 2, 7), [](auto& s) { LoraOf(s).add_targets("emb_l.*"); },
       "spec.fine_tune.lora.targets[0]: 'emb_l.*' matches no weight of a linear layer: "
       "emb_l.0.weight is an embedding; also_train trains it as it is"},
      {MlpSpec(), images, [](auto& s) { LoraOf(s).add_targets("layers.1.*"); },
       "spec.fine_tune.lora.targets[0]: 'layers.1.*' matches no weight of a linear layer: "
       "layers.1.weight makes the logits; also_train trains it as it is"},
      {ResnetSpec(), images, [](auto&) {},
       "spec.fine_tune.lora: this model has no linear layer to adapt, heads that make the logits "
       "apart; leave it out"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_also_train("*.ln_3.*"); },
       "spec.fine_tune.lora.also_train[0]: '*.ln_3.*' matches no parameter; the nearest are "
       "'transformer.h.0.ln_1.weight', 'transformer.h.0.ln_1.bias', "
       "'transformer.h.0.ln_2.weight'"},
      {GptSpec(), tokens, [](auto& s) { LoraOf(s).add_also_train("*.mlp.*"); },
       "spec.fine_tune.lora.also_train[0]: '*.mlp.*' matches transformer.h.0.mlp.c_fc.weight, but "
       "transformer.h.0.mlp.c_fc.weight is adapted; leave it out here or of targets"},
      {LlamaSpec(), tokens,
       [](auto& s) {
         LoraOf(s).add_targets("*.q_proj.weight");
         LoraOf(s).add_also_train("*.0.self_attn.k_proj.weight");
       },
       "spec.fine_tune.lora.also_train[0]: '*.0.self_attn.k_proj.weight' matches "
       "model.layers.0.self_attn.k_proj.weight, but model.layers.0.self_attn.q_proj.weight is "
       "adapted; leave it out here or of targets"},
      {LlamaSpec(), tokens,
       [](auto& s) {
         LoraOf(s).add_targets("*.o_proj.weight");
         LoraOf(s).add_also_train("*.0.self_attn.k_proj.weight");
       },
       "spec.fine_tune.lora.also_train: model.layers.0.self_attn.q_proj.weight is one tensor here "
       "with one that it names; name both"},
      {GptSpec(), tokens,
       [](auto& s) {
         v1::ParameterGroup& group = *s.mutable_optimizer()->add_groups();
         group.set_pattern("*.wte.weight");
         group.set_weight_decay(0);
       },
       "spec.optimizer.groups[0].pattern: '*.wte.weight' matches only parameters that "
       "fine_tune.lora freezes; leave the group out, or name them in fine_tune.lora.also_train"},
      {GptSpec(), tokens,
       [](auto& s) {
         v1::ParameterGroup& group = *s.mutable_optimizer()->add_groups();
         group.set_pattern("*.lora_?.weight");
         group.set_frozen(true);
       },
       "spec.optimizer.groups: every parameter is frozen; nothing is left to train"},
  };
  for (const Bad& bad : table) {
    v1::JobSpec spec = Adapted(bad.from, 2);
    bad.spoil(spec);
    const absl::Status status = PlanStatus(spec, bad.facts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_EQ(status.message(), bad.message);
  }
}

TEST(Lora, AdaptsTheLinearLayersOfBlocksUnlessTold) {
  EXPECT_THAT(
      AdaptedNames(PlanOf(Adapted(GptSpec(), 2), TokenFacts(11))),
      ElementsAre("transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                  "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight",
                  "transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight",
                  "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(LlamaSpec(), 2), TokenFacts(11))), SizeIs(2 * 7));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(VitSpec(), 2), ImageFacts(4, 4, 1, 3))), SizeIs(2 * 6));
  // Not the dense layer of the head.
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(BertSpec(), 2), DocumentFacts(11))), SizeIs(2 * 6));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(BertSpec(), 2, {"*.dense.weight"}), DocumentFacts(11))),
              SizeIs(2 * 3 + 1));
  // Those that make the logits are left as they are.
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(MlpSpec(), 2), ImageFacts(3, 2, 1, 4))),
              ElementsAre("layers.0.weight"));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(ConvnetSpec(), 2), ImageFacts(6, 6, 1, 4))),
              ElementsAre("layers.0.weight"));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(TokenLayersSpec(), 2), TokenFacts(11))),
              ElementsAre("h.qkv.weight", "h.up.weight", "h.down.weight"));
  EXPECT_THAT(AdaptedNames(PlanOf(Adapted(DlrmSpec(), 2), ClickFacts(3, 2, 7))),
              ElementsAre("bot_l.0.weight", "bot_l.2.weight", "top_l.0.weight"));
}

TEST(Lora, AdaptsPartsOfAProductEachByItself) {
  const Plan plan = PlanOf(Adapted(LlamaSpec(), 2, {"*.0.*.q_proj.weight", "*.0.*.v_proj.weight"}),
                           TokenFacts(11));
  ASSERT_THAT(AdaptedNames(plan), ElementsAre("model.layers.0.self_attn.q_proj.weight",
                                              "model.layers.0.self_attn.v_proj.weight"));
  const Adapter& v = plan.adapters[1];
  EXPECT_EQ(plan.tensors[v.a].name, "model.layers.0.self_attn.v_proj.lora_A.weight");
  EXPECT_THAT(plan.tensors[v.a].dims, ElementsAre(2, 8));
  EXPECT_DOUBLE_EQ(plan.tensors[v.a].init_std, 1 / std::sqrt(24.0));
  EXPECT_EQ(plan.tensors[v.b].name, "model.layers.0.self_attn.v_proj.lora_B.weight");
  EXPECT_THAT(plan.tensors[v.b].dims, ElementsAre(4, 2));
  EXPECT_EQ(plan.tensors[v.b].init_std, 0);
  EXPECT_EQ(v.first_row(plan.tensors[v.weight]), 8 + 4);
  EXPECT_FALSE(v.in_out);
  EXPECT_EQ(v.scale, 1);  // alpha is the rank unless told
  const Plan gpt = PlanOf(Adapted(GptSpec(), 2, {"*.0.attn.c_attn.weight"}), TokenFacts(11));
  EXPECT_TRUE(gpt.adapters[0].in_out);
  EXPECT_THAT(gpt.tensors[gpt.adapters[0].a].dims, ElementsAre(2, 8));
  EXPECT_THAT(gpt.tensors[gpt.adapters[0].b].dims, ElementsAre(24, 2));
}

TEST(Lora, TrainsTheAdaptersAndWhatItIsToldAlone) {
  v1::JobSpec spec = Adapted(LlamaSpec(), 2);
  LoraOf(spec).add_also_train("model.norm.weight");
  // Half of an unadapted product, were it trained, would be refused.
  v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
  group.set_pattern("*.q_proj.*");
  group.set_learning_rate_scale(2);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  std::set<std::string> trained;
  int64_t elements = 0;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Tensor& tensor = plan.tensors[plan.parameters[i]];
    const bool adapter = absl::StrContains(tensor.name, ".lora_");
    EXPECT_EQ(i < plan.trained, adapter || tensor.name == "model.norm.weight") << tensor.name;
    if (i < plan.trained) elements += tensor.elements();
  }
  EXPECT_EQ(plan.trained, 2 * 2 * 7 + 1);
  EXPECT_EQ(plan.gradients.size(), plan.trained);
  // In each of two blocks: q 8x8, k and v 4x8, o 8x8, gate and up 6x8, down 8x6.
  EXPECT_EQ(elements, 2 * 2 * (16 + 12 + 12 + 16 + 14 + 14 + 14) + 8);
  const Plan whole = PlanOf(LlamaSpec(), TokenFacts(11));
  EXPECT_EQ(plan.summary.parameters() - (elements - 8), whole.summary.parameters());
  EXPECT_EQ(plan.summary.frozen_parameters(), whole.summary.parameters() - 8);
}

// Of W there is neither a gradient nor state; in 16 bits it has its one copy, as A and B have.
TEST(Lora, CostsNoMemoryForWhatIsFrozen) {
  const DataFacts facts = TokenFacts(50257);
  const Plan whole = PlanOf(Gpt2Spec(), facts);
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec spec = Gpt2Spec(), adapted = Adapted(Gpt2Spec(), 8);
    spec.mutable_precision()->set_compute(compute);
    adapted.mutable_precision()->set_compute(compute);
    adapted.mutable_training()->set_ema_decay(0.9);
    const Plan plan = PlanOf(adapted, facts), full = PlanOf(spec, facts);
    // 12 blocks of c_attn, c_proj, c_fc and c_proj.
    const int64_t trained = int64_t{12} * 8 * (768 * 4 + 768 * 2 + 768 * 5 + 768 * 5);
    EXPECT_EQ(plan.summary.parameters(), 124439808 + trained);
    EXPECT_EQ(plan.summary.frozen_parameters(), 124439808);
    const int64_t width = compute == v1::Precision::BF16 ? 2 : 4;
    EXPECT_EQ(plan.summary.gradient_bytes(), width * trained);
    EXPECT_EQ(plan.summary.optimizer_bytes(), 8 * trained);
    EXPECT_EQ(plan.summary.ema_bytes(), 4 * trained);
    const int64_t copies = compute == v1::Precision::FP32 ? 0 : 2 * trained;
    EXPECT_EQ(plan.summary.weight_copy_bytes() - full.summary.weight_copy_bytes(), copies);
    // The forward pass, its gradient by activations from the first block on, and small change.
    EXPECT_LT(plan.summary.flops_per_step(), 0.72 * full.summary.flops_per_step());
    EXPECT_GT(plan.summary.flops_per_step(), 0.66 * full.summary.flops_per_step());
  }
}

// B starts at zero: the same losses as without, whatever is dropped before A.
TEST(Lora, BeginsAsTheModelItAdapts) {
  for (const v1::JobSpec& from : {GptSpec(), LlamaSpec()}) {
    v1::JobSpec adapted = Adapted(from, 2);
    LoraOf(adapted).set_dropout(0.5);
    Vec losses;
    for (const v1::JobSpec& spec : {from, adapted}) {
      const Plan plan = PlanOf(spec, TokenFacts(11));
      Interpreter machine(plan);
      machine.state = {.seed = 5};
      for (const TensorId id : plan.parameters) {
        const Tensor& tensor = plan.tensors[id];
        Vec w(tensor.elements(), tensor.init_value);
        for (size_t i = 0; tensor.init_std > 0 && i < w.size(); ++i) {
          w[i] = std::sin(static_cast<double>(i * 37 % 101));
        }
        machine.Write(id, w);
      }
      Vec ids(plan.tensors[plan.input].elements());
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<double>(i * 7 % 11);
      machine.Write(plan.input, ids);
      machine.Write(plan.target, ids);
      machine.Run(plan.begin);
      machine.Run(plan.zero);
      machine.Run(plan.micro);
      losses.push_back(machine.Read(plan.loss_sum)[0]);
    }
    EXPECT_NEAR(losses[0], losses[1], 1e-12);
  }
}

// A step leaves the frozen weights as they are; evaluation sees A and B, or their averages, and
// drops nothing.
TEST(Lora, EvaluationIsOfTheAdaptedModelWithoutDropout) {
  v1::JobSpec spec = Adapted(GptSpec(), 2);
  LoraOf(spec).set_dropout(0.5);
  for (const bool averaged : {false, true}) {
    if (averaged) spec.mutable_training()->set_ema_decay(0.9);
    const Plan plan = PlanOf(spec, TokenFacts(11));
    std::set<TensorId> read;
    for (const Op& op : plan.evaluate) {
      EXPECT_FALSE(std::holds_alternative<Dropout>(op));
      VisitOperands(op, [&](TensorId id, Access) { read.insert(id); });
    }
    for (size_t i = 0; i < plan.trained; ++i) {
      EXPECT_EQ(read.contains(plan.parameters[i]), !averaged);
      EXPECT_EQ(averaged && read.contains(plan.averages[i]), averaged);
    }
    int dropouts = 0;
    for (const Op& op : plan.micro) dropouts += std::holds_alternative<Dropout>(op);
    EXPECT_GE(dropouts, 8);
  }
}

TEST(Lora, APlanForInferenceHasNoAdapters) {
  const v1::JobSpec spec = *ResolveSpec(Adapted(GptSpec(), 2));
  const absl::StatusOr<Plan> plan = BuildInferencePlan(spec, TokenFacts(11), 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->adapters.empty());
  for (const TensorId id : plan->parameters) {
    EXPECT_FALSE(absl::StrContains(plan->tensors[id].name, "lora")) << plan->tensors[id].name;
  }
}

TEST(Lora, MatricesOfAnAdapterAreMuons) {
  v1::JobSpec spec = Adapted(GptSpec(), 2);
  spec.mutable_optimizer()->mutable_muon();
  const Plan plan = PlanOf(spec, TokenFacts(11));
  EXPECT_THAT(plan.optimizer_state_names, ElementsAre("momentum_buffer"));
}

}  // namespace
}  // namespace trainyard::plan
