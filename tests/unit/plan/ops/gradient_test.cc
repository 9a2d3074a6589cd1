// The backward ops of whole models against central differences of the loss, in double precision:
// right whatever the kernels do.

#include "executor/plan/ops/gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "tests/unit/plan/random_model.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;

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

}  // namespace
}  // namespace trainyard::plan
