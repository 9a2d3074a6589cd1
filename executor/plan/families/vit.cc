// P patches, T = P + 1 places, C width, H heads.

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/shard_builder.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

// x + attention(norm(x)), then x + mlp(norm(x)).
TensorId AddBlock(const v1::Vit& vit, const std::string& name, TensorId x, int64_t T,
                  GraphBuilder& builder) {
  const int64_t rows = builder.batch() * T, C = vit.width(), H = vit.heads();
  const GraphBuilder::LinearOptions linear = {.std = kInitializerRange};

  const std::string attn = absl::StrCat(name, ".attention");
  TensorId y =
      builder.LayerNorm(absl::StrCat(name, ".layernorm_before"), x, rows, C, true, vit.epsilon());
  ShardBuilder shards(builder);
  const std::string attn_out = absl::StrCat(attn, ".output.dense");
  y = shards.Sum(
      y, {.name = attn_out, .cut = shards.Cut(H), .cols = C, .bias = true},
      [&](const ShardBuilder::Shard& shard, TensorId z) {
        const Run heads = shard.things, cols = {heads.first * (C / H), heads.end * (C / H)};
        z = shards.SideBySide(absl::StrCat(attn, ".attention.qkv"), shard, z, rows, C,
                              {{absl::StrCat(attn, ".attention.query"), C},
                               {absl::StrCat(attn, ".attention.key"), C},
                               {absl::StrCat(attn, ".attention.value"), C}},
                              {cols, cols, cols}, kInitializerRange, /*bias=*/true);
        z = builder.Attention(attn, z, T, heads.size(), heads.size(), C / H, {.causal = false});
        return shards.LinearOut(attn_out, shard, z, rows, {C, {cols}}, C, linear);
      });
  y = builder.Drop(absl::StrCat(attn, ".output.dropout"), y, vit.dropout());
  x = builder.Sum(absl::StrCat(name, ".after_attention"), x, y);

  y = builder.LayerNorm(absl::StrCat(name, ".layernorm_after"), x, rows, C, true, vit.epsilon());
  const std::string mlp_out = absl::StrCat(name, ".output.dense");
  y = shards.Sum(y, {.name = mlp_out, .cut = shards.Cut(vit.mlp_width()), .cols = C, .bias = true},
                 [&](const ShardBuilder::Shard& shard, TensorId z) {
                   const ShardBuilder::Columns hidden = {vit.mlp_width(), {shard.things}};
                   z = shards.LinearIn(absl::StrCat(name, ".intermediate.dense"), shard, z, rows, C,
                                       hidden, linear);
                   z = builder.Activate(absl::StrCat(name, ".intermediate.act"), z,
                                        KindOf(vit.activation()));
                   return shards.LinearOut(mlp_out, shard, z, rows, hidden, C, linear);
                 });
  y = builder.Drop(absl::StrCat(name, ".output.dropout"), y, vit.dropout());
  return builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
}

}  // namespace

absl::StatusOr<Forward> BuildVit(const v1::Vit& vit, const DataFacts& facts, TensorId images,
                                 GraphBuilder& builder) {
  const int64_t patch = vit.patch(), C = vit.width();
  if (facts.height % patch != 0 || facts.width % patch != 0) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model.vit.patch: ", patch,
                                                   " does not divide the ", facts.height, "x",
                                                   facts.width, " images of the data"));
  }
  const int64_t P = (facts.height / patch) * (facts.width / patch), T = P + 1;
  const std::string at = "vit.embeddings";
  Forward forward;
  forward.classes = facts.classes;
  TensorId x =
      builder.Convolution(at + ".patch_embeddings.projection", images, C,
                          {.kernel = patch, .stride = patch, .pad = 0, .std = kInitializerRange});
  x = builder.Concat(at + ".with_class",
                     builder.Parameter(at + ".cls_token", {1, 1, C}, kInitializerRange), C, x,
                     P * C);
  x = builder.AddBias(at + ".with_positions", x,
                      builder.Parameter(at + ".position_embeddings", {1, T, C}, kInitializerRange),
                      T * C);
  x = builder.Drop(at + ".dropout", x, vit.dropout());
  for (int i = 0; i < vit.layers(); ++i) {
    x = AddBlock(vit, absl::StrCat("vit.encoder.layer.", i), x, T, builder);
  }
  // The last norm goes row by row: only the class token's is needed.
  x = builder.First("vit.class", x, C);
  x = builder.LayerNorm("vit.layernorm", x, builder.batch(), C, true, vit.epsilon());
  forward.logits = builder.Linear("classifier", x, builder.batch(), C, forward.classes,
                                  {.std = kInitializerRange});
  return forward;
}

}  // namespace trainyard::plan
