// Lists of layers: what they refuse, and the graphs that they make.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

v1::JobSpec WithLayers(v1::JobSpec spec, const std::string& text) {
  *spec.mutable_model()->mutable_layers() = LayersOf(text);
  return spec;
}
v1::JobSpec Images(const std::string& text) { return WithLayers(MlpSpec(), text); }
v1::JobSpec Tokens(const std::string& text) { return WithLayers(GptSpec(), "context: 4 " + text); }

// On images of 8x6 with 3 channels and 5 classes, or on 11 tokens.
absl::Status StatusOf(const v1::JobSpec& spec) {
  const absl::StatusOr<v1::JobSpec> resolved = ResolveSpec(spec);
  if (!resolved.ok()) return resolved.status();
  const bool tokens = ContextOf(resolved->model()) > 0;
  return BuildPlan(*resolved, tokens ? TokenFacts(11) : ImageFacts(8, 6, 3, 5)).status();
}

struct BadLayers {
  v1::JobSpec spec;
  const char* message;
};

void ExpectRefused(const std::vector<BadLayers>& table) {
  for (const BadLayers& bad : table) {
    const absl::Status status = StatusOf(bad.spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_EQ(status.message(), bad.message);
  }
}

const char kHead[] = " layers { flatten {} } layers { name: 'head' linear {} }";

TEST(Layers, RefuseWhatNeedsNoShapesToBeWrong) {
  const auto one = [](const std::string& kind) { return Images("layers { " + kind + " }"); };
  ExpectRefused({
      {Images(""), "spec.model.layers.layers: there is none; add one"},
      {one(""),
       "spec.model.layers.layers[0].kind: is missing; set linear, convolution, activation or "
       "another one"},
      {one("name: 'a b' flatten {}"),
       "spec.model.layers.layers[0].name: found 'a b', expected letters, digits, '_' and single "
       "'.' between them, at most 100 of them, and not 'input'"},
      {one("name: 'input' flatten {}"),
       "spec.model.layers.layers[0].name: found 'input', expected letters, digits, '_' and single "
       "'.' between them, at most 100 of them, and not 'input'"},
      {Images("layers { name: 'a' flatten {} } layers { name: 'a' linear {} }"),
       "spec.model.layers.layers[1].name: another layer is called 'a' already"},
      {Images("layers { name: 'a.b' flatten {} } "
              "layers { name: 'a' block { layers { name: 'b' linear {} } } }"),
       "spec.model.layers.layers[1].block.layers[0].name: another layer is called 'a.b' already"},
      {one("inputs: 'a' inputs: 'b' flatten {}"),
       "spec.model.layers.layers[0].inputs: 2 are named; only add and concat take more than one"},
      {one("add {}"), "spec.model.layers.layers[0].inputs: 0 are named; add takes two or more"},
      {one("inputs: 'input' concat {}"),
       "spec.model.layers.layers[0].inputs: 1 are named; concat takes two or more"},
      {one("linear { out: 0 }"), "spec.model.layers.layers[0].linear.out: 0 is not in [1, 65536]"},
      {one("linear { init_std: -1 }"),
       "spec.model.layers.layers[0].linear.init_std: -1 is not a finite number of at least 0"},
      {one("linear { tied: 'a' out: 3 }"),
       "spec.model.layers.layers[0].linear.tied: has no out, bias, transposed or init_std of its "
       "own"},
      {one("convolution {}"),
       "spec.model.layers.layers[0].convolution.out: 0 is not in [1, 65536]"},
      {one("convolution { out: 6 groups: 4 }"),
       "spec.model.layers.layers[0].convolution.out: 6 is not a multiple of groups 4; try 4 or 8"},
      {one("convolution { out: 6 kernel: 0 }"),
       "spec.model.layers.layers[0].convolution.kernel: 0 is not in [1, 64]"},
      {one("convolution { out: 6 pad: 3 }"),
       "spec.model.layers.layers[0].convolution.pad: 3 is not in [0, 2]"},
      {one("convolution { out: 6 stride: 0 }"),
       "spec.model.layers.layers[0].convolution.stride: 0 is not in [1, 64]"},
      {one("batch_norm { momentum: 0 }"),
       "spec.model.layers.layers[0].batch_norm.momentum: 0 is not in (0, 1]"},
      {one("layer_norm { epsilon: 0 }"),
       "spec.model.layers.layers[0].layer_norm.epsilon: 0 is not a finite number above 0"},
      {one("activation: ACTIVATION_UNSPECIFIED"),
       "spec.model.layers.layers[0].activation: 0 is no activation; use RELU, GELU, GELU_TANH or "
       "RELU6"},
      {one("dropout: 1"), "spec.model.layers.layers[0].dropout: 1 is not in [0, 1)"},
      {one("max_pool { window: 16 }"),
       "spec.model.layers.layers[0].max_pool.window: 16 is not in [1, 15]"},
      {one("max_pool { window: 2 pad: 2 }"),
       "spec.model.layers.layers[0].max_pool.pad: 2 is not in [0, 1]"},
      {one("embedding {}"), "spec.model.layers.layers[0].embedding.width: 0 is not in [1, 65536]"},
      {one("attention { heads: 3 kv_heads: 2 }"),
       "spec.model.layers.layers[0].attention.heads: 3 is not a multiple of kv_heads 2; try 2 or "
       "4"},
      {one("attention { heads: 2 rope_theta: 0.5 }"),
       "spec.model.layers.layers[0].attention.rope_theta: 0.5 is less than 1"},
      {one("block {}"), "spec.model.layers.layers[0].block.layers: there is none; add one"},
      {one("block { repeat: 0 layers { flatten {} } }"),
       "spec.model.layers.layers[0].block.repeat: 0 is not in [1, 512]"},
      {WithLayers(GptSpec(), "layers { linear {} }"),
       "spec.model.layers.context: 0; set it to the tokens of a sample"},
      {WithLayers(MlpSpec(), "context: 4 layers { linear {} }"),
       "spec.model.layers.context: 4; leave it out for images"},
      {WithLayers(GptSpec(), "context: -1 layers { linear {} }"),
       "spec.model.layers.context: -1 is not in [0, 1048576]"},
  });
}

TEST(Layers, SayWhichShapeDoesNotFitWhere) {
  ExpectRefused({
      {Images("layers { name: 'head' linear {} }"),
       "spec.model.layers.layers[0] (head): found [8, 6, 3], expected [features] or [time, "
       "features]; put flatten before"},
      {Images("layers { flatten {} } layers { convolution { out: 3 } }"),
       "spec.model.layers.layers[1] (1): found [144], expected [height, width, channels]"},
      {Images("layers { convolution { out: 4 groups: 2 } }"),
       "spec.model.layers.layers[0] (0): its input's 3 channels are not a multiple of groups 2"},
      {Images("layers { convolution { out: 4 kernel: 7 pad: 0 } }"),
       "spec.model.layers.layers[0] (0): a kernel of 7 does not fit [8, 6, 3] padded by 0"},
      {Images("layers { max_pool { window: 7 } }"),
       "spec.model.layers.layers[0] (0): a window of 7 does not fit [8, 6, 3] padded by 0"},
      {Images("layers { name: 'a' convolution { out: 4 } } "
              "layers { name: 'b' inputs: 'a' inputs: 'input' add {} }"),
       "spec.model.layers.layers[1] (b): found [8, 6, 4] and [8, 6, 3], expected inputs of one "
       "shape"},
      {Images("layers { name: 'a' max_pool {} } "
              "layers { inputs: 'a' inputs: 'input' concat {} }"),
       "spec.model.layers.layers[1] (1): found [4, 3, 3] and [8, 6, 3], expected inputs that "
       "differ in their last dimension alone"},
      {Images("layers { swiglu {} }"),
       "spec.model.layers.layers[0] (0): found [8, 6, 3], expected an even number of features"},
      {Images("layers { name: 'b' block { repeat: 2 layers { inputs: 'x' flatten {} } } }"),
       "spec.model.layers.layers[0].block.layers[0] (b.0.0): the input 'x' is no layer before it"},
      {Images("layers { attention { heads: 2 } }"),
       "spec.model.layers.layers[0] (0): found [8, 6, 3], expected [time, features]"},
      {Images("layers { sequence {} } layers { attention { heads: 2 } }"),
       "spec.model.layers.layers[1] (1): found [48, 3], expected features that are a multiple of "
       "the 6 heads of queries, keys and values"},
      {Images("layers { embedding { width: 3 } }"),
       "spec.model.layers.layers[0] (0): found [8, 6, 3], expected token ids"},
      {Images("layers { flatten {} } layers { linear { out: 4 } }"),
       "spec.model.layers: the last layer leaves [4], expected [5], the classes of the data"},
      {Images("layers { flatten {} } layers { name: 'a' linear { out: 4 } } "
              "layers { inputs: '0' linear {} }"),
       "spec.model.layers.layers[1] (a): no layer takes what it leaves"},
      {Images("layers { convolution { out: 3 } } layers { inputs: 'input' flatten {} } "
              "layers { linear {} }"),
       "spec.model.layers.layers[0] (0): no layer takes what it leaves"},
      {Images("layers { mean_pool {} }"),
       "spec.model.layers: nothing here has parameters to train"},
      {Tokens("layers { linear {} }"),
       "spec.model.layers.layers[0] (0): found [4] token ids, expected what an embedding makes of "
       "them"},
      {Tokens("layers { embedding { width: 3 vocab_size: 10 } }"),
       "spec.model.layers.layers[0] (0): vocab_size: 10 is less than the 11 tokens of the data"},
      {Tokens("layers { name: 'e' embedding { width: 3 } } layers { linear { tied: 'f' } }"),
       "spec.model.layers.layers[1] (1): tied: 'f' is no embedding before it (by its full name)"},
      {Tokens("layers { name: 'e' embedding { width: 3 } } layers { linear { out: 4 } } "
              "layers { linear { tied: 'e' } }"),
       "spec.model.layers.layers[2] (2): tied: the vectors of 'e' have 3 elements, its input 4"},
      {Tokens("layers { embedding { width: 6 } } layers { mean_pool {} } layers { linear {} }"),
       "spec.model.layers: the last layer leaves [11], expected [4, 11], the context and the "
       "tokens "
       "of the data"},
      {Tokens("layers { embedding { width: 15 } } "
              "layers { attention { heads: 1 rope_theta: 10 } }"),
       "spec.model.layers.layers[1] (1): heads of 5 elements cannot be paired by rotary positions"},
  });
}

TEST(Layers, RefuseListsThatGrowWithoutBound) {
  std::string deep = "layers { linear {} }";
  for (int i = 0; i < 9; ++i) deep = "layers { block { " + deep + " } }";
  EXPECT_THAT(std::string(StatusOf(Images(deep)).message()),
              testing::HasSubstr("blocks lie more than 8 deep"));

  std::string wide = "layers { activation: RELU }";
  for (int i = 0; i < 7; ++i) wide = "layers { block { repeat: 512 " + wide + " } }";
  EXPECT_THAT(std::string(StatusOf(Images(wide)).message()),
              testing::HasSubstr("these are more than 2048 layers"));

  const v1::JobSpec large =
      *ResolveSpec(Images("layers { convolution { out: 65536 } } layers { flatten {} } "
                          "layers { linear { out: 65536 } } layers { linear {} }"));
  EXPECT_THAT(std::string(BuildPlan(large, ImageFacts(512, 512, 3, 5)).status().message()),
              testing::HasSubstr("is larger than any machine's memory"));
  EXPECT_THAT(std::string(BuildPlan(large, ImageFacts(65536, 65536, 3, 5)).status().message()),
              testing::HasSubstr("is larger than any machine's memory"));
}

TEST(Layers, OfTheLargestListArePlannedInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = PlanOf(
      Images("layers { convolution { out: 3 kernel: 1 } } "
             "layers { block { repeat: 511 layers { name: 'a' convolution { out: 3 kernel: 1 } } "
             "layers { name: 'n' batch_norm {} } layers { name: 'r' activation: RELU } "
             "layers { inputs: 'r' inputs: 'input' add {} } } }" +
             std::string(kHead)),
      ImageFacts(4, 4, 3, 5));
  EXPECT_GT(plan.parameters.size(), 2000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

std::vector<std::string> ParametersOf(const Plan& plan) {
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) names.push_back(plan.tensors[id].name);
  for (const TensorId id : plan.buffers) names.push_back(plan.tensors[id].name);
  return names;
}

TEST(Layers, NameTheirParametersAsModulesWould) {
  const Plan plan = PlanOf(ImageLayersSpec(), ImageFacts(8, 6, 3, 5));
  EXPECT_THAT(
      ParametersOf(plan),
      testing::UnorderedElementsAre(
          "stem.weight", "stem.bias", "branch.0.conv.weight", "branch.0.norm.weight",
          "branch.0.norm.bias", "branch.1.conv.weight", "branch.1.norm.weight",
          "branch.1.norm.bias", "head.weight", "head.bias", "branch.0.norm.running_mean",
          "branch.0.norm.running_var", "branch.1.norm.running_mean", "branch.1.norm.running_var"));
  EXPECT_THAT(ParametersOf(PlanOf(Images("layers { flatten {} } layers { linear { out: 7 } } "
                                         "layers { activation: GELU } layers { linear {} }"),
                                  ImageFacts(8, 6, 3, 5))),
              testing::UnorderedElementsAre("1.weight", "1.bias", "3.weight", "3.bias"));
}

int64_t CountOf(const std::vector<Op>& ops, const char* name) {
  return std::count_if(ops.begin(), ops.end(),
                       [&](const Op& op) { return std::string(OpName(op)) == name; });
}

TEST(Layers, PositionsGoIntoTheEmbeddingUnlessItIsTakenElsewhere) {
  EXPECT_EQ(CountOf(PlanOf(TokenLayersSpec(), TokenFacts(11)).evaluate, "add_bias"), 0);
  const Plan plan = PlanOf(Tokens("layers { name: 'wte' embedding { width: 6 } } "
                                  "layers { name: 'wpe' positions {} } "
                                  "layers { inputs: 'wte' inputs: 'wpe' add {} } "
                                  "layers { linear {} }"),
                           TokenFacts(11));
  EXPECT_EQ(CountOf(plan.evaluate, "add_bias"), 1);
}

TEST(Layers, KnowTheNamesOfTheListsAroundThem) {
  const v1::JobSpec spec = Images(
      "layers { name: 'a' convolution { out: 4 } } "
      "layers { name: 'b' block { "
      "  layers { name: 'c' convolution { out: 4 } } "
      "  layers { name: 'd' block { layers { name: 'e' convolution { out: 4 } } "
      "    layers { inputs: 'e' inputs: 'a' inputs: 'c' inputs: 'input' add {} } } } } }" +
      std::string(kHead));
  EXPECT_TRUE(StatusOf(spec).ok()) << StatusOf(spec);
  // "input" is what enters the innermost block: c.
  const Plan plan = PlanOf(spec, ImageFacts(8, 6, 3, 5));
  std::vector<TensorId> terms;
  for (const Op& op : plan.evaluate) {
    if (const Add* add = std::get_if<Add>(&op)) terms.push_back(add->b);
  }
  ASSERT_EQ(terms.size(), 3u);
  EXPECT_EQ(terms[1], terms[2]);
  EXPECT_NE(terms[0], terms[1]);
}

TEST(Layers, AttentionLooksAheadForImagesOnly) {
  for (const bool tokens : {false, true}) {
    const Plan plan =
        tokens
            ? PlanOf(Tokens("layers { embedding { width: 6 } } layers { attention { heads: 1 } } "
                            "layers { linear {} }"),
                     TokenFacts(11))
            : PlanOf(Images("layers { convolution { out: 6 } } layers { sequence {} } "
                            "layers { attention { heads: 1 } } layers { mean_pool {} } "
                            "layers { linear {} }"),
                     ImageFacts(8, 6, 3, 5));
    for (const Op& op : plan.evaluate) {
      if (const auto* o = std::get_if<AttentionForward>(&op)) {
        EXPECT_EQ(o->causal, tokens);
      }
    }
    EXPECT_EQ(CountOf(plan.evaluate, "attention"), 1);
  }
}

}  // namespace
}  // namespace trainyard::plan
