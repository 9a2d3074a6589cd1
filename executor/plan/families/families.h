#pragma once

// The model families: each writes its forward graph, and nothing else.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/plan/graph/graph_builder.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// Of the normal distribution that the weights of transformers start from (transformers'
// initializer_range).
inline constexpr double kInitializerRange = 0.02;

// What a forward graph takes and leaves.
struct Forward {
  TensorId input = kNone;       // of images their bytes
  TensorId logits = kNone;      // [rows, classes]; kNone where they are cut into shards
  int64_t rows_per_sample = 1;  // rows = batch * rows_per_sample
  int64_t classes = 0;
  std::vector<TensorId> logits_of_shards;  // [rows, classes of the shard], in order

  // A second input: of clicks the ids, of documents the lengths, of images the places of their
  // crops.
  TensorId ids = kNone;
  // Clicks: the tables that the ids choose rows of, and one logit per row.
  std::vector<TensorId> tables;
  bool binary = false;
};

// The families of images take them normalised, f32 [batch, height, width, channels], and leave
// Forward::input to BuildForward.

// Parameters layers.{i}.weight [out, in] and layers.{i}.bias [out], as torch.nn.Linear. The input
// is flattened in the order of the files (height, width, channels).
absl::StatusOr<Forward> BuildMlp(const v1::Mlp& mlp, const DataFacts& facts, TensorId images,
                                 GraphBuilder& builder);

// Parameters stages.{s}.{i}.weight [out, in, kernel, kernel] and .bias [out], as torch.nn.Conv2d;
// then layers.{i}.weight [out, in] and .bias [out] on the features flattened as torch does
// (channels, height, width).
absl::StatusOr<Forward> BuildConvnet(const v1::Convnet& convnet, const DataFacts& facts,
                                     TensorId images, GraphBuilder& builder);

// Parameters as facebookresearch/dlrm: bot_l.{2i}, emb_l.{t}, top_l.{2i} (activations count too).
absl::StatusOr<Forward> BuildDlrm(const v1::Dlrm& dlrm, const DataFacts& facts,
                                  GraphBuilder& builder);

// Parameters as transformers' GPT2LMHeadModel: transformer.wte.weight [vocab, width],
// transformer.wpe.weight [context, width], transformer.h.{i}.{ln_1, attn.c_attn, attn.c_proj, ln_2,
// mlp.c_fc, mlp.c_proj}, transformer.ln_f; linear weights [in, out] (Conv1D); lm_head.weight
// [vocab, width] only when it is not tied to wte.
absl::StatusOr<Forward> BuildGpt(const v1::Gpt& gpt, const DataFacts& facts, GraphBuilder& builder);

// Parameters as transformers' LlamaForCausalLM: model.embed_tokens.weight [vocab, width],
// model.layers.{i}.{input_layernorm, self_attn.{q,k,v,o}_proj, post_attention_layernorm,
// mlp.{gate,up,down}_proj}, model.norm; linear weights [out, in]; lm_head.weight only when it is
// not tied.
absl::StatusOr<Forward> BuildLlama(const v1::Llama& llama, const DataFacts& facts,
                                   GraphBuilder& builder);

// Parameters as transformers' BertForMaskedLM:
// bert.embeddings.{word,position,token_type}_embeddings, bert.embeddings.LayerNorm,
// bert.encoder.layer.{i}.{attention.self.{query,key,value}, attention.output.{dense,LayerNorm},
// intermediate.dense, output.{dense,LayerNorm}}, cls.predictions.transform.{dense,LayerNorm},
// cls.predictions.bias; linear weights [out, in].
absl::StatusOr<Forward> BuildBert(const v1::Bert& bert, const DataFacts& facts,
                                  GraphBuilder& builder);

// Parameters as transformers' ViTForImageClassification: vit.embeddings.{cls_token [1, 1, width],
// position_embeddings [1, patches + 1, width], patch_embeddings.projection},
// vit.encoder.layer.{i}.{layernorm_before, attention.attention.{query,key,value},
// attention.output.dense, layernorm_after, intermediate.dense, output.dense}, vit.layernorm,
// classifier; linear weights [out, in].
absl::StatusOr<Forward> BuildVit(const v1::Vit& vit, const DataFacts& facts, TensorId images,
                                 GraphBuilder& builder);

// `logits`: by shard.
void SetLogits(std::vector<TensorId> logits, const GraphBuilder& builder, Forward& forward);

// `vocab`, after a look at the data: kInvalidArgument when it has more tokens, or fewer than one
// sample takes.
absl::StatusOr<int64_t> VocabularyFor(const char* family, int64_t context, int64_t vocab,
                                      const DataFacts& facts);
// Parameters and buffers as transformers' ResNetForImageClassification: resnet.embedder.embedder
// and resnet.encoder.stages.{s}.layers.{i}.{layer.{k}, shortcut}, each with convolution.weight
// [out, in, kernel, kernel] and normalization.{weight, bias, running_mean, running_var};
// classifier.1.
absl::StatusOr<Forward> BuildResnet(const v1::Resnet& resnet, const DataFacts& facts,
                                    TensorId images, GraphBuilder& builder);

// Parameters and buffers as transformers' MobileNetV2ForImageClassification:
// mobilenet_v2.{conv_stem.{first_conv, conv_3x3, reduce_1x1}, layer.{i}.{expand_1x1, conv_3x3,
// reduce_1x1}, conv_1x1}, each with convolution.weight [out, in / groups, kernel, kernel] and
// normalization.{weight, bias, running_mean, running_var}; classifier.
absl::StatusOr<Forward> BuildMobilenet(const v1::Mobilenet& mobilenet, const DataFacts& facts,
                                       TensorId images, GraphBuilder& builder);

// The layers that a spec names, under their own names (layers.cc). `images`: kNone where it is of
// tokens.
absl::StatusOr<Forward> BuildLayers(const v1::LayerList& layers, const DataFacts& facts,
                                    TensorId images, GraphBuilder& builder);

// From a normal of deviation sqrt(2 / fan_in): keeps the variance through relu (He et al. 2015).
double KaimingStd(int64_t fan_in);
// sqrt(1 / fan_in), for a layer that no activation follows.
double LecunStd(int64_t fan_in);

ActivationKind KindOf(v1::Activation activation);

// The family of a resolved spec, behind the normalisation of its images if it is one of images.
absl::StatusOr<Forward> BuildForward(const v1::JobSpec& spec, const DataFacts& facts,
                                     GraphBuilder& builder);

}  // namespace trainyard::plan
