#include "executor/plan/passes/narrow_gradients.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "executor/plan/build.h"
#include "executor/plan/passes/optimizer_step.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

v1::JobSpec InBf16(v1::JobSpec spec) {
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  return spec;
}

// Parameters whose gradient is bf16. What writes each of these is one op, a product in bf16.
std::set<std::string> Narrow(const Plan& plan) {
  std::set<std::string> names;
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    const TensorId gradient = plan.gradients[i];
    if (plan.tensors[gradient].type == kF32) continue;
    const std::string& name = plan.tensors[plan.parameters[i]].name;
    EXPECT_EQ(plan.tensors[gradient].type, kBF16) << name;
    names.insert(name);
    int writers = 0;
    for (const Op& op : plan.micro) {
      const auto* product = std::get_if<Matmul>(&op);
      const auto touch = [&](TensorId id, Access access) {
        if (id != gradient) return;
        ++writers;
        EXPECT_EQ(access, Access::kWrite) << name;
        EXPECT_TRUE(product != nullptr && plan.tensors[product->a].type == kBF16) << name;
      };
      VisitOperands(op, touch);
    }
    EXPECT_EQ(writers, 1) << name;
  }
  return names;
}

std::set<std::string> MatricesOfBlocks() {
  std::set<std::string> names;
  for (const char* block : {"transformer.h.0.", "transformer.h.1."}) {
    for (const char* weight :
         {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"}) {
      names.insert(std::string(block) + weight);
    }
  }
  return names;
}

TEST(NarrowGradients, AreThoseThatOneProductWrites) {
  v1::JobSpec spec = InBf16(GptSpec());
  EXPECT_EQ(Narrow(PlanOf(spec, TokenFacts(11))), MatricesOfBlocks());  // the head is the embedding
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  std::set<std::string> with_head = MatricesOfBlocks();
  with_head.insert("lm_head.weight");
  EXPECT_EQ(Narrow(PlanOf(spec, TokenFacts(11))), with_head);
  // No convolution's.
  EXPECT_THAT(Narrow(PlanOf(InBf16(ResnetSpec()), ImageFacts(32, 32, 3, 7))),
              UnorderedElementsAre("classifier.1.weight"));
}

TEST(NarrowGradients, AreNoneWhereMicroBatchesOrRanksAreSummed) {
  v1::JobSpec micro = InBf16(GptSpec());
  micro.mutable_training()->set_micro_batch_size(micro.training().batch_size() / 2);
  EXPECT_THAT(Narrow(PlanOf(micro, TokenFacts(11))), IsEmpty());
  v1::JobSpec ranks = InBf16(GptSpec());
  ranks.mutable_parallel()->set_logical_ranks(2);
  ranks.mutable_training()->set_micro_batch_size(ranks.training().batch_size() / 2);
  const absl::StatusOr<Plan> plan = BuildPlan(ranks, TokenFacts(11));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_batches, 1);
  EXPECT_THAT(Narrow(*plan), IsEmpty());
}

TEST(NarrowGradients, AreNoneInOtherPrecisions) {
  v1::JobSpec spec = GptSpec();
  EXPECT_THAT(Narrow(PlanOf(spec, TokenFacts(11))), IsEmpty());
  spec.mutable_precision()->set_compute(v1::Precision::FP16);  // has not the range of fp32
  EXPECT_THAT(Narrow(PlanOf(spec, TokenFacts(11))), IsEmpty());
}

TEST(NarrowGradients, AreReadByAdamWAndSgdAlone) {
  const auto of = [](const char* optimizer) {
    v1::JobSpec spec = InBf16(GptSpec());
    spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(optimizer, spec.mutable_optimizer()));
    return Narrow(PlanOf(spec, TokenFacts(11)));
  };
  EXPECT_EQ(of("adamw {}").size(), 9u);
  EXPECT_EQ(of("sgd { momentum: 0.9 }").size(), 9u);
  EXPECT_THAT(of("lamb {}"), IsEmpty());
  EXPECT_THAT(of("muon {}"), UnorderedElementsAre("lm_head.weight"));  // the rest is AdamW's
}

TEST(NarrowGradients, AreThoseOfAdaptersAndNotOfWhatIsFrozen) {
  v1::JobSpec spec = InBf16(GptSpec());
  v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
  frozen.set_pattern("*.h.1.*");
  frozen.set_frozen(true);
  std::set<std::string> first = MatricesOfBlocks();
  std::erase_if(first, [](const std::string& n) { return absl::StrContains(n, ".h.1."); });
  EXPECT_EQ(Narrow(PlanOf(spec, TokenFacts(11))), first);

  v1::JobSpec adapted = InBf16(LlamaSpec());
  adapted.mutable_fine_tune()->mutable_lora()->set_rank(2);
  const Plan plan = PlanOf(adapted, TokenFacts(11));
  EXPECT_EQ(Narrow(plan).size(), plan.trained);
}

// By the reading ops alone, each counted.
TEST(NarrowGradients, AreNotThoseOfWeightsThatAreReadTwice) {
  Graph graph;
  absl::flat_hash_map<TensorId, TensorId> copies;
  const auto weight = [&](const char* name) {
    const TensorId id = graph.Add({.name = name, .dims = {4, 4}, .kind = TensorKind::kParameter});
    copies[id] =
        graph.Add({.name = name, .type = kBF16, .dims = {4, 4}, .kind = TensorKind::kWeightCopy});
    return id;
  };
  const TensorId x = graph.Add({.name = "x", .type = kBF16, .dims = {4, 4}});
  const TensorId once = weight("once"), added = weight("added"), twice = weight("twice"),
                 looked_up = weight("looked up"), filter = weight("filter"), none = weight("none");
  graph.ops = {Matmul{.a = x, .b = copies[once]},
               AddProduct{.base = x, .a = x, .b = copies[added]},
               Matmul{.a = x, .b = copies[twice]},
               Matmul{.a = x, .b = copies[twice]},
               Matmul{.a = x, .b = copies[looked_up]},
               EmbeddingForward{.ids = x, .tokens = looked_up, .y = x},
               ConvolutionForward{.x = x, .w = copies[filter], .y = x}};
  EXPECT_THAT(ReadByOneProduct(graph, copies), UnorderedElementsAre(once, added));
  EXPECT_TRUE(copies.contains(none));
}

// A run of an op over one type of gradients goes with runs of weights and state.
void ExpectRunsGoTogether(v1::JobSpec spec) {
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.1);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  std::map<TensorId, int> stepped, summed;
  std::vector<int64_t> lengths;
  for (const Op& op : plan.end) {
    const auto& step = std::get<AdamWStep>(op);
    const int64_t size = SizeOf(plan.tensors[step.grad].type);
    lengths.push_back(step.n);
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      const int64_t at = (plan.offsets[plan.parameters[i]] - plan.offsets[step.w]) / 4;
      if (at < 0 || at >= step.n) continue;
      ++stepped[plan.gradients[i]];
      EXPECT_EQ(plan.tensors[plan.gradients[i]].type, plan.tensors[step.grad].type);
      EXPECT_EQ(plan.offsets[plan.gradients[i]] - plan.offsets[step.grad], at * size)
          << plan.tensors[plan.gradients[i]].name;
    }
  }
  EXPECT_EQ(lengths.size(), 3u);  // matrices of blocks, embeddings, what is not decayed
  int norms = 0;
  for (const Op& op : plan.norm) {
    const auto* norm = std::get_if<SquaredNorm>(&op);
    if (norm == nullptr) continue;
    EXPECT_EQ(norm->accumulate, norms++ > 0);
    const int64_t end = plan.offsets[norm->x] + norm->n * SizeOf(plan.tensors[norm->x].type);
    EXPECT_LE(end, plan.gradient_region.end());
    for (const TensorId id : plan.gradients) {
      summed[id] += plan.offsets[norm->x] <= plan.offsets[id] && plan.offsets[id] < end;
    }
  }
  EXPECT_EQ(norms, 2);
  for (const TensorId id : plan.gradients) {
    EXPECT_EQ(stepped[id], 1) << plan.tensors[id].name;
    EXPECT_EQ(summed[id], 1) << plan.tensors[id].name;
  }
}

TEST(NarrowGradients, LieAsTheirParametersDoAtHalfTheDistances) {
  ExpectRunsGoTogether(InBf16(GptSpec()));
  ExpectRunsGoTogether(InBf16(LlamaSpec()));  // some are an odd number of lines of a processor
}

TEST(NarrowGradients, TakeHalfTheBytes) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_model()->mutable_gpt()->set_context(64);
  const Plan wide = PlanOf(spec, TokenFacts(50257));
  const Plan narrow = PlanOf(InBf16(spec), TokenFacts(50257));
  // Blocks of c_attn, c_proj, c_fc and c_proj.
  const int64_t halved = int64_t{12} * 768 * 768 * (3 + 1 + 4 + 4);
  EXPECT_EQ(wide.gradient_region.bytes - narrow.gradient_region.bytes, 2 * halved);
  EXPECT_EQ(narrow.summary.gradient_bytes(), narrow.gradient_region.bytes);
  EXPECT_LT(narrow.arena_bytes, wide.arena_bytes - 2 * halved * 9 / 10);
}

}  // namespace
}  // namespace trainyard::plan
