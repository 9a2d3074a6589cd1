// B batch, T context, C width, V vocabulary.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/shard_builder.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

using Layout = GraphBuilder::WeightLayout;

// nanoGPT's initialisation: weights N(0, 0.02), those that end a residual branch smaller so that
// the sum of 2 * layers branches keeps its variance (Radford et al. 2019, 2.3).
// x + attention(ln_1(x)), then x + mlp(ln_2(x)).
TensorId AddBlock(const v1::Gpt& gpt, const std::string& name, TensorId x, GraphBuilder& builder) {
  const int64_t time = gpt.context();
  const int64_t rows = builder.batch() * time;
  const int64_t width = gpt.width();
  const bool bias = gpt.bias();
  const double dropout = gpt.dropout();
  const GraphBuilder::LinearOptions inner = {
      .layout = Layout::kInOut, .bias = bias, .std = kInitializerRange};
  const GraphBuilder::LinearOptions last = {
      .layout = Layout::kInOut,
      .bias = bias,
      .std = kInitializerRange / std::sqrt(2.0 * gpt.layers())};

  ShardBuilder shards(builder);
  const std::string attn = absl::StrCat(name, ".attn");
  const std::string attn_proj = absl::StrCat(attn, ".c_proj");
  const int64_t head_dim = width / gpt.heads();
  TensorId y = builder.LayerNorm(absl::StrCat(name, ".ln_1"), x, rows, width, bias);
  y = shards.Sum(
      y,
      {.name = attn_proj,
       .cut = shards.Cut(gpt.heads()),
       .cols = width,
       .bias = bias,
       .dropout = dropout > 0},
      [&](const ShardBuilder::Shard& shard, TensorId z) {
        const Run heads = shard.things;
        const Run cols = {heads.first * head_dim, heads.end * head_dim};
        const auto from = [&](int64_t first) { return Run{first + cols.first, first + cols.end}; };
        z = shards.LinearIn(absl::StrCat(attn, ".c_attn"), shard, z, rows, width,
                            {3 * width, {from(0), from(width), from(2 * width)}}, inner);
        z = builder.Attention(attn, z, time, heads.size(), heads.size(), head_dim, {});
        z = shards.Drop(absl::StrCat(attn, ".attn_dropout"), shard, z, dropout, {width, {cols}});
        return shards.LinearOut(attn_proj, shard, z, rows, {width, {cols}}, width, last);
      });
  y = builder.Drop(absl::StrCat(attn, ".resid_dropout"), y, dropout);
  x = builder.Sum(absl::StrCat(name, ".after_attn"), x, y);

  const std::string mlp = absl::StrCat(name, ".mlp");
  y = builder.LayerNorm(absl::StrCat(name, ".ln_2"), x, rows, width, bias);
  const std::string mlp_proj = absl::StrCat(mlp, ".c_proj");
  y = shards.Sum(
      y, {.name = mlp_proj, .cut = shards.Cut(gpt.mlp_width()), .cols = width, .bias = bias},
      [&](const ShardBuilder::Shard& shard, TensorId z) {
        const ShardBuilder::Columns hidden = {gpt.mlp_width(), {shard.things}};
        z = shards.LinearIn(absl::StrCat(mlp, ".c_fc"), shard, z, rows, width, hidden, inner);
        z = builder.Activate(absl::StrCat(mlp, ".act"), z, KindOf(gpt.activation()));
        return shards.LinearOut(mlp_proj, shard, z, rows, hidden, width, last);
      });
  y = builder.Drop(absl::StrCat(mlp, ".dropout"), y, dropout);
  return builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
}

}  // namespace

absl::StatusOr<Forward> BuildGpt(const v1::Gpt& gpt, const DataFacts& facts,
                                 GraphBuilder& builder) {
  const int64_t time = gpt.context();
  TY_ASSIGN_OR_RETURN(
      const int64_t vocab,
      VocabularyFor("gpt", time, gpt.has_vocab_size() ? gpt.vocab_size() : facts.vocab, facts));
  const int64_t rows = builder.batch() * time;
  Forward forward;
  forward.rows_per_sample = time;
  forward.classes = vocab;
  forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), time});
  ShardBuilder shards(builder);
  const ShardBuilder::Vocabulary wte =
      shards.Tokens("transformer.wte.weight", vocab, gpt.width(), kInitializerRange);
  const TensorId wpe =
      builder.Parameter("transformer.wpe.weight", {time, gpt.width()}, kInitializerRange);
  TensorId x = shards.Embedding("transformer.embedding", forward.input, wte, wpe, time);
  x = builder.Drop("transformer.drop", x, gpt.dropout());
  for (int i = 0; i < gpt.layers(); ++i) {
    x = AddBlock(gpt, absl::StrCat("transformer.h.", i), x, builder);
  }
  x = builder.LayerNorm("transformer.ln_f", x, rows, gpt.width(), gpt.bias());
  const ShardBuilder::Vocabulary head =
      gpt.tie_embeddings() ? shards.Again(wte)
                           : shards.Tokens("lm_head.weight", vocab, gpt.width(), kInitializerRange);
  SetLogits(shards.Logits("lm_head", x, head, rows), builder, forward);
  return forward;
}

}  // namespace trainyard::plan
