#include "executor/plan/passes/precision.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "executor/plan/memory/memory.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using ::testing::ElementsAre;

v1::JobSpec In(v1::JobSpec spec, v1::Precision::Compute compute) {
  spec.mutable_precision()->set_compute(compute);
  return spec;
}

Plan InBf16(const v1::JobSpec& spec, const DataFacts& facts) {
  return PlanOf(In(spec, v1::Precision::BF16), facts);
}

ElementType TypeOf(const Plan& plan, TensorId id) { return plan.tensors[id].type; }

// Of weights with a copy, for good or for a step, in the order of the parameters.
std::vector<std::string> CopiedNames(const Plan& plan) {
  std::map<TensorId, TensorId> copies;
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    if (plan.copies[i] != kNone) copies[plan.parameters[i]] = plan.copies[i];
  }
  for (const Cast& o : OpsOf<Cast>(plan.micro)) {
    if (plan.tensors[o.x].kind == TensorKind::kParameter) copies.try_emplace(o.x, o.y);
  }
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) {
    if (!copies.contains(id)) continue;
    names.push_back(plan.tensors[id].name);
    EXPECT_EQ(plan.tensors[copies[id]].name, names.back() + ".bf16");
  }
  return names;
}

// With two micro-batches to a step copies outlive it.
v1::JobSpec InTwoMicroBatches(v1::JobSpec spec) {
  spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 2);
  return spec;
}

TEST(Precision, OfATransformerLeavesItsStreamInFp32) {
  const Plan plan = InBf16(GptSpec(), TokenFacts(11));
  for (const auto* ops : {&plan.micro, &plan.evaluate}) {
    for (const auto& o : OpsOf<EmbeddingForward>(*ops)) EXPECT_EQ(TypeOf(plan, o.y), kF32);
    for (const auto& o : OpsOf<LayerNormForward>(*ops)) {
      EXPECT_EQ(TypeOf(plan, o.x), kF32);
      EXPECT_EQ(TypeOf(plan, o.y), kBF16);
      EXPECT_EQ(TypeOf(plan, o.gamma), kF32);
    }
    for (const auto& o : OpsOf<AttentionForward>(*ops)) {
      EXPECT_EQ(TypeOf(plan, o.y), kBF16);
      EXPECT_EQ(TypeOf(plan, o.lse), kF32);
    }
    for (const auto& o : OpsOf<ActivationForward>(*ops)) EXPECT_EQ(TypeOf(plan, o.y), kBF16);
  }
  int sums = 0;
  for (const auto& o : OpsOf<LayerNormForward>(plan.evaluate)) {
    if (o.residual == kNone) continue;
    ++sums;
    EXPECT_EQ(TypeOf(plan, o.residual), kBF16);
    EXPECT_EQ(TypeOf(plan, o.sum), kF32);
  }
  EXPECT_EQ(sums, 4);
  for (const auto& o : OpsOf<LayerNormBackward>(plan.micro)) {
    EXPECT_EQ(TypeOf(plan, o.dy), kBF16);
    EXPECT_EQ(TypeOf(plan, o.dx), kF32);
  }
}

TEST(Precision, DropoutOfTheStreamIsFp32AndOfABranchNot) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  const Plan plan = InBf16(spec, TokenFacts(11));
  for (const auto& o : OpsOf<Dropout>(plan.micro)) {
    const bool stream = absl::StrContains(plan.tensors[o.y].name, "transformer.drop") ||
                        absl::StrContains(plan.tensors[o.y].name, "d(transformer.embedding");
    EXPECT_EQ(TypeOf(plan, o.y), stream ? kF32 : kBF16) << plan.tensors[o.y].name;
  }
}

TEST(Precision, LogitsAreNarrowInTrainingAndWideInEvaluation) {
  const Plan plan = InBf16(GptSpec(), TokenFacts(11));
  const CrossEntropy loss = OpsOf<CrossEntropy>(plan.micro)[0];
  EXPECT_EQ(TypeOf(plan, loss.logits), kBF16);
  EXPECT_EQ(TypeOf(plan, loss.dlogits), kBF16);
  EXPECT_EQ(TypeOf(plan, loss.losses), kF32);
  EXPECT_EQ(TypeOf(plan, plan.eval_logits), kF32);
}

// In a step of one micro-batch some gradients do not: narrow_gradients_test.cc.
TEST(Precision, ParametersAndTheirGradientsStayFp32) {
  for (const Plan& plan : {InBf16(InTwoMicroBatches(GptSpec()), TokenFacts(11)),
                           InBf16(InTwoMicroBatches(ResnetSpec()), ImageFacts(32, 32, 3, 10)),
                           InBf16(InTwoMicroBatches(DlrmSpec()), ClickFacts(5, 3, 7))}) {
    for (const auto& ids :
         {plan.parameters, plan.gradients, plan.buffers, plan.optimizer_state[0]}) {
      for (const TensorId id : ids) EXPECT_EQ(TypeOf(plan, id), kF32) << plan.tensors[id].name;
    }
  }
}

TEST(Precision, OnlyWeightsOfProductsHaveCopies) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_layers(1);
  const std::string h = "transformer.h.0.";
  EXPECT_THAT(CopiedNames(InBf16(spec, TokenFacts(11))),
              ElementsAre(h + "attn.c_attn.weight", h + "attn.c_proj.weight", h + "mlp.c_fc.weight",
                          h + "mlp.c_proj.weight", "transformer.wte.weight"));
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  EXPECT_THAT(CopiedNames(InBf16(spec, TokenFacts(11))),
              ElementsAre(h + "attn.c_attn.weight", h + "attn.c_proj.weight", h + "mlp.c_fc.weight",
                          h + "mlp.c_proj.weight", "lm_head.weight"));
}

TEST(Precision, TheStepThatChangesWeightsWritesTheirCopies) {
  v1::JobSpec spec = InTwoMicroBatches(GptSpec());
  for (const bool adam : {true, false}) {
    if (!adam) spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    const Plan plan = InBf16(spec, TokenFacts(11));
    std::vector<TensorId> copied, written;
    for (const auto& o : OpsOf<AdamWStep>(plan.end))
      copied.push_back(o.w), written.push_back(o.copy);
    for (const auto& o : OpsOf<SgdStep>(plan.end)) copied.push_back(o.w), written.push_back(o.copy);
    EXPECT_EQ(copied[0], plan.parameters[0]);
    EXPECT_EQ(written[0], plan.copies[0]);
    EXPECT_EQ(copied[1], plan.parameters[CopiedNames(plan).size()]);
    for (size_t i = 1; i < written.size(); ++i) EXPECT_EQ(written[i], kNone);
    const std::vector<Cast> casts = OpsOf<Cast>(plan.copy);
    ASSERT_EQ(casts.size(), 1u);
    EXPECT_EQ(casts[0].x, plan.parameters[0]);
    EXPECT_EQ(casts[0].y, plan.copies[0]);
    EXPECT_EQ(Align(casts[0].n * 2), plan.copy_region.bytes);
  }
}

// Bytes [first, second) of the arena that hold the n elements from `id` on.
std::pair<int64_t, int64_t> RunOf(const Plan& plan, TensorId id, int64_t n) {
  return {plan.offsets[id], plan.offsets[id] + n * SizeOf(TypeOf(plan, id))};
}

// Frozen parameters keep theirs; all others' are written after the ops that change them.
TEST(Precision, EveryOptimizerWritesTheCopiesOfWhatItTrains) {
  for (const char* optimizer : {"adamw {}", "sgd { momentum: 0.9 }", "lamb {}", "muon {}"}) {
    SCOPED_TRACE(optimizer);
    v1::JobSpec spec = InTwoMicroBatches(GptSpec());
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(optimizer, spec.mutable_optimizer()));
    v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
    frozen.set_pattern("*.h.1.*");
    frozen.set_frozen(true);
    const Plan plan = InBf16(spec, TokenFacts(11));
    size_t found = 0;
    for (size_t i = 0; i < plan.copies.size(); ++i) {
      const TensorId copy = plan.copies[i];
      if (copy == kNone) continue;
      int writers = 0;
      const auto count = [&](TensorId first, int64_t n) {
        if (first == kNone) return;
        const auto [begin, end] = RunOf(plan, first, n);
        writers += begin <= plan.offsets[copy] && plan.offsets[copy] < end ? 1 : 0;
      };
      for (const auto& o : OpsOf<AdamWStep>(plan.end)) count(o.copy, o.n);
      for (const auto& o : OpsOf<SgdStep>(plan.end)) count(o.copy, o.n);
      for (const auto& o : OpsOf<Cast>(plan.end)) count(o.y, o.n);
      EXPECT_EQ(writers, i < plan.trained ? 1 : 0) << plan.tensors[copy].name;
      found += i < plan.trained ? 0 : 1;
      for (const auto& o : OpsOf<Cast>(plan.copy)) count(o.y, o.n);
      EXPECT_EQ(writers, i < plan.trained ? 2 : 1) << plan.tensors[copy].name;
    }
    EXPECT_EQ(found, 4u);  // of the frozen layer
  }
}

// A weight is read in the type of the products by what its own step cast, right before.
TEST(Precision, AStepOfOneMicroBatchCastsTheWeightsItTrains) {
  v1::JobSpec spec = GptSpec();
  v1::ParameterGroup& frozen = *spec.mutable_optimizer()->add_groups();
  frozen.set_pattern("*.h.1.*");
  frozen.set_frozen(true);
  const Plan plan = InBf16(spec, TokenFacts(11));
  std::set<TensorId> cast, kept(plan.copies.begin(), plan.copies.end());
  kept.erase(kNone);
  EXPECT_EQ(kept.size(), 4u);  // of the frozen layer
  std::set<TensorId> weights;
  for (const Op& op : plan.micro) {
    if (const auto* o = std::get_if<Cast>(&op); o != nullptr) {
      if (plan.tensors[o->x].kind == TensorKind::kParameter) weights.insert(o->x);
      cast.insert(o->y);
    }
    const auto* product = std::get_if<Matmul>(&op);
    if (product == nullptr || product->transpose_a) continue;
    EXPECT_TRUE(cast.contains(product->b) || kept.contains(product->b))
        << plan.tensors[product->b].name;
  }
  EXPECT_EQ(weights.size(), 5u);
  EXPECT_EQ(OpsOf<Cast>(plan.copy).size(), 1u);
  for (const auto& o : OpsOf<AdamWStep>(plan.end)) EXPECT_EQ(o.copy, kNone);
  // Evaluation casts them once, for all of its batches.
  EXPECT_EQ(plan.evaluate_begin.size(), 5u);
  for (const auto& o : OpsOf<Cast>(plan.evaluate)) {
    EXPECT_NE(plan.tensors[o.x].kind, TensorKind::kParameter) << plan.tensors[o.x].name;
  }
}

TEST(Precision, EvaluationReadsTheAveragesInSixteenBitsWhereThereAreSome) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_training()->set_ema_decay(0.9);
  const Plan plan = InBf16(spec, TokenFacts(11));
  std::set<TensorId> averages(plan.averages.begin(), plan.averages.end());
  for (const auto& o : OpsOf<Cast>(plan.evaluate_begin)) averages.erase(o.x);
  for (const auto& o : OpsOf<Matmul>(plan.evaluate)) {
    EXPECT_EQ(std::count(plan.copies.begin(), plan.copies.end(), o.b), 0);
    EXPECT_EQ(TypeOf(plan, o.b), kBF16);
  }
  EXPECT_EQ(averages.size(), plan.averages.size() - CopiedNames(plan).size());
}

// What it cannot run in 16 bits it runs in fp32, whatever model is asked for.
TEST(Precision, OfEveryFamilyHasAPlan) {
  const std::pair<v1::JobSpec, DataFacts> cases[] = {
      {MlpSpec(), ImageFacts(6, 4, 3, 7)},
      {ConvnetSpec(), ImageFacts(28, 28, 1, 7)},
      {ResnetSpec(), ImageFacts(32, 32, 3, 7)},
      {MobilenetSpec(), ImageFacts(32, 32, 3, 7)},
      {VitSpec(), ImageFacts(6, 4, 3, 7)},
      {GptSpec(), TokenFacts(11)},
      {LlamaSpec(), TokenFacts(11)},
      {BertSpec(), DocumentFacts(13)},
      {DlrmSpec(), ClickFacts(5, 3, 7)},
      {ImageLayersSpec(), ImageFacts(17, 15, 3, 7)},
      {TokenLayersSpec(), TokenFacts(13)},
  };
  for (const auto& [spec, facts] : cases) {
    const Plan plan = InBf16(spec, facts);
    for (const auto* ops : {&plan.micro, &plan.evaluate}) {
      for (const auto& o : OpsOf<Matmul>(*ops)) EXPECT_EQ(TypeOf(plan, o.a), kBF16);
      for (const auto& o : OpsOf<AddBias>(*ops)) EXPECT_EQ(TypeOf(plan, o.y), kF32);
      for (const auto& o : OpsOf<Concat>(*ops)) EXPECT_EQ(TypeOf(plan, o.y), kF32);
    }
  }
}

TEST(Precision, OfAResnetCastsNothing) {
  const Plan plan = InBf16(InTwoMicroBatches(ResnetSpec()), ImageFacts(32, 32, 3, 10));
  for (const auto* ops : {&plan.micro, &plan.evaluate}) {
    EXPECT_TRUE(OpsOf<Cast>(*ops).empty());
    const std::vector<NormalizeImages> images = OpsOf<NormalizeImages>(*ops);
    ASSERT_EQ(images.size(), 1u);
    EXPECT_EQ(TypeOf(plan, images[0].y), kBF16);
    EXPECT_EQ(plan.tensors[images[0].y].name, "images");
    EXPECT_EQ(OpsOf<ConvolutionForward>(*ops)[0].x, images[0].y);
  }
  for (const auto& o : OpsOf<BatchNormForward>(plan.micro)) {
    EXPECT_EQ(TypeOf(plan, o.y), kBF16);
    EXPECT_EQ(TypeOf(plan, o.mean), kF32);
  }
  EXPECT_EQ(TypeOf(plan, OpsOf<MeanPoolForward>(plan.micro)[0].y), kBF16);
}

// A layer norm reads them in fp32, the convolution beside it in bf16.
TEST(Precision, ImagesStayFp32WhereSomethingReadsThemSo) {
  v1::JobSpec spec = MlpSpec();
  *spec.mutable_model()->mutable_layers() = LayersOf(R"(
    layers { name: "norm" layer_norm {} }
    layers { name: "convolved" inputs: "input" convolution { out: 3 kernel: 1 } }
    layers { inputs: "norm" inputs: "convolved" add {} }
    layers { flatten {} }
    layers { linear {} }
  )");
  const Plan plan = InBf16(InTwoMicroBatches(spec), ImageFacts(5, 4, 3, 7));
  for (const auto* ops : {&plan.micro, &plan.evaluate}) {
    const TensorId images = OpsOf<NormalizeImages>(*ops)[0].y;
    EXPECT_EQ(TypeOf(plan, images), kF32);
    EXPECT_EQ(OpsOf<LayerNormForward>(*ops)[0].x, images);
    EXPECT_EQ(OpsOf<Cast>(*ops)[0].x, images);
    EXPECT_EQ(OpsOf<ConvolutionForward>(*ops)[0].x, OpsOf<Cast>(*ops)[0].y);
  }
}

TEST(Precision, OfADlrmGathersInFp32AndLeavesOneLogitInFp32) {
  const Plan plan = InBf16(DlrmSpec(), ClickFacts(5, 3, 7));
  EXPECT_EQ(TypeOf(plan, OpsOf<EmbeddingTablesForward>(plan.micro)[0].y), kF32);
  const InteractionForward products = OpsOf<InteractionForward>(plan.micro)[0];
  EXPECT_EQ(TypeOf(plan, products.e), kBF16);
  EXPECT_EQ(TypeOf(plan, products.y), kBF16);
  const BinaryCrossEntropy loss = OpsOf<BinaryCrossEntropy>(plan.micro)[0];
  EXPECT_EQ(TypeOf(plan, loss.logits), kF32);
  for (const std::string& name : CopiedNames(plan)) {
    EXPECT_FALSE(absl::StartsWith(name, "emb_l")) << name;
  }
}

TEST(Precision, NoTensorIsCastTwiceInTheForwardPass) {
  for (const Plan& plan :
       {InBf16(LlamaSpec(), TokenFacts(11)), InBf16(DlrmSpec(), ClickFacts(5, 3, 7)),
        InBf16(ConvnetSpec(), ImageFacts(28, 28, 1, 10))}) {
    std::set<TensorId> seen;
    for (const auto* ops : {&plan.evaluate_begin, &plan.evaluate}) {
      for (const Cast& o : OpsOf<Cast>(*ops)) EXPECT_TRUE(seen.insert(o.x).second);
    }
  }
}

TEST(Precision, OfFp32ChangesNothing) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  EXPECT_TRUE(CopiedNames(plan).empty() && plan.copy.empty());
  EXPECT_TRUE(OpsOf<Cast>(plan.micro).empty());
  EXPECT_FALSE(plan.loss_scaling);
}

TEST(Precision, OnlyFp16ScalesItsLoss) {
  for (const auto& [compute, scaled] :
       {std::pair{v1::Precision::BF16, false}, std::pair{v1::Precision::FP16, true}}) {
    const Plan plan = PlanOf(In(GptSpec(), compute), TokenFacts(11));
    EXPECT_EQ(plan.loss_scaling, scaled);
    const TensorId state = scaled ? plan.state : kNone;
    EXPECT_EQ(OpsOf<CrossEntropy>(plan.micro)[0].state, state);
    EXPECT_EQ(OpsOf<CrossEntropy>(plan.evaluate)[0].state, kNone);
    EXPECT_EQ(OpsOf<ClipScale>(plan.norm)[0].state, state);
    // What takes the scale out again is read by the update, also without clipping.
    EXPECT_EQ(OpsOf<AdamWStep>(plan.end)[0].grad_scale, OpsOf<ClipScale>(plan.norm)[0].scale);
  }
}

// x + w1 norm(x), twice with the norm after the sum: the norms' results are the stream.
TEST(Precision, ANormThatEndsABlockLeavesTheStreamInFp32) {
  Graph graph;
  const auto activation = [&](const char* name) {
    return graph.Add({.name = name, .dims = {4, 4}});
  };
  const auto parameter = [&](const char* name) {
    return graph.Add({.name = name, .dims = {4, 4}, .kind = TensorKind::kParameter});
  };
  const TensorId ids =
      graph.Add({.type = ElementType::kI32, .dims = {4}, .kind = TensorKind::kInput});
  const TensorId table = parameter("table"), w1 = parameter("w1"), w2 = parameter("w2");
  const TensorId x = activation("x"), first = activation("first"), dropped = activation("dropped"),
                 branch = activation("branch"), sum = activation("sum"), last = activation("last"),
                 logits = activation("logits");
  graph.ops = {EmbeddingForward{.ids = ids, .tokens = table, .y = x},
               LayerNormForward{.x = x, .y = first},
               Dropout{.x = first, .y = dropped},
               Matmul{.a = dropped, .b = w1, .c = branch},
               Add{.a = branch, .b = dropped, .y = sum},
               LayerNormForward{.x = sum, .y = last},
               Matmul{.a = last, .b = w2, .c = logits}};
  absl::flat_hash_map<TensorId, TensorId> copies;
  EXPECT_EQ(ApplyPrecision({.type = kBF16, .logits = logits, .of_logits = kBF16}, graph, copies),
            logits);
  for (const TensorId id : {x, first, dropped, sum})
    EXPECT_EQ(graph[id].type, kF32) << graph[id].name;
  for (const TensorId id : {branch, last, logits})
    EXPECT_EQ(graph[id].type, kBF16) << graph[id].name;
  EXPECT_EQ(copies.size(), 2u);
  const Add after = OpsOf<Add>(graph.ops)[0];
  EXPECT_EQ(after.a, dropped);  // the fp32 side comes first
  EXPECT_EQ(after.b, branch);
  ASSERT_EQ(OpsOf<Cast>(graph.ops).size(), 1u);
  EXPECT_EQ(OpsOf<Cast>(graph.ops)[0].x, dropped);
}

TEST(Precision, LogitsThatNoProductMadeAreCastWhereFp32IsAsked) {
  Graph graph;
  const TensorId x = graph.Add({.name = "x", .dims = {4, 4}, .kind = TensorKind::kInput});
  const TensorId w = graph.Add({.name = "w", .dims = {4, 4}, .kind = TensorKind::kParameter});
  const TensorId y = graph.Add({.name = "y", .dims = {4, 4}});
  const TensorId logits = graph.Add({.name = "logits", .dims = {4, 4}});
  graph.ops = {Matmul{.a = x, .b = w, .c = y},
               ActivationForward{.kind = ActivationKind::kRelu, .x = y, .y = logits}};
  absl::flat_hash_map<TensorId, TensorId> copies;
  const TensorId wide = ApplyPrecision({.type = kBF16, .logits = logits}, graph, copies);
  EXPECT_NE(wide, logits);
  EXPECT_EQ(graph[wide].type, kF32);
  EXPECT_EQ(std::get<Cast>(graph.ops.back()).y, wide);
}

}  // namespace
}  // namespace trainyard::plan
