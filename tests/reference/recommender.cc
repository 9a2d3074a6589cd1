#include "tests/reference/recommender.h"

#include <cmath>

namespace trainyard::reference {

Vec EmbeddingTables(const std::vector<int32_t>& ids, const std::vector<Vec>& tables, int64_t batch,
                    int64_t width) {
  const auto count = static_cast<int64_t>(tables.size());
  Vec y(batch * count * width);
  for (int64_t i = 0; i < batch * count; ++i) {
    for (int64_t c = 0; c < width; ++c) y[i * width + c] = tables[i % count][ids[i] * width + c];
  }
  return y;
}

std::vector<Vec> EmbeddingTablesBackward(const std::vector<int32_t>& ids, const Vec& dy,
                                         const std::vector<int64_t>& rows, int64_t batch,
                                         int64_t width) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<Vec> gradients;
  for (const int64_t n : rows) gradients.emplace_back(n * width, 0.0);
  for (int64_t i = 0; i < batch * count; ++i) {
    for (int64_t c = 0; c < width; ++c)
      gradients[i % count][ids[i] * width + c] += dy[i * width + c];
  }
  return gradients;
}

void MergeRows(std::vector<int32_t>& ids, Vec& grad, int64_t samples, int64_t count,
               int64_t width) {
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t s = 0; s < samples; ++s) {
      for (int64_t first = 0; first < s; ++first) {
        if (ids[s * count + t] < 0 || ids[first * count + t] != ids[s * count + t]) continue;
        for (int64_t c = 0; c < width; ++c) {
          grad[(first * count + t) * width + c] += grad[(s * count + t) * width + c];
          grad[(s * count + t) * width + c] = 0;
        }
        ids[s * count + t] = -1;
      }
    }
  }
}

namespace {

struct Rows {
  std::vector<int32_t>& ids;
  std::vector<float>& grad;
  int64_t count, width;

  void Merge(int64_t t, int64_t to, int64_t from) const {
    const int64_t a = to * count + t, b = from * count + t;
    if (a == b || ids[b] < 0 || ids[a] != ids[b]) return;
    for (int64_t c = 0; c < width; ++c) {
      grad[a * width + c] += grad[b * width + c];
      grad[b * width + c] = 0;
    }
    ids[b] = -1;
  }
};

void MergeRanks(const Rows& rows, int64_t t, int64_t of_rank, int64_t first, int64_t end) {
  if (end - first == 1) {
    for (int64_t s = first * of_rank; s < end * of_rank; ++s) {
      for (int64_t before = first * of_rank; before < s; ++before) rows.Merge(t, before, s);
    }
    return;
  }
  int64_t left = 1;
  while (2 * left < end - first) left *= 2;
  const int64_t middle = first + left;
  MergeRanks(rows, t, of_rank, first, middle);
  MergeRanks(rows, t, of_rank, middle, end);
  for (int64_t s = middle * of_rank; s < end * of_rank; ++s) {
    for (int64_t to = first * of_rank; to < middle * of_rank; ++to) rows.Merge(t, to, s);
  }
}

}  // namespace

void MergeRowsByTree(std::vector<int32_t>& ids, std::vector<float>& grad, int64_t samples,
                     int64_t count, int64_t width, int64_t logical_ranks) {
  for (int64_t t = 0; t < count; ++t) {
    MergeRanks({ids, grad, count, width}, t, samples / logical_ranks, 0, logical_ranks);
  }
}

namespace {

// Feature i of sample b: x, then the rows of e.
int64_t At(int64_t b, int64_t i, const InteractionShape& s) {
  return i == 0 ? b * s.width : (b * s.count + i - 1) * s.width;
}

}  // namespace

Vec Interaction(const Vec& x, const Vec& e, const InteractionShape& s) {
  Vec y;
  for (int64_t b = 0; b < s.batch; ++b) {
    y.insert(y.end(), x.begin() + b * s.width, x.begin() + (b + 1) * s.width);
    for (int64_t i = 1; i <= s.count; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < s.width; ++c) {
          dot += e[At(b, i, s) + c] * (j == 0 ? x : e)[At(b, j, s) + c];
        }
        y.push_back(dot);
      }
    }
  }
  return y;
}

InteractionGradient InteractionBackward(const Vec& dy, const Vec& x, const Vec& e,
                                        const InteractionShape& s) {
  InteractionGradient g{Vec(x.size(), 0.0), Vec(e.size(), 0.0)};
  for (int64_t b = 0; b < s.batch; ++b) {
    const double* d = dy.data() + b * s.out();
    for (int64_t c = 0; c < s.width; ++c) g.dx[b * s.width + c] += *d++;
    for (int64_t i = 1; i <= s.count; ++i) {
      for (int64_t j = 0; j < i; ++j, ++d) {
        for (int64_t c = 0; c < s.width; ++c) {
          g.de[At(b, i, s) + c] += *d * (j == 0 ? x : e)[At(b, j, s) + c];
          (j == 0 ? g.dx : g.de)[At(b, j, s) + c] += *d * e[At(b, i, s) + c];
        }
      }
    }
  }
  return g;
}

BinaryCrossEntropyResult BinaryCrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                            double scale) {
  const size_t rows = targets.size();
  BinaryCrossEntropyResult out{Vec(rows, 0.0), Vec(rows, 0.0), Vec(rows, 0.0)};
  for (size_t r = 0; r < rows; ++r) {
    if (targets[r] < 0) continue;
    const double x = logits[r];
    out.losses[r] = std::max(x, 0.0) - x * targets[r] + std::log1p(std::exp(-std::fabs(x)));
    out.correct[r] = (x > 0) == (targets[r] == 1) ? 1 : 0;
    out.dlogits[r] = scale * (1 / (1 + std::exp(-x)) - targets[r]);
  }
  return out;
}

}  // namespace trainyard::reference
