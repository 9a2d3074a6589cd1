// The backward ops of whole models against central differences of the loss, in double precision:
// right whatever the kernels do.

#include "executor/plan/ops/gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;

// A model with random parameters and a batch of random samples.
class Model {
 public:
  Model(const v1::JobSpec& spec, const DataFacts& facts)
      : plan(PlanOf(spec, facts)), machine(plan) {
    machine.state = {.seed = 5, .step = 3};
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal(0, 0.5);
    for (const TensorId id : plan.parameters) {
      Vec w(plan.tensors[id].elements());
      const Tensor& tensor = plan.tensors[id];
      // Most relus after a batch norm are on, so that none of a deep model's channels is dead.
      const double mean = tensor.init_value + absl::EndsWith(tensor.name, "normalization.bias");
      for (double& v : w) v = mean + normal(random);
      machine.Write(id, w);
    }
    const int64_t rows = plan.micro_batches * plan.micro_batch * plan.rows_per_sample;
    inputs.resize(plan.micro_batches * plan.tensors[plan.input].elements());
    targets.resize(rows);
    const int64_t classes = plan.tokens ? facts.vocab : facts.classes;
    const bool images = facts.kind == DataFacts::Kind::kImages;
    // What is normalised is as the weights are; here a byte need not be whole.
    for (double& v : inputs) {
      v = images ? 127.5 * (1 + normal(random)) : static_cast<double>(random() % classes);
    }
    for (double& v : targets) v = static_cast<double>(random() % classes);
    if (facts.kind != DataFacts::Kind::kDocuments) return;
    // Some rows do not count, and some places are padding.
    for (double& v : targets) v = random() % 3 == 0 ? -1 : v;
    lengths.resize(plan.micro_batches * plan.micro_batch);
    const int64_t context = plan.rows_per_sample;
    for (double& v : lengths) v = 1.0 + static_cast<double>(random() % context);
  }

  // The mean loss of the step; gradients are left in the arena.
  double Step() {
    machine.Run(plan.copy);
    machine.Run(plan.begin);
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      machine.state.first_sample = i * plan.micro_batch;
      machine.Write(plan.input, Part(inputs, i));
      if (!lengths.empty()) machine.Write(plan.ids, Part(lengths, i));
      machine.Write(plan.target, Part(targets, i));
      machine.Run(plan.micro);
    }
    return machine.Read(plan.loss_sum)[0] / static_cast<double>(targets.size());
  }

  Vec Part(const Vec& all, int64_t i) const {
    const auto n = static_cast<int64_t>(all.size()) / plan.micro_batches;
    return Vec(all.begin() + i * n, all.begin() + (i + 1) * n);
  }

  const Plan plan;
  Interpreter machine;  // its state: seed 5, step 3
  Vec inputs, targets, lengths;
};

struct Differences {
  size_t elements = 1 << 30;  // of each parameter, the one of the largest gradient among them
  size_t every = 1;           // of so many parameters one is looked at
  double step = 1e-5;         // of one: small enough that a deep model's relus stay on their side
  std::string without = " ";  // parameters so called cannot matter: a norm takes every shift away
};

// With as much recomputed as can be, over two steps: memory that a step leaves behind must not
// matter.
void ExpectTheSameGradientsRecomputed(v1::JobSpec spec, const DataFacts& facts,
                                      const std::vector<Vec>& gradients) {
  Recomputing(facts, spec);
  Model model(spec, facts);
  model.Step();
  model.Step();
  for (size_t p = 0; p < gradients.size(); ++p) {
    const Vec g = model.machine.Read(model.plan.gradients[p]);
    for (size_t i = 0; i < g.size(); ++i) {
      ASSERT_NEAR(g[i], gradients[p][i], 1e-10 * (1 + std::abs(g[i])))
          << model.plan.tensors[model.plan.gradients[p]].name << "[" << i << "], recomputed";
    }
  }
}

void ExpectGradientsMatchDifferences(const v1::JobSpec& spec, const DataFacts& facts,
                                     const Differences& how = {}) {
  Model model(spec, facts);
  model.Step();
  std::vector<Vec> gradients;
  for (const TensorId id : model.plan.gradients) gradients.push_back(model.machine.Read(id));
  ExpectTheSameGradientsRecomputed(spec, facts, gradients);

  for (size_t p = 0; p < gradients.size(); p += how.every) {
    const TensorId id = model.plan.parameters[p];
    const Vec w = model.machine.Read(id);
    const size_t stride = std::max<size_t>(1, w.size() / how.elements);
    const auto largest =
        std::max_element(gradients[p].begin(), gradients[p].begin() + w.size(),
                         [](double a, double b) { return std::abs(a) < std::abs(b); });
    double norm = 0;
    for (size_t i = (largest - gradients[p].begin()) % stride; i < w.size(); i += stride) {
      Vec moved = w;
      moved[i] = w[i] + how.step;
      model.machine.Write(id, moved);
      const double above = model.Step();
      moved[i] = w[i] - how.step;
      model.machine.Write(id, moved);
      const double below = model.Step();
      const double expected = (above - below) / (2 * how.step);
      ASSERT_NEAR(gradients[p][i], expected, 1e-8 + 1e-5 * std::abs(expected))
          << model.plan.tensors[id].name << "[" << i << "]";
      norm += std::abs(expected);
    }
    model.machine.Write(id, w);
    if (absl::EndsWith(model.plan.tensors[id].name, how.without)) continue;
    EXPECT_GT(norm, 0) << model.plan.tensors[id].name
                       << " does not matter: the check shows nothing";
  }
}

TEST(Gradient, OfMlpMatchesDifferences) {
  v1::JobSpec spec = MlpSpec();
  ExpectGradientsMatchDifferences(spec, ImageFacts(3, 2, 1, 4));
}

TEST(Gradient, OfMlpWithGeluDropoutAndMicroBatchesMatchesDifferences) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_model()->mutable_mlp()->add_hidden(4);
  spec.mutable_model()->mutable_mlp()->set_activation(v1::GELU);
  spec.mutable_model()->mutable_mlp()->set_dropout(0.3);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectGradientsMatchDifferences(spec, ImageFacts(3, 2, 1, 4));
}

TEST(Gradient, OfMlpWithReluAndDropoutMatchesDifferences) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_model()->mutable_mlp()->set_dropout(0.5);
  ExpectGradientsMatchDifferences(spec, ImageFacts(3, 2, 1, 4));
}

TEST(Gradient, OfLinearModelMatchesDifferences) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_model()->mutable_mlp()->clear_hidden();
  ExpectGradientsMatchDifferences(spec, ImageFacts(3, 2, 1, 4));
}

TEST(Gradient, OfSmoothedLabelsAndZLossMatchesDifferences) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_training()->set_label_smoothing(0.2);
  spec.mutable_training()->set_z_loss(0.1);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectGradientsMatchDifferences(spec, ImageFacts(3, 2, 1, 4));
}

// Whose logits lie in rows apart.
TEST(Gradient, OfModelsForGpusMatchesDifferences) {
  v1::JobSpec gpt = GptSpec(), bert = BertSpec();
  gpt.mutable_resources()->set_device(v1::Resources::CUDA);
  bert.mutable_model()->mutable_bert()->set_token_types(1);
  bert.mutable_resources()->set_device(v1::Resources::CUDA);
  ExpectGradientsMatchDifferences(gpt, TokenFacts(62), {.elements = 8});
  ExpectGradientsMatchDifferences(bert, DocumentFacts(61), {.elements = 8});
}

TEST(Gradient, OfConvnetMatchesDifferences) {
  ExpectGradientsMatchDifferences(ConvnetSpec(), ImageFacts(5, 4, 2, 3));
}

TEST(Gradient, OfDeepConvnetWithDropoutAndMicroBatchesMatchesDifferences) {
  v1::JobSpec spec = ConvnetSpec();
  v1::Convnet& convnet = *spec.mutable_model()->mutable_convnet();
  convnet.mutable_stages(0)->set_convolutions(2);
  v1::Convnet::Stage& second = *convnet.add_stages();
  second.set_channels(2);
  second.set_kernel(1);
  second.set_pool(1);
  convnet.set_dropout(0.25);
  convnet.set_activation(v1::GELU_TANH);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectGradientsMatchDifferences(spec, ImageFacts(6, 5, 1, 3));
}

TEST(Gradient, OfResnetWithMicroBatchesMatchesDifferences) {
  v1::JobSpec spec = ResnetSpec();
  spec.mutable_model()->mutable_resnet()->set_width(3);
  spec.mutable_training()->set_micro_batch_size(3);
  ExpectGradientsMatchDifferences(spec, ImageFacts(17, 15, 2, 3), {.elements = 2, .step = 1e-6});
}

TEST(Gradient, OfResnetOfBottlenecksMatchesDifferences) {
  v1::JobSpec spec = ResnetSpec();
  spec.mutable_model()->mutable_resnet()->set_depth(50);
  spec.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
  spec.mutable_model()->mutable_resnet()->set_width(2);
  spec.mutable_training()->set_batch_size(4);
  ExpectGradientsMatchDifferences(spec, ImageFacts(33, 33, 1, 3), {.elements = 1, .step = 1e-6});
}

// Tied or not, with or without biases, 1 and 3 micro-batches, with dropout.
struct GptCase {
  bool tied, bias;
  int micro;
  double dropout;
};

class GptGradient : public testing::TestWithParam<GptCase> {};

TEST_P(GptGradient, MatchesDifferences) {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_width(4);
  gpt.set_context(3);
  gpt.set_mlp_width(6);
  gpt.set_tie_embeddings(GetParam().tied);
  gpt.set_bias(GetParam().bias);
  gpt.set_dropout(GetParam().dropout);
  spec.mutable_training()->set_batch_size(3);
  spec.mutable_training()->set_micro_batch_size(GetParam().micro);
  ExpectGradientsMatchDifferences(spec, TokenFacts(5));
}

INSTANTIATE_TEST_SUITE_P(Gradient, GptGradient,
                         testing::Values(GptCase{true, true, 3, 0}, GptCase{true, false, 1, 0},
                                         GptCase{false, true, 1, 0}, GptCase{false, false, 3, 0},
                                         GptCase{true, true, 1, 0.2},
                                         GptCase{false, true, 3, 0.2}));

TEST(Gradient, OfLlamaMatchesDifferences) {
  for (const bool tied : {false, true}) {
    v1::JobSpec spec = LlamaSpec();
    spec.mutable_model()->mutable_llama()->set_tie_embeddings(tied);
    spec.mutable_training()->set_batch_size(2);
    spec.mutable_training()->set_micro_batch_size(tied ? 1 : 2);
    ExpectGradientsMatchDifferences(spec, TokenFacts(5));
  }
}

TEST(Gradient, OfVitWithDropoutAndMicroBatchesMatchesDifferences) {
  v1::JobSpec spec = VitSpec();
  spec.mutable_model()->mutable_vit()->set_dropout(0.2);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectGradientsMatchDifferences(spec, ImageFacts(4, 6, 2, 3), {.elements = 12});
}

TEST(Gradient, OfBertWithPaddingMatchesDifferences) {
  for (const int micro : {6, 2}) {
    v1::JobSpec spec = BertSpec();
    spec.mutable_model()->mutable_bert()->set_dropout(micro == 2 ? 0.2 : 0);
    spec.mutable_model()->mutable_bert()->set_token_types(1);
    spec.mutable_training()->set_micro_batch_size(micro);
    ExpectGradientsMatchDifferences(spec, DocumentFacts(5), {.elements = 12});
  }
}

// Every token is of type 0: the rows of other types have no gradient.
TEST(Gradient, OfTokenTypesIsThatOfTheFirst) {
  for (const int micro : {6, 2}) {
    v1::JobSpec spec = BertSpec();
    spec.mutable_training()->set_micro_batch_size(micro);
    Model model(spec, DocumentFacts(5));
    model.Step();
    model.Step();
    for (size_t p = 0; p < model.plan.parameters.size(); ++p) {
      const Tensor& tensor = model.plan.tensors[model.plan.parameters[p]];
      if (tensor.name != "bert.embeddings.token_type_embeddings.weight") continue;
      const Vec g = model.machine.Read(model.plan.gradients[p]);
      ASSERT_EQ(g.size(), 16u);
      for (int i = 0; i < 8; ++i) {
        EXPECT_NE(g[i], 0);
        EXPECT_EQ(g[8 + i], 0);
      }
    }
  }
}

TEST(Gradient, OfMobilenetMatchesDifferences) {
  v1::JobSpec spec = MobilenetSpec();
  spec.mutable_model()->mutable_mobilenet()->set_width(0.05);
  spec.mutable_training()->set_batch_size(4);
  spec.mutable_training()->set_micro_batch_size(2);
  ExpectGradientsMatchDifferences(
      spec, ImageFacts(9, 10, 1, 3),
      {.elements = 1, .every = 7, .step = 1e-6, .without = ".reduce_1x1.normalization.bias"});
}

TEST(Gradient, OfListsOfLayersMatchesDifferences) {
  for (const int micro : {6, 3}) {
    v1::JobSpec images = ImageLayersSpec(), tokens = TokenLayersSpec();
    images.mutable_training()->set_micro_batch_size(micro);
    tokens.mutable_training()->set_micro_batch_size(micro);
    ExpectGradientsMatchDifferences(images, ImageFacts(5, 4, 2, 3), {.elements = 40});
    ExpectGradientsMatchDifferences(tokens, TokenFacts(5), {.elements = 40});
  }
}

// Adapters of everything that has them, of some parts of a product and with norms trained beside
// them; with dropout, over one and several micro-batches.
TEST(Gradient, OfAdaptersMatchesDifferences) {
  const auto check = [](v1::JobSpec spec, const DataFacts& facts,
                        const std::vector<std::string>& targets, const Differences& how = {}) {
    v1::Lora& lora = *spec.mutable_fine_tune()->mutable_lora();
    lora.set_rank(2);
    lora.set_alpha(3);
    for (const std::string& target : targets) lora.add_targets(target);
    for (const int micro : {6, 2}) {
      spec.mutable_training()->set_micro_batch_size(micro);
      lora.set_dropout(micro == 2 ? 0.3 : 0);
      ExpectGradientsMatchDifferences(spec, facts, how);
    }
    if (!spec.model().has_llama()) return;
    lora.add_also_train("*layernorm.weight");
    lora.add_also_train("model.embed_tokens.weight");
    ExpectGradientsMatchDifferences(spec, facts, how);
  };
  v1::JobSpec gpt = GptSpec();
  gpt.mutable_model()->mutable_gpt()->set_dropout(0.2);
  check(gpt, TokenFacts(5), {}, {.elements = 12, .step = 1e-6});
  check(LlamaSpec(), TokenFacts(5), {}, {.elements = 12});
  check(LlamaSpec(), TokenFacts(5), {"*.q_proj.weight", "*.v_proj.weight", "*.up_proj.weight"});
  check(BertSpec(), DocumentFacts(5), {"*.dense.weight", "*.query.weight"}, {.elements = 12});
  check(VitSpec(), ImageFacts(4, 6, 2, 3), {}, {.elements = 12});
  check(MlpSpec(), ImageFacts(3, 2, 1, 4), {});
  check(ConvnetSpec(), ImageFacts(5, 4, 2, 3), {});
  check(TokenLayersSpec(), TokenFacts(5), {}, {.elements = 12});
}

TEST(Gradient, IsTheSameForAnyCutIntoMicroBatches) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.2);
  Model whole(spec, TokenFacts(11));
  spec.mutable_training()->set_micro_batch_size(2);
  Model cut(spec, TokenFacts(11));
  ASSERT_EQ(cut.plan.micro_batches, 3);
  EXPECT_NEAR(whole.Step(), cut.Step(), 1e-12);
  for (size_t p = 0; p < whole.plan.gradients.size(); ++p) {
    const Vec a = whole.machine.Read(whole.plan.gradients[p]);
    const Vec b = cut.machine.Read(cut.plan.gradients[p]);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-12);
  }
}

TEST(Gradient, OfASecondStepOwesNothingToTheFirst) {
  Model model(GptSpec(), TokenFacts(11));
  model.Step();
  std::vector<Vec> first;
  for (const TensorId id : model.plan.gradients) first.push_back(model.machine.Read(id));
  model.Step();
  for (size_t p = 0; p < first.size(); ++p) {
    EXPECT_EQ(model.machine.Read(model.plan.gradients[p]), first[p]);
  }
}

TEST(Gradient, EvaluationSeesTheLossOfTrainingWithoutItsDropout) {
  v1::JobSpec spec = GptSpec();
  Model model(spec, TokenFacts(11));
  const double trained = model.Step();
  model.machine.Write(model.plan.eval_input, model.inputs);
  model.machine.Write(model.plan.eval_target, model.targets);
  model.machine.Run(model.plan.evaluate_begin);
  model.machine.Run(model.plan.evaluate);
  double sum = 0;
  for (const double loss : model.machine.Read(model.plan.eval_losses)) sum += loss;
  EXPECT_NEAR(sum / static_cast<double>(model.targets.size()), trained, 1e-12);
  // Nothing ran over the logits after they were made.
  for (const double v : model.machine.Read(model.plan.eval_logits)) EXPECT_TRUE(std::isfinite(v));
}

// --- structure ---------------------------------------------------------------------------------

TensorId GradientNamed(const Plan& plan, const std::string& parameter) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.tensors[plan.parameters[i]].name == parameter) return plan.gradients[i];
  }
  return kNone;
}

TEST(Gradient, OfInputsIsNeverComputed) {
  const Plan plan = PlanOf(ConvnetSpec(), ImageFacts(6, 6, 1, 3));
  EXPECT_EQ(OpsOf<ConvolutionBackwardWeights>(plan.micro).size(), 1u);
  EXPECT_TRUE(OpsOf<ConvolutionBackwardData>(plan.micro).empty());
  for (const Tensor& tensor : plan.tensors) {
    EXPECT_FALSE(tensor.name == "d(images)" || tensor.name == "d(input)");
  }
}

TEST(Gradient, OfBatchNormKeepsAnOutputOnlyForReluAndBranchesOnlyThen) {
  const Plan plan = PlanOf(ResnetSpec(), ImageFacts(28, 28, 1, 10));
  int shortcuts = 0, branches = 0;
  for (const BatchNormBackward& o : OpsOf<BatchNormBackward>(plan.micro)) {
    shortcuts += o.y == kNone;
    branches += o.dresidual != kNone;
  }
  EXPECT_EQ(shortcuts, 3);  // no relu after them
  EXPECT_EQ(branches, 8);   // one per block
  // Where a block's input is read twice the two gradients are added, and nothing else is.
  EXPECT_EQ(OpsOf<Add>(plan.micro).size(), 8u);
}

TEST(Gradient, EvaluationTakesTheRunningStatistics) {
  Model model(ResnetSpec(), ImageFacts(6, 5, 1, 3));
  const auto evaluate = [&] {
    model.machine.Write(model.plan.eval_input, model.inputs);
    model.machine.Write(model.plan.eval_target, model.targets);
    model.machine.Run(model.plan.evaluate_begin);
    model.machine.Run(model.plan.evaluate);
    return model.machine.Read(model.plan.eval_losses);
  };
  const auto statistics = [&] {
    std::vector<Vec> all;
    for (const TensorId id : model.plan.buffers) all.push_back(model.machine.Read(id));
    return all;
  };
  for (const TensorId id : model.plan.buffers) {
    const Tensor& t = model.plan.tensors[id];
    model.machine.Write(id, Vec(t.elements(), t.init_value));
  }
  const Vec first = evaluate();
  const std::vector<Vec> untouched = statistics();
  const auto take = [&] {  // of the end of a step what moves buffers alone
    for (const Op& op : model.plan.end) {
      if (std::holds_alternative<CopyIfTaken>(op)) model.machine.Run({op});
    }
  };
  model.Step();
  EXPECT_EQ(statistics(), untouched) << "a step that is not taken moves nothing";
  take();
  EXPECT_NE(statistics(), untouched);
  EXPECT_NE(evaluate(), first);
  // Steps on one batch without learning: the running statistics become those of the batch. The
  // variance is the unbiased one, so that a little remains.
  double trained = 0;
  for (int i = 0; i < 200; ++i) {
    trained = model.Step();
    take();
  }
  const std::vector<Vec> moved = statistics();
  double evaluated = 0;
  for (const double loss : evaluate()) evaluated += loss / static_cast<double>(first.size());
  EXPECT_EQ(statistics(), moved);
  EXPECT_NEAR(evaluated, trained, 0.2 * trained);
}

TEST(Gradient, OfTiedEmbeddingsIsWrittenByTheHeadAndAddedToByTheEmbedding) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  const TensorId dwte = GradientNamed(plan, "transformer.wte.weight");
  std::vector<Access> accesses;
  for (Op op : plan.micro) {
    std::visit(
        [&](auto& o) {
          VisitOperands(o, [&](TensorId id, Access access) {
            if (id == dwte) accesses.push_back(access);
          });
        },
        op);
  }
  EXPECT_EQ(accesses, (std::vector<Access>{Access::kWrite, Access::kUpdate}));
}

TEST(Gradient, OnlyWhatIsAddedToFirstIsZeroed) {
  v1::JobSpec spec = GptSpec();
  Plan plan = PlanOf(spec, TokenFacts(11));
  std::vector<Zero> zeroes = OpsOf<Zero>(plan.begin);
  ASSERT_EQ(zeroes.size(), 2u);
  EXPECT_EQ(zeroes[0].x, plan.loss_sum);
  EXPECT_EQ(zeroes[1].x, plan.target_count);
  // Activations lie there until then.
  zeroes = OpsOf<Zero>(plan.micro);
  ASSERT_EQ(zeroes.size(), 1u);
  EXPECT_EQ(zeroes[0].x, GradientNamed(plan, "transformer.wpe.weight"));
  EXPECT_EQ(zeroes[0].n, 40);

  // Several micro-batches: everything is added to, and zeroed in one go.
  spec.mutable_training()->set_micro_batch_size(2);
  plan = PlanOf(spec, TokenFacts(11));
  zeroes = OpsOf<Zero>(plan.begin);
  ASSERT_EQ(zeroes.size(), 3u);
  EXPECT_EQ(zeroes[2].x, plan.gradients[0]);
  EXPECT_EQ(zeroes[2].n * 4, plan.gradient_region.bytes);

  // A model without embeddings, in one go: nothing but the sums of the loss.
  EXPECT_EQ(PlanOf(MlpSpec(), ImageFacts(4, 4, 1, 3)).begin.size(), 2u);
}

TEST(Gradient, ResidualBranchesAddIntoOneTensor) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  EXPECT_EQ(OpsOf<Add>(plan.micro).size(), 0u);  // the sums of two blocks are in the norms
  int added = 0;
  for (const LayerNormBackward& o : OpsOf<LayerNormBackward>(plan.micro)) added += o.accumulate_dx;
  EXPECT_EQ(added, 4);
}

TEST(Gradient, AnOpDoesNotAddIntoTheGradientThatItReads) {
  // y = x + W x, on y = x W0: the gradient of y serves x as it is while the matmul still reads it.
  Graph graph;
  const TensorId input = graph.Add({.name = "in", .dims = {2, 2}, .kind = TensorKind::kInput});
  const auto parameter = [&](const char* name) {
    return graph.Add({.name = name, .dims = {2, 2}, .kind = TensorKind::kParameter});
  };
  const auto activation = [&](const char* name) {
    return graph.Add({.name = name, .dims = {2, 2}});
  };
  const TensorId w0 = parameter("w0"), w = parameter("w");
  const TensorId x = activation("x"), wx = activation("wx"), y = activation("y");
  const TensorId dy = activation("dy");
  const TensorId dw0 = graph.Add({.name = "dw0", .dims = {2, 2}, .kind = TensorKind::kGradient});
  const TensorId dw = graph.Add({.name = "dw", .dims = {2, 2}, .kind = TensorKind::kGradient});
  graph.ops = {Matmul{.a = input, .b = w0, .c = x, .m = 2, .n = 2, .k = 2},
               Matmul{.a = x, .b = w, .c = wx, .m = 2, .n = 2, .k = 2},
               Add{.a = x, .b = wx, .y = y, .n = 4}};
  AppendBackward(graph, {{y, dy}}, {{w0, dw0}, {w, dw}}, false);
  for (const Matmul& o : OpsOf<Matmul>(graph.ops)) {
    EXPECT_NE(o.a, o.c);
    EXPECT_FALSE(o.accumulate);
  }
  EXPECT_EQ(OpsOf<Add>(graph.ops).size(), 2u);
}

TEST(Gradient, DropoutsHaveStreamsOfTheirOwnAndTheirGradientsTheSame) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_model()->mutable_gpt()->set_dropout(0.1);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  std::vector<uint32_t> streams;
  for (const Dropout& o : OpsOf<Dropout>(plan.micro)) {
    EXPECT_EQ(o.state, plan.state);
    streams.push_back(o.stream);
  }
  ASSERT_EQ(streams.size(), 2u * (1 + 3 * 2));
  std::vector<uint32_t> forward(streams.begin(), streams.begin() + 7);
  std::vector<uint32_t> backward(streams.rbegin(), streams.rbegin() + 7);
  EXPECT_EQ(forward, backward);
  std::sort(forward.begin(), forward.end());
  EXPECT_EQ(std::unique(forward.begin(), forward.end()), forward.end());
  EXPECT_TRUE(OpsOf<Dropout>(plan.evaluate).empty());
}

TEST(Gradient, LossIsScaledByTheRowsOfTheGlobalBatch) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_resources()->set_min_slots(2);
  spec.mutable_training()->set_batch_size(12);
  spec.mutable_training()->set_micro_batch_size(2);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  EXPECT_EQ(plan.micro_batches, 3);
  EXPECT_FLOAT_EQ(OpsOf<CrossEntropy>(plan.micro)[0].scale, 1.0f / (12 * 5));
  EXPECT_EQ(OpsOf<CrossEntropy>(plan.evaluate)[0].dlogits, kNone);
}

// The divisor is the count over all micro-batches, whichever of them has the targets.
TEST(Gradient, ScaledByTheCountIsThatOfTheTargetsThatCount) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_training()->set_micro_batch_size(2);
  Model all(spec, ImageFacts(3, 2, 1, 4));
  all.targets = {3, -1, -1, -1, 1, -100};
  all.Step();
  all.machine.Run(all.plan.norm);
  EXPECT_EQ(all.machine.Read(all.plan.target_count)[0], 2);

  spec.mutable_training()->set_batch_size(2);
  Model few(spec, ImageFacts(3, 2, 1, 4));
  for (const TensorId id : few.plan.parameters) few.machine.Write(id, all.machine.Read(id));
  few.targets = {3, 1};
  few.inputs = Vec(all.inputs.begin(), all.inputs.begin() + 6);
  few.inputs.insert(few.inputs.end(), all.inputs.begin() + 4 * 6, all.inputs.begin() + 5 * 6);
  few.Step();
  few.machine.Run(few.plan.norm);
  EXPECT_NEAR(all.machine.Read(all.plan.grad_norm)[0], few.machine.Read(few.plan.grad_norm)[0],
              1e-7);
  EXPECT_NEAR(all.machine.Read(all.plan.loss_sum)[0], few.machine.Read(few.plan.loss_sum)[0], 1e-7);
}

// --- in 16 bits ---------------------------------------------------------------------------------
// The interpreter rounds nothing: what these hold is that casts and copies carry every gradient.

TEST(Gradient, OfNarrowGraphsMatchDifferences) {
  for (const v1::Precision::Compute compute : {v1::Precision::BF16, v1::Precision::FP16}) {
    v1::JobSpec gpt = GptSpec();
    gpt.mutable_model()->mutable_gpt()->set_dropout(0.2);
    gpt.mutable_training()->set_micro_batch_size(2);
    gpt.mutable_precision()->set_compute(compute);
    ExpectGradientsMatchDifferences(gpt, TokenFacts(11), {.elements = 5});
    v1::JobSpec llama = LlamaSpec();
    llama.mutable_precision()->set_compute(compute);
    ExpectGradientsMatchDifferences(llama, TokenFacts(11), {.elements = 5});
    v1::JobSpec convnet = ConvnetSpec();
    convnet.mutable_precision()->set_compute(compute);
    ExpectGradientsMatchDifferences(convnet, ImageFacts(5, 4, 2, 3), {.elements = 5});
    v1::JobSpec vit = VitSpec();
    vit.mutable_precision()->set_compute(compute);
    ExpectGradientsMatchDifferences(vit, ImageFacts(6, 4, 3, 7), {.elements = 3});
  }
}

TEST(Gradient, OfAScaledLossIsScaledUntilTheUpdate) {
  v1::JobSpec spec = MlpSpec();
  spec.mutable_optimizer()->set_clip_norm(1e-3);
  Model plain(spec, ImageFacts(3, 2, 1, 4));
  spec.mutable_precision()->set_compute(v1::Precision::FP16);
  Model scaled(spec, ImageFacts(3, 2, 1, 4));
  scaled.machine.state.loss_scale = 1024;
  for (Model* model : {&plain, &scaled}) {
    model->machine.state.learning_rate = 0.1f;
    model->Step();
    model->machine.Run(model->plan.norm);
    model->machine.Run(model->plan.end);
  }
  EXPECT_NEAR(scaled.machine.Read(scaled.plan.gradients[0])[0],
              1024 * plain.machine.Read(plain.plan.gradients[0])[0], 1e-9);
  EXPECT_NEAR(scaled.machine.Read(scaled.plan.grad_norm)[0],
              plain.machine.Read(plain.plan.grad_norm)[0], 1e-12);
  for (size_t p = 0; p < plain.plan.parameters.size(); ++p) {
    const Vec a = plain.machine.Read(plain.plan.parameters[p]);
    const Vec b = scaled.machine.Read(scaled.plan.parameters[p]);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-9);
  }
}

// --- the end of a step -------------------------------------------------------------------------

TEST(OptimizerSweep, LeavesPaddingAtZeroAndMovesEveryParameter) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->set_clip_norm(0.1);
  for (const bool adam : {true, false}) {
    if (!adam) spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    Model model(spec, TokenFacts(11));
    model.machine.state.learning_rate = 0.1f;
    std::vector<Vec> before;
    for (const TensorId id : model.plan.parameters) before.push_back(model.machine.Read(id));
    model.Step();
    model.machine.Run(model.plan.norm);
    model.machine.Run(model.plan.end);
    EXPECT_GT(model.machine.Read(model.plan.grad_norm)[0], 0);
    const auto padding_is_zero = [&](const std::vector<TensorId>& ids) {
      for (const TensorId id : ids) {
        const int64_t n = model.plan.tensors[id].elements();
        const Vec padded = model.machine.Read(id, (n + 31) / 32 * 32);
        for (size_t i = n; i < padded.size(); ++i) {
          ASSERT_EQ(padded[i], 0) << model.plan.tensors[id].name;
        }
      }
    };
    padding_is_zero(model.plan.parameters);
    padding_is_zero(model.plan.gradients);
    for (const auto& kind : model.plan.optimizer_state) padding_is_zero(kind);
    for (size_t p = 0; p < before.size(); ++p) {
      EXPECT_NE(model.machine.Read(model.plan.parameters[p]), before[p])
          << model.plan.tensors[model.plan.parameters[p]].name;
    }
  }
}

TEST(OptimizerSweep, DecaysMatricesOnly) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.1);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  const std::vector<AdamWStep> steps = OpsOf<AdamWStep>(plan.end);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FLOAT_EQ(steps[0].weight_decay, 0.1f);
  EXPECT_EQ(steps[1].weight_decay, 0);
  EXPECT_EQ(steps[0].w, plan.parameters[0]);
  EXPECT_EQ((steps[0].n + steps[1].n) * 4, plan.parameter_region.bytes);
  for (const TensorId id : plan.parameters) {
    const bool decayed = plan.offsets[id] < plan.offsets[steps[1].w];
    EXPECT_EQ(decayed, plan.tensors[id].dims.size() >= 2) << plan.tensors[id].name;
  }
}

}  // namespace
}  // namespace trainyard::plan
