// bert, vit and mobilenet: what they refuse, their defaults, and their sizes against those
// published.

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "absl/algorithm/container.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

v1::Bert& BertOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_bert(); }
v1::Mobilenet& MobilenetOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_mobilenet(); }
v1::Vit& VitOf(v1::JobSpec& s) { return *s.mutable_model()->mutable_vit(); }

struct BadFamily {
  v1::JobSpec (*from)();
  std::function<void(v1::JobSpec&)> spoil;
  const char* message;
};

TEST(Families, RefuseWhatMakesNoModel) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const BadFamily table[] = {
      {BertSpec, [](auto& s) { BertOf(s).set_layers(0); },
       "spec.model.bert.layers: 0 is not in [1, 512]"},
      {BertSpec, [](auto& s) { BertOf(s).set_heads(3); },
       "spec.model.bert.width: 8 is not a multiple of heads 3; try 6 or 9"},
      {BertSpec, [](auto& s) { BertOf(s).clear_context(); },
       "spec.model.bert.context: 0 is not in [1, 1048576]"},
      {BertSpec, [](auto& s) { BertOf(s).set_mask_rate(0); },
       "spec.model.bert.mask_rate: 0 is not in (0, 1)"},
      {BertSpec, [](auto& s) { BertOf(s).set_mask_rate(kNan); },
       "spec.model.bert.mask_rate: nan is not in (0, 1)"},
      {BertSpec, [](auto& s) { BertOf(s).set_mask_token(-1); },
       "spec.model.bert.mask_token: -1 is not in [0, 16777215]"},
      {BertSpec, [](auto& s) { BertOf(s).set_token_types(0); },
       "spec.model.bert.token_types: 0 is not in [1, 256]"},
      {BertSpec, [](auto& s) { BertOf(s).set_vocab_size(0); },
       "spec.model.bert.vocab_size: 0 is not in [1, 16777216]"},
      {BertSpec, [](auto& s) { BertOf(s).set_epsilon(0); },
       "spec.model.bert.epsilon: 0 is not a finite number above 0"},
      {BertSpec, [](auto& s) { BertOf(s).set_dropout(1); },
       "spec.model.bert.dropout: 1 is not in [0, 1)"},
      {BertSpec, [](auto& s) { *s.mutable_data() = MlpSpec().data(); },
       "spec.data: bert trains on text or tokens; set spec.data.text or spec.data.tokens"},
      {VitSpec, [](auto& s) { VitOf(s).set_heads(0); },
       "spec.model.vit.heads: 0 is not in [1, 65536]"},
      {VitSpec, [](auto& s) { VitOf(s).clear_patch(); },
       "spec.model.vit.patch: 0 is not in [1, 1024]"},
      {VitSpec, [](auto& s) { VitOf(s).set_mlp_width(-1); },
       "spec.model.vit.mlp_width: -1 is not in [1, 262144]"},
      {VitSpec, [](auto& s) { VitOf(s).set_activation(static_cast<v1::Activation>(9)); },
       "spec.model.vit.activation: 9 is no activation; use RELU, GELU, GELU_TANH or RELU6"},
      {VitSpec, [](auto& s) { *s.mutable_data() = GptSpec().data(); },
       "spec.data: vit trains on images; set spec.data.idx, image_folder or webdataset"},
      {MobilenetSpec, [](auto& s) { MobilenetOf(s).clear_stem(); },
       "spec.model.mobilenet.stem: 0 is no stem; use CIFAR for images up to about 64x64, else "
       "IMAGENET"},
      {MobilenetSpec, [](auto& s) { MobilenetOf(s).set_width(0.04); },
       "spec.model.mobilenet.width: 0.04 is not in [0.05, 4]"},
      {MobilenetSpec, [](auto& s) { MobilenetOf(s).set_width(kNan); },
       "spec.model.mobilenet.width: nan is not in [0.05, 4]"},
      {MobilenetSpec, [](auto& s) { MobilenetOf(s).set_dropout(1); },
       "spec.model.mobilenet.dropout: 1 is not in [0, 1)"},
  };
  for (const BadFamily& bad : table) {
    v1::JobSpec spec = bad.from();
    bad.spoil(spec);
    const absl::Status status = ResolveSpec(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_EQ(status.message(), bad.message);
  }
}

TEST(Families, RefuseDataThatDoesNotFit) {
  EXPECT_EQ(PlanStatus(VitSpec(), ImageFacts(28, 27, 1, 3)).message(),
            "spec.model.vit.patch: 2 does not divide the 28x27 images of the data");
  v1::JobSpec bert = BertSpec();
  BertOf(bert).set_vocab_size(13);
  EXPECT_EQ(PlanStatus(bert, DocumentFacts(13)).message(),
            "spec.model.bert.vocab_size: 13 is less than 14, for the 13 tokens of the data and the "
            "mask token 13");
  BertOf(bert).set_mask_token(12);  // one of the data's own
  EXPECT_TRUE(PlanStatus(bert, DocumentFacts(13)).ok());
  EXPECT_EQ(PlanStatus(BertSpec(), TokenFacts(13)).message(),
            "spec.model: this family trains on documents, but spec.data holds tokens");
  v1::JobSpec mobilenet = MobilenetSpec();
  mobilenet.mutable_training()->set_batch_size(1);
  EXPECT_EQ(PlanStatus(mobilenet, ImageFacts(8, 8, 1, 3)).code(),
            absl::StatusCode::kInvalidArgument);  // a single value per channel
}

TEST(Families, FillTheirDefaults) {
  v1::JobSpec spec = BertSpec();
  BertOf(spec).clear_mlp_width();
  BertOf(spec).clear_epsilon();
  const v1::Bert bert = ResolveSpec(spec)->model().bert();
  EXPECT_EQ(bert.mlp_width(), 32);
  EXPECT_EQ(bert.activation(), v1::GELU);
  EXPECT_DOUBLE_EQ(bert.mask_rate(), 0.15);
  EXPECT_EQ(bert.token_types(), 2);
  EXPECT_DOUBLE_EQ(bert.epsilon(), 1e-12);
  const Windowing windowing = WindowingOf(ResolveSpec(spec)->model());
  EXPECT_EQ(windowing.context, 4);
  EXPECT_EQ(windowing.mask_token, -1);
  EXPECT_TRUE(windowing.masked());
  EXPECT_FALSE(WindowingOf(ResolveSpec(GptSpec())->model()).masked());

  spec = MobilenetSpec();
  MobilenetOf(spec).clear_width();
  MobilenetOf(spec).clear_dropout();
  EXPECT_DOUBLE_EQ(ResolveSpec(spec)->model().mobilenet().width(), 1);
  EXPECT_DOUBLE_EQ(ResolveSpec(spec)->model().mobilenet().dropout(), 0.2);
}

// Parameters as counted by PyTorch for google/vit-base-patch16-224, bert-base-uncased (masked LM)
// and torchvision's mobilenet_v2.
TEST(Families, HaveAsManyParametersAsThePublishedModels) {
  v1::JobSpec spec = VitSpec();
  VitOf(spec).set_layers(12);
  VitOf(spec).set_heads(12);
  VitOf(spec).set_width(768);
  VitOf(spec).clear_mlp_width();
  VitOf(spec).set_patch(16);
  EXPECT_EQ(PlanOf(spec, ImageFacts(224, 224, 3, 1000)).summary.parameters(), 86'567'656);

  spec = BertSpec();
  BertOf(spec).set_layers(12);
  BertOf(spec).set_heads(12);
  BertOf(spec).set_width(768);
  BertOf(spec).clear_mlp_width();
  BertOf(spec).set_context(512);
  BertOf(spec).set_mask_token(103);
  EXPECT_EQ(PlanOf(spec, DocumentFacts(30522)).summary.parameters(), 109'514'298);

  spec = MobilenetSpec();
  MobilenetOf(spec).set_stem(v1::Resnet::IMAGENET);
  MobilenetOf(spec).set_width(1);
  const Plan plan = PlanOf(spec, ImageFacts(224, 224, 3, 1000));
  EXPECT_EQ(plan.summary.parameters(), 3'504'872);
  // 300.8 million multiplications per image, as published, forward alone.
  double forward = 0;
  for (const Op& op : plan.evaluate) {
    if (const auto* o = std::get_if<ConvolutionForward>(&op)) {
      const ConvolutionShape& s = o->shape;
      const int64_t height = (s.height + 2 * s.pad - s.kernel_height) / s.stride + 1;
      forward += static_cast<double>(height * height * s.out * (s.in / s.groups)) *
                 static_cast<double>(s.kernel_height * s.kernel_width);
    }
  }
  EXPECT_NEAR(forward, 299.5e6, 0.5e6);
}

TEST(Families, StoreQueriesKeysAndValuesApart) {
  const Plan plan = PlanOf(BertSpec(), DocumentFacts(13));
  std::vector<std::string> names;
  for (const TensorId id : plan.parameters) {
    for (const StoredTensor& stored : Stored(plan.tensors[id])) names.push_back(stored.name);
  }
  for (const char* part : {"query", "key", "value"}) {
    for (const char* kind : {"weight", "bias"}) {
      const std::string name =
          std::string("bert.encoder.layer.1.attention.self.") + part + "." + kind;
      EXPECT_EQ(absl::c_count(names, name), 1) << name;
    }
  }
}

}  // namespace
}  // namespace trainyard::plan
