// Frozen parameters: the others' gradients do not change, and nothing is computed that only frozen
// ones would need.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/op.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;

constexpr int64_t kClasses = 11;

struct FrozenCase {
  std::string name;
  v1::JobSpec spec;
  DataFacts facts;
  std::vector<std::string> frozen;  // patterns
};

void Freeze(const std::vector<std::string>& patterns, v1::JobSpec& spec) {
  for (const std::string& pattern : patterns) {
    v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
    group.set_pattern(pattern);
    group.set_frozen(true);
  }
}

std::vector<FrozenCase> FrozenCases() {
  const DataFacts tokens = TokenFacts(kClasses), images = ImageFacts(6, 5, 2, kClasses);
  v1::JobSpec gpt = GptSpec(), untied = GptSpec(), convnet = ConvnetSpec(), mlp = MlpSpec(),
              resnet = ResnetSpec();
  gpt.mutable_model()->mutable_gpt()->set_dropout(0.2);
  gpt.mutable_training()->set_micro_batch_size(2);
  untied.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  convnet.mutable_model()->mutable_convnet()->add_stages()->set_channels(2);
  mlp.mutable_model()->mutable_mlp()->add_hidden(4);
  v1::JobSpec adapted = LlamaSpec();
  adapted.mutable_fine_tune()->mutable_lora()->set_rank(2);
  return {
      {"first matrices of adapters", adapted, tokens, {"*.lora_A.weight"}},
      {"second matrices of adapters", adapted, tokens, {"*.lora_B.weight"}},
      {"adapters of the first block", adapted, tokens, {"*.0.*.lora_?.weight"}},
      {"mlp but its head", mlp, images, {"layers.0.*", "layers.1.*"}},
      {"mlp but its biases", mlp, images, {"*.weight"}},
      {"biases of an mlp", mlp, images, {"*.bias"}},
      {"head of an mlp", mlp, images, {"layers.2.*"}},
      {"convnet but its biases", convnet, images, {"*.weight"}},
      {"biases of a convnet", convnet, images, {"*.bias"}},
      {"convolutions", convnet, images, {"stages.*"}},
      {"first stage", convnet, images, {"stages.0.*"}},
      {"gpt but its norms", gpt, tokens, {"*.w?e.*", "*.attn.*", "*.mlp.*"}},
      {"gpt but its biases", gpt, tokens, {"*.weight"}},
      {"gpt but gammas", gpt, tokens, {"*.w?e.*", "*.attn.*", "*.mlp.*", "*.bias"}},
      {"norms of gpt", gpt, tokens, {"*.ln_*"}},
      {"tied embedding", gpt, tokens, {"*.wte.*"}},
      {"positions", gpt, tokens, {"*.wpe.*"}},
      {"embeddings and first block", untied, tokens, {"*.w?e.*", "*.h.0.*"}},
      {"embeddings and first norm's gamma", untied, tokens, {"*.w?e.*", "*.h.0.ln_1.weight"}},
      {"embeddings and first norm's beta", untied, tokens, {"*.w?e.*", "*.h.0.ln_1.bias"}},
      {"token embedding of untied gpt", untied, tokens, {"*.wte.*"}},
      {"gpt but its head", untied, tokens, {"transformer.*"}},
      {"gpt but its last block", gpt, tokens, {"*.w?e.*", "*.h.0.*", "*.ln_f.*"}},
      {"llama but its attention", LlamaSpec(), tokens, {"*embed*", "*mlp*", "*norm*", "lm_head*"}},
      {"norms of llama", LlamaSpec(), tokens, {"*norm.weight"}},
      {"resnet but its head", resnet, ImageFacts(8, 8, 3, kClasses), {"resnet.*"}},
      {"resnet but its norms",
       resnet,
       ImageFacts(8, 8, 3, kClasses),
       {"*convolution*", "*classifier*"}},
      {"norms of a resnet", resnet, ImageFacts(8, 8, 3, kClasses), {"*normalization*"}},
      {"resnet but its shortcuts",
       resnet,
       ImageFacts(8, 8, 3, kClasses),
       {"*embedder*", "*layer.?.convolution*", "*layer.?.normalization*", "*classifier*"}},
      {"tables", DlrmSpec(), ClickFacts(3, 3, 4), {"emb_l.*"}},
      {"bottom", DlrmSpec(), ClickFacts(3, 3, 4), {"bot_l.*"}},
      {"bottom and tables", DlrmSpec(), ClickFacts(3, 3, 4), {"bot_l.*", "emb_l.*"}},
      {"all but tables", DlrmSpec(), ClickFacts(3, 3, 4), {"bot_l.*", "top_l.*"}},
  };
}

// One step on parameters and a batch that are the same for every plan of one model.
std::map<std::string, Vec> GradientsOf(const Plan& plan) {
  Interpreter machine(plan);
  for (const TensorId id : plan.parameters) {
    std::mt19937_64 random(std::hash<std::string>()(plan.tensors[id].name));
    std::normal_distribution<double> normal(0, 0.5);
    Vec w(plan.tensors[id].elements());
    for (double& v : w) v = normal(random) + plan.tensors[id].init_value;
    machine.Write(id, w);
  }
  machine.state = {.seed = 5, .step = 3};
  machine.Run(plan.begin);
  machine.Run(plan.zero);
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < plan.micro_batches; ++i) {
    machine.state.first_sample = i * plan.micro_batch;
    const auto fill = [&](TensorId id, int64_t below) {
      if (id == kNone) return;
      Vec values(plan.tensors[id].elements());
      const ElementType type = plan.tensors[id].type;
      if (type == ElementType::kU8) below = 256;
      for (double& v : values) {
        v = type == ElementType::kF32 ? normal(random) : static_cast<double>(random() % below);
      }
      machine.Write(id, values);
    };
    fill(plan.input, kClasses);
    fill(plan.ids, 4);
    fill(plan.target, plan.binary ? 2 : kClasses);
    machine.Run(plan.micro);
  }
  std::map<std::string, Vec> gradients;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    gradients[plan.tensors[plan.parameters[i]].name] = machine.Read(plan.gradients[i]);
  }
  return gradients;
}

TEST(Frozen, LeaveTheGradientsOfTheOthersAsTheyAre) {
  for (FrozenCase& c : FrozenCases()) {
    SCOPED_TRACE(c.name);
    const auto all = GradientsOf(PlanOf(c.spec, c.facts));
    Freeze(c.frozen, c.spec);
    const Plan plan = PlanOf(c.spec, c.facts);
    const auto some = GradientsOf(plan);
    EXPECT_EQ(some.size(), plan.trained);
    EXPECT_LT(some.size(), all.size());
    for (const auto& [name, gradient] : some) {
      const Vec& expected = all.at(name);
      ASSERT_EQ(gradient.size(), expected.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(gradient[i], expected[i], 1e-12 * (1 + std::abs(expected[i]))) << name;
      }
    }
  }
}

// Of what an op writes something is read later, or it is no activation. A forward op may have more
// to give than this backward pass asks for (the mean of a norm), a gradient is never made in vain.
TEST(Frozen, NothingIsComputedInVain) {
  for (FrozenCase& c : FrozenCases()) {
    SCOPED_TRACE(c.name);
    Freeze(c.frozen, c.spec);
    Plan plan = PlanOf(c.spec, c.facts);
    std::set<TensorId> read;
    for (auto op = plan.micro.rbegin(); op != plan.micro.rend(); ++op) {
      bool used = false;
      const auto look = [&](TensorId id, Access access) {
        if (access == Access::kRead) return;
        const bool kept = plan.tensors[id].kind != TensorKind::kActivation || read.contains(id);
        used |= kept;
        const bool gradient = plan.tensors[id].name.starts_with("d(");
        EXPECT_TRUE(kept || !gradient) << OpName(*op) << " writes " << plan.tensors[id].name;
      };
      VisitOperands(*op, look);
      EXPECT_TRUE(used) << OpName(*op);
      VisitOperands(*op, [&](TensorId id, Access access) {
        if (access != Access::kWrite) read.insert(id);
      });
    }
  }
}

TEST(Frozen, TakeNoMemoryBesideTheirWeightsAndCostNoWork) {
  for (FrozenCase& c : FrozenCases()) {
    SCOPED_TRACE(c.name);
    const Plan all = PlanOf(c.spec, c.facts);
    Freeze(c.frozen, c.spec);
    const Plan plan = PlanOf(c.spec, c.facts);
    int64_t trained = 0;
    for (size_t i = 0; i < plan.trained; ++i) {
      trained += Align(plan.tensors[plan.parameters[i]].bytes());
    }
    EXPECT_EQ(plan.summary.gradient_bytes(), trained);
    EXPECT_EQ(plan.summary.optimizer_bytes(), 2 * trained);
    EXPECT_EQ(plan.summary.parameter_bytes(), all.summary.parameter_bytes());
    EXPECT_EQ(plan.summary.parameters(), all.summary.parameters());
    EXPECT_LE(plan.summary.activation_bytes(), all.summary.activation_bytes());
    EXPECT_LE(plan.summary.flops_per_step(), all.summary.flops_per_step());
  }
}

// Only the head: no backward pass but its own, and no activation is kept for one.
TEST(Frozen, TrainingAHeadCostsAForwardPassAndTheHead) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  const Plan all = PlanOf(spec, TokenFacts(50257));
  Freeze({"transformer.*"}, spec);
  const Plan plan = PlanOf(spec, TokenFacts(50257));
  const double head = 2.0 * 4 * 1024 * 768 * 50257;
  EXPECT_NEAR(plan.summary.flops_per_step() / (all.summary.flops_per_step() / 3 + head), 1, 0.02);
  EXPECT_EQ(plan.summary.frozen_parameters(), 124439808);
  EXPECT_LT(plan.activation_bytes, all.activation_bytes * 2 / 3);
}

}  // namespace
}  // namespace trainyard::plan
