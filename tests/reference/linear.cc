#include "tests/reference/linear.h"

namespace trainyard::reference {

Vec Matmul(const Vec& a, const Vec& b, int64_t m, int64_t n, int64_t k, bool transpose_a,
           bool transpose_b) {
  Vec c(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double left = transpose_a ? a[p * m + i] : a[i * k + p];
      for (int64_t j = 0; j < n; ++j) {
        c[i * n + j] += left * (transpose_b ? b[j * k + p] : b[p * n + j]);
      }
    }
  }
  return c;
}

Vec ColumnSum(const Vec& x, int64_t rows, int64_t cols) {
  Vec y(cols, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) y[c] += x[r * cols + c];
  }
  return y;
}

Vec Embedding(const std::vector<int32_t>& ids, const Vec& tokens, const Vec& positions,
              int64_t batch, int64_t time, int64_t width) {
  Vec y(batch * time * width);
  for (int64_t i = 0; i < batch * time; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      y[i * width + c] =
          tokens[ids[i] * width + c] + (positions.empty() ? 0.0 : positions[i % time * width + c]);
    }
  }
  return y;
}

EmbeddingGradient EmbeddingBackward(const std::vector<int32_t>& ids, const Vec& dy, int64_t batch,
                                    int64_t time, int64_t width, int64_t vocab) {
  EmbeddingGradient g{Vec(vocab * width, 0.0), Vec(time * width, 0.0)};
  for (int64_t i = 0; i < batch * time; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      g.dtokens[ids[i] * width + c] += dy[i * width + c];
      g.dpositions[i % time * width + c] += dy[i * width + c];
    }
  }
  return g;
}

}  // namespace trainyard::reference
