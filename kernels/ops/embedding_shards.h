#pragma once

// A look-up in a vocabulary whose rows are shared out among several tables.

#include "kernels/ops/embedding_tables.h"

namespace trainyard::kernels {

// y[p, :] = row ids[p] of the vocabulary + 0
//   ids: [places] i32 in [0, vocab); y: [places, width]
//   tables: hold the rows of the vocabulary from `first` on, one table behind the other
// The loader checked the ids; an id out of range aborts on the CPU. Places whose row is in no table
// become 0: so the results of several devices, each with some of the tables, add up to the row, bit
// for bit, since no result is -0.
template <typename T>
struct EmbeddingShardsForwardOf {
  static constexpr const char* kName = "embedding_shards";
  T ids, y;
  TablesOf<T> tables;
  int64_t places = 0, width = 0, first = 0, vocab = 0;

  const char* Problem() const { return tables.list.Problem(); }
  TY_FIELDS(Read(ids, I32), Read(tables), Write(y), places, width, MayBeZero(first), vocab)
};
using EmbeddingShardsForward = EmbeddingShardsForwardOf<Buffer>;

// gradients: laid out like the tables. Their row ids[p] += dy[p, :], in order of p.
template <typename T>
struct EmbeddingShardsBackwardOf {
  static constexpr const char* kName = "embedding_shards_backward";
  T dy, ids;
  TablesOf<T> gradients;
  int64_t places = 0, width = 0, first = 0, vocab = 0;

  const char* Problem() const { return gradients.list.Problem(); }
  TY_FIELDS(Read(dy), Read(ids, I32), Update(gradients), places, width, MayBeZero(first), vocab)
};
using EmbeddingShardsBackward = EmbeddingShardsBackwardOf<Buffer>;

}  // namespace trainyard::kernels
