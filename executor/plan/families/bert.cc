// B batch, T context, C width, H heads, V vocabulary.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "executor/plan/graph/shard_builder.h"
#include "storage/base/status.h"

namespace trainyard::plan {
namespace {

// norm(x + attention(x)), then norm(x + mlp(x)) (Devlin et al. 2019).
TensorId AddBlock(const v1::Bert& bert, const std::string& name, TensorId x, TensorId lengths,
                  GraphBuilder& builder) {
  const int64_t T = bert.context(), C = bert.width(), H = bert.heads();
  const int64_t rows = builder.batch() * T;
  const GraphBuilder::LinearOptions linear = {.std = kInitializerRange};

  const std::string attn = absl::StrCat(name, ".attention");
  ShardBuilder shards(builder);
  const std::string attn_out = absl::StrCat(attn, ".output.dense");
  TensorId y = shards.Sum(
      x, {.name = attn_out, .cut = shards.Cut(H), .cols = C, .bias = true},
      [&](const ShardBuilder::Shard& shard, TensorId z) {
        const Run heads = shard.things, cols = {heads.first * (C / H), heads.end * (C / H)};
        z = shards.SideBySide(absl::StrCat(attn, ".self.qkv"), shard, z, rows, C,
                              {{absl::StrCat(attn, ".self.query"), C},
                               {absl::StrCat(attn, ".self.key"), C},
                               {absl::StrCat(attn, ".self.value"), C}},
                              {cols, cols, cols}, kInitializerRange, /*bias=*/true);
        z = builder.Attention(attn, z, T, heads.size(), heads.size(), C / H,
                              {.causal = false, .lengths = lengths});
        return shards.LinearOut(attn_out, shard, z, rows, {C, {cols}}, C, linear);
      });
  y = builder.Drop(absl::StrCat(attn, ".output.dropout"), y, bert.dropout());
  x = builder.Sum(absl::StrCat(name, ".after_attention"), x, y);
  x = builder.LayerNorm(absl::StrCat(attn, ".output.LayerNorm"), x, rows, C, true, bert.epsilon());

  const std::string mlp_out = absl::StrCat(name, ".output.dense");
  y = shards.Sum(x, {.name = mlp_out, .cut = shards.Cut(bert.mlp_width()), .cols = C, .bias = true},
                 [&](const ShardBuilder::Shard& shard, TensorId z) {
                   const ShardBuilder::Columns hidden = {bert.mlp_width(), {shard.things}};
                   z = shards.LinearIn(absl::StrCat(name, ".intermediate.dense"), shard, z, rows, C,
                                       hidden, linear);
                   z = builder.Activate(absl::StrCat(name, ".intermediate.act"), z,
                                        KindOf(bert.activation()));
                   return shards.LinearOut(mlp_out, shard, z, rows, hidden, C, linear);
                 });
  y = builder.Drop(absl::StrCat(name, ".output.dropout"), y, bert.dropout());
  x = builder.Sum(absl::StrCat(name, ".after_mlp"), x, y);
  return builder.LayerNorm(absl::StrCat(name, ".output.LayerNorm"), x, rows, C, true,
                           bert.epsilon());
}

// Rows of the token embedding: the data's tokens, the mask token, and what the spec asks for.
absl::StatusOr<int64_t> VocabularyOf(const v1::Bert& bert, const DataFacts& facts) {
  const int64_t mask = bert.has_mask_token() ? bert.mask_token() : facts.vocab;
  const int64_t needed = std::max(facts.vocab, mask + 1);
  if (!bert.has_vocab_size() || bert.vocab_size() >= needed) {
    return bert.has_vocab_size() ? bert.vocab_size() : needed;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("spec.model.bert.vocab_size: ", bert.vocab_size(), " is less than ", needed,
                   ", for the ", facts.vocab, " tokens of the data and the mask token ", mask));
}

}  // namespace

absl::StatusOr<Forward> BuildBert(const v1::Bert& bert, const DataFacts& facts,
                                  GraphBuilder& builder) {
  TY_ASSIGN_OR_RETURN(const int64_t V, VocabularyOf(bert, facts));
  const int64_t T = bert.context(), C = bert.width(), rows = builder.batch() * T;
  const std::string at = "bert.embeddings", head = "cls.predictions";
  Forward forward;
  forward.rows_per_sample = T;
  forward.classes = V;
  forward.input = builder.Input("input", ElementType::kI32, {builder.batch(), T});
  forward.ids = builder.Input("lengths", ElementType::kI32, {builder.batch()});
  ShardBuilder shards(builder);
  const ShardBuilder::Vocabulary tokens =
      shards.Tokens(at + ".word_embeddings.weight", V, C, kInitializerRange);
  const TensorId positions =
      builder.Parameter(at + ".position_embeddings.weight", {T, C}, kInitializerRange);
  const TensorId types = builder.Parameter(at + ".token_type_embeddings.weight",
                                           {bert.token_types(), C}, kInitializerRange);
  TensorId x = shards.Embedding(at + ".sum", forward.input, tokens, positions, T);
  x = builder.AddBias(at + ".with_type", x, types, C);
  x = builder.LayerNorm(at + ".LayerNorm", x, rows, C, true, bert.epsilon());
  x = builder.Drop(at + ".dropout", x, bert.dropout());
  for (int i = 0; i < bert.layers(); ++i) {
    x = AddBlock(bert, absl::StrCat("bert.encoder.layer.", i), x, forward.ids, builder);
  }
  x = builder.Linear(head + ".transform.dense", x, rows, C, C, {.std = kInitializerRange});
  x = builder.Activate(head + ".transform.act", x, KindOf(bert.activation()));
  x = builder.LayerNorm(head + ".transform.LayerNorm", x, rows, C, true, bert.epsilon());
  SetLogits(shards.Logits(head + ".decoder", x, shards.Again(tokens), rows, head + ".bias"),
            builder, forward);
  return forward;
}

}  // namespace trainyard::plan
