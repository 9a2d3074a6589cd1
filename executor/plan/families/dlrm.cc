// Naumov et al. 2019, "Deep learning recommendation model for personalization and recommendation
// systems".

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

// Layers of `widths`, ReLU after each but, without `activate_last`, the last. The reference counts
// activations as layers.
template <typename Widths>
TensorId AddMlp(const std::string& name, TensorId x, int64_t in, const Widths& widths, int64_t out,
                bool activate_last, GraphBuilder& builder) {
  const int64_t rows = builder.batch();
  for (int i = 0; i <= widths.size(); ++i) {
    const bool last = i == widths.size();
    const int64_t width = last ? out : widths.Get(i);
    const std::string layer = absl::StrCat(name, ".", 2 * i);
    const double std = std::sqrt(2.0 / static_cast<double>(in + width));  // as the reference
    x = builder.Linear(layer, x, rows, in, width, {.std = std});
    if (!last || activate_last) {
      x = builder.Activate(absl::StrCat(name, ".", 2 * i + 1), x, ActivationKind::kRelu);
    }
    in = width;
  }
  return x;
}

absl::StatusOr<std::vector<int64_t>> TableRows(const v1::Dlrm& dlrm, const DataFacts& facts) {
  std::vector<int64_t> rows(dlrm.table_rows().begin(), dlrm.table_rows().end());
  if (rows.empty()) rows.assign(facts.categorical, facts.buckets);
  if (static_cast<int64_t>(rows.size()) != facts.categorical) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model.dlrm.table_rows: ", rows.size(),
                                                   " tables for the ", facts.categorical,
                                                   " categorical features of the data"));
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    if (rows[t] >= facts.buckets) continue;
    return absl::InvalidArgumentError(absl::StrCat("spec.model.dlrm.table_rows[", t, "]: ", rows[t],
                                                   " is less than the ", facts.buckets,
                                                   " values that the data makes"));
  }
  return rows;
}

}  // namespace

absl::StatusOr<Forward> BuildDlrm(const v1::Dlrm& dlrm, const DataFacts& facts,
                                  GraphBuilder& builder) {
  TY_ASSIGN_OR_RETURN(const std::vector<int64_t> rows, TableRows(dlrm, facts));
  const int64_t width = dlrm.embedding_width();
  Forward forward;
  forward.classes = 1;
  forward.binary = true;
  forward.input = builder.Input("input", ElementType::kF32, {builder.batch(), facts.dense});
  forward.ids = builder.Input("ids", ElementType::kI32, {builder.batch(), facts.categorical});
  const TensorId x = AddMlp("bot_l", forward.input, facts.dense, dlrm.bottom(), width,
                            /*activate_last=*/true, builder);
  const TensorId e = builder.EmbeddingTables("emb_l", forward.ids, rows, width, forward.tables);
  const TensorId products = builder.Interaction("interaction", x, e);
  const int64_t in = builder.tensor(products).dims[1];
  forward.logits = AddMlp("top_l", products, in, dlrm.top(), 1, /*activate_last=*/false, builder);
  return forward;
}

}  // namespace trainyard::plan
