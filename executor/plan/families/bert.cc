// B batch, T context, C width, H heads, V vocabulary.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
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
  TensorId y = builder.LinearSideBySide(absl::StrCat(attn, ".self.qkv"), x, rows, C,
                                        {{absl::StrCat(attn, ".self.query"), C},
                                         {absl::StrCat(attn, ".self.key"), C},
                                         {absl::StrCat(attn, ".self.value"), C}},
                                        kInitializerRange, /*bias=*/true);
  y = builder.Attention(attn, y, T, H, H, C / H, {.causal = false, .lengths = lengths});
  y = builder.Linear(absl::StrCat(attn, ".output.dense"), y, rows, C, C, linear);
  y = builder.Drop(absl::StrCat(attn, ".output.dropout"), y, bert.dropout());
  x = builder.Sum(absl::StrCat(name, ".after_attention"), x, y);
  x = builder.LayerNorm(absl::StrCat(attn, ".output.LayerNorm"), x, rows, C, true, bert.epsilon());

  y = builder.Linear(absl::StrCat(name, ".intermediate.dense"), x, rows, C, bert.mlp_width(),
                     linear);
  y = builder.Activate(absl::StrCat(name, ".intermediate.act"), y, KindOf(bert.activation()));
  y = builder.Linear(absl::StrCat(name, ".output.dense"), y, rows, bert.mlp_width(), C, linear);
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
  const TensorId tokens =
      builder.Parameter(at + ".word_embeddings.weight", {V, C}, kInitializerRange);
  const TensorId positions =
      builder.Parameter(at + ".position_embeddings.weight", {T, C}, kInitializerRange);
  const TensorId types = builder.Parameter(at + ".token_type_embeddings.weight",
                                           {bert.token_types(), C}, kInitializerRange);
  TensorId x = builder.Embedding(at + ".sum", forward.input, tokens, positions, T);
  x = builder.AddBias(at + ".with_type", x, types, C);
  x = builder.LayerNorm(at + ".LayerNorm", x, rows, C, true, bert.epsilon());
  x = builder.Drop(at + ".dropout", x, bert.dropout());
  for (int i = 0; i < bert.layers(); ++i) {
    x = AddBlock(bert, absl::StrCat("bert.encoder.layer.", i), x, forward.ids, builder);
  }
  x = builder.Linear(head + ".transform.dense", x, rows, C, C, {.std = kInitializerRange});
  x = builder.Activate(head + ".transform.act", x, KindOf(bert.activation()));
  x = builder.LayerNorm(head + ".transform.LayerNorm", x, rows, C, true, bert.epsilon());
  forward.logits = builder.Project(head + ".decoder", x, tokens, rows, C, V,
                                   builder.Parameter(head + ".bias", {V}, 0));
  return forward;
}

}  // namespace trainyard::plan
