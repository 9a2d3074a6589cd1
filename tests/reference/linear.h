#pragma once

#include "tests/reference/vec.h"

namespace trainyard::reference {

// op(a) op(b), as kernels/ops/matmul.h without bias.
Vec Matmul(const Vec& a, const Vec& b, int64_t m, int64_t n, int64_t k, bool transpose_a,
           bool transpose_b);

Vec ColumnSum(const Vec& x, int64_t rows, int64_t cols);

// positions may be empty.
Vec Embedding(const std::vector<int32_t>& ids, const Vec& tokens, const Vec& positions,
              int64_t batch, int64_t time, int64_t width);

struct EmbeddingGradient {
  Vec dtokens;     // [vocab, width]
  Vec dpositions;  // [time, width]
};
EmbeddingGradient EmbeddingBackward(const std::vector<int32_t>& ids, const Vec& dy, int64_t batch,
                                    int64_t time, int64_t width, int64_t vocab);

}  // namespace trainyard::reference
