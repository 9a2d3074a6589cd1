// B batch, T context, C width, H heads, K key-value heads, D head width, F mlp width, V vocabulary.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/shard_builder.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

// Weights N(0, 0.02), those that end a residual branch smaller, as in gpt.cc.
// x + attention(norm(x)), then x + mlp(norm(x)) (Touvron et al. 2023).
TensorId AddBlock(const v1::Llama& llama, const std::string& name, TensorId x,
                  GraphBuilder& builder) {
  const int64_t T = llama.context(), C = llama.width(), F = llama.mlp_width();
  const int64_t H = llama.heads(), K = llama.kv_heads(), D = C / H, G = H / K;
  const int64_t rows = builder.batch() * T;
  const GraphBuilder::LinearOptions last = {
      .bias = false, .std = kInitializerRange / std::sqrt(2.0 * llama.layers())};

  ShardBuilder shards(builder);
  const std::string attn = absl::StrCat(name, ".self_attn");
  const std::string o_proj = absl::StrCat(attn, ".o_proj");
  TensorId y = builder.RmsNorm(absl::StrCat(name, ".input_layernorm"), x, rows, C, llama.epsilon());
  y = shards.Sum(
      y, {.name = o_proj, .cut = shards.CutHeads(H, K), .cols = C},
      [&](const ShardBuilder::Shard& shard, TensorId z) {
        const Run heads = shard.things, kv_heads = {heads.first / G, (heads.end + G - 1) / G};
        const int64_t h = heads.size(), k = kv_heads.size();
        const Run q = {heads.first * D, heads.end * D}, kv = {kv_heads.first * D, kv_heads.end * D};
        z = shards.SideBySide(absl::StrCat(attn, ".qkv_proj"), shard, z, rows, C,
                              {{absl::StrCat(attn, ".q_proj"), H * D},
                               {absl::StrCat(attn, ".k_proj"), K * D},
                               {absl::StrCat(attn, ".v_proj"), K * D}},
                              {q, kv, kv}, kInitializerRange);
        z = builder.Rotate(absl::StrCat(attn, ".rotary"), z, T, h + 2 * k, h + k, D,
                           llama.rope_theta());
        z = builder.Attention(attn, z, T, h, k, D, {});
        return shards.LinearOut(o_proj, shard, z, rows, {C, {q}}, C, last);
      });
  x = builder.Sum(absl::StrCat(name, ".after_attn"), x, y);

  const std::string mlp = absl::StrCat(name, ".mlp");
  y = builder.RmsNorm(absl::StrCat(name, ".post_attention_layernorm"), x, rows, C, llama.epsilon());
  const std::string down_proj = absl::StrCat(mlp, ".down_proj");
  y = shards.Sum(y, {.name = down_proj, .cut = shards.Cut(F), .cols = C},
                 [&](const ShardBuilder::Shard& shard, TensorId z) {
                   const Run f = shard.things;
                   z = shards.SideBySide(
                       absl::StrCat(mlp, ".gate_up_proj"), shard, z, rows, C,
                       {{absl::StrCat(mlp, ".gate_proj"), F}, {absl::StrCat(mlp, ".up_proj"), F}},
                       {f, f}, kInitializerRange);
                   z = builder.SwiGlu(absl::StrCat(mlp, ".act"), z, rows, f.size());
                   return shards.LinearOut(down_proj, shard, z, rows, {F, {f}}, C, last);
                 });
  return builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
}

}  // namespace

absl::StatusOr<Forward> BuildLlama(const v1::Llama& llama, const DataFacts& facts,
                                   GraphBuilder& builder) {
  const int64_t T = llama.context(), C = llama.width();
  TY_ASSIGN_OR_RETURN(
      const int64_t V,
      VocabularyFor("llama", T, llama.has_vocab_size() ? llama.vocab_size() : facts.vocab, facts));
  const int64_t rows = builder.batch() * T;
  Forward forward;
  forward.rows_per_sample = T;
  forward.classes = V;
  forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), T});
  ShardBuilder shards(builder);
  const ShardBuilder::Vocabulary tokens =
      shards.Tokens("model.embed_tokens.weight", V, C, kInitializerRange);
  TensorId x = shards.Embedding("model.embedding", forward.input, tokens, kNone, T);
  for (int i = 0; i < llama.layers(); ++i) {
    x = AddBlock(llama, absl::StrCat("model.layers.", i), x, builder);
  }
  x = builder.RmsNorm("model.norm", x, rows, C, llama.epsilon());
  const ShardBuilder::Vocabulary head =
      llama.tie_embeddings() ? shards.Again(tokens)
                             : shards.Tokens("lm_head.weight", V, C, kInitializerRange);
  SetLogits(shards.Logits("lm_head", x, head, rows), builder, forward);
  return forward;
}

}  // namespace trainyard::plan
