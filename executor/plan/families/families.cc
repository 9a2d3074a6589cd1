#include "executor/plan/families/families.h"

#include <cmath>
#include <utility>

#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::plan {

double KaimingStd(int64_t fan_in) { return std::sqrt(2.0 / static_cast<double>(fan_in)); }
double LecunStd(int64_t fan_in) { return std::sqrt(1.0 / static_cast<double>(fan_in)); }

ActivationKind KindOf(v1::Activation activation) {
  switch (activation) {
    case v1::GELU:
      return ActivationKind::kGelu;
    case v1::GELU_TANH:
      return ActivationKind::kGeluTanh;
    case v1::RELU6:
      return ActivationKind::kRelu6;
    default:
      return ActivationKind::kRelu;
  }
}

void SetLogits(std::vector<TensorId> logits, const GraphBuilder& builder, Forward& forward) {
  if (builder.tensor_shards() == 1) {
    forward.logits = logits[0];
  } else {
    forward.logits_of_shards = std::move(logits);
  }
}

absl::StatusOr<int64_t> VocabularyFor(const char* family, int64_t context, int64_t vocab,
                                      const DataFacts& facts) {
  if (vocab < facts.vocab) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model.", family, ".vocab_size: ", vocab,
                                                   " is less than the ", facts.vocab,
                                                   " tokens of the data"));
  }
  if (facts.train_size > 0 && facts.train_size <= context) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model.", family, ".context: ", context, " needs at least ", context + 1,
                     " training tokens; the data has ", facts.train_size));
  }
  return vocab;
}

namespace {

// What the bytes of images are normalised by, one of each per channel.
struct PixelScale {
  std::vector<double> mean, std;
};

absl::StatusOr<PixelScale> ScaleOf(const v1::Data& data, int64_t channels) {
  if (data.has_idx()) {
    const auto n = static_cast<size_t>(channels);
    return PixelScale{std::vector<double>(n, data.idx().mean()),
                      std::vector<double>(n, data.idx().std())};
  }
  if (!data.has_image_folder() && !data.has_webdataset()) {
    return absl::InvalidArgumentError("spec.data: is no source of images");
  }
  const v1::ImageTransform& t =
      data.has_webdataset() ? data.webdataset().transform() : data.image_folder().transform();
  if (t.mean_size() != channels || t.std_size() != channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.data: the transform has ", t.mean_size(), " means and ", t.std_size(),
                     " deviations for images of ", channels, " channels"));
  }
  return PixelScale{{t.mean().begin(), t.mean().end()}, {t.std().begin(), t.std().end()}};
}

// `images`: kNone where the family is of another kind.
absl::StatusOr<Forward> BuildFamily(const v1::Model& model, const DataFacts& facts, TensorId images,
                                    GraphBuilder& builder) {
  switch (model.family_case()) {
    case v1::Model::kBert:
      return BuildBert(model.bert(), facts, builder);
    case v1::Model::kMlp:
      return BuildMlp(model.mlp(), facts, images, builder);
    case v1::Model::kConvnet:
      return BuildConvnet(model.convnet(), facts, images, builder);
    case v1::Model::kDlrm:
      return BuildDlrm(model.dlrm(), facts, builder);
    case v1::Model::kGpt:
      return BuildGpt(model.gpt(), facts, builder);
    case v1::Model::kLayers:
      return BuildLayers(model.layers(), facts, images, builder);
    case v1::Model::kLlama:
      return BuildLlama(model.llama(), facts, builder);
    case v1::Model::kResnet:
      return BuildResnet(model.resnet(), facts, images, builder);
    case v1::Model::kMobilenet:
      return BuildMobilenet(model.mobilenet(), facts, images, builder);
    case v1::Model::kVit:
      return BuildVit(model.vit(), facts, images, builder);
    case v1::Model::FAMILY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("spec.model: there is none");
}

}  // namespace

absl::StatusOr<Forward> BuildForward(const v1::JobSpec& spec, const DataFacts& facts,
                                     GraphBuilder& builder) {
  const v1::Model& model = spec.model();
  const DataFacts::Kind needed = model.has_bert()       ? DataFacts::Kind::kDocuments
                                 : ContextOf(model) > 0 ? DataFacts::Kind::kTokens
                                 : model.has_dlrm()     ? DataFacts::Kind::kClicks
                                                        : DataFacts::Kind::kImages;
  if (needed != facts.kind) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model: this family trains on ",
                                                   NameOf(needed), ", but spec.data holds ",
                                                   NameOf(facts.kind)));
  }
  if (facts.kind != DataFacts::Kind::kImages) return BuildFamily(model, facts, kNone, builder);
  TY_ASSIGN_OR_RETURN(PixelScale scale, ScaleOf(spec.data(), facts.channels));
  const TensorId bytes = builder.Input(
      "input", ElementType::kU8, {builder.batch(), facts.height, facts.width, facts.channels});
  const TensorId places =
      builder.training() && TakesCrops(spec.data().idx())
          ? builder.Input("places", ElementType::kI32, {builder.batch(), kPlace})
          : kNone;
  const TensorId images =
      builder.NormalizeImages("images", bytes, places, std::move(scale.mean), std::move(scale.std));
  TY_ASSIGN_OR_RETURN(Forward forward, BuildFamily(model, facts, images, builder));
  forward.input = bytes;
  forward.ids = places;
  return forward;
}

}  // namespace trainyard::plan
