#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

// tables[t]: [rows[t], width]; ids: [batch, tables].
Vec EmbeddingTables(const std::vector<int32_t>& ids, const std::vector<Vec>& tables, int64_t batch,
                    int64_t width);
// The gradient of each table, of rows[t] rows.
std::vector<Vec> EmbeddingTablesBackward(const std::vector<int32_t>& ids, const Vec& dy,
                                         const std::vector<int64_t>& rows, int64_t batch,
                                         int64_t width);

// As kernels/ops/embedding_tables.h says, in place.
void MergeRows(std::vector<int32_t>& ids, Vec& grad, int64_t samples, int64_t count, int64_t width);
// The same of several logical ranks, in floats, as their tree adds them up: without its rows in
// chains, by merging those of the right half of every subtree into those of the left.
void MergeRowsByTree(std::vector<int32_t>& ids, std::vector<float>& grad, int64_t samples,
                     int64_t count, int64_t width, int64_t logical_ranks);

struct InteractionShape {
  int64_t batch = 0, count = 0, width = 0;
  int64_t out() const { return width + count * (count + 1) / 2; }
};
Vec Interaction(const Vec& x, const Vec& e, const InteractionShape& s);
struct InteractionGradient {
  Vec dx, de;
};
InteractionGradient InteractionBackward(const Vec& dy, const Vec& x, const Vec& e,
                                        const InteractionShape& s);

struct BinaryCrossEntropyResult {
  Vec losses, correct;
  Vec dlogits;  // (sigmoid - target) * scale
};
BinaryCrossEntropyResult BinaryCrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                            double scale);

}  // namespace trainyard::reference
