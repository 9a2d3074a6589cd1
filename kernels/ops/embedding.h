#pragma once

#include "kernels/operand.h"

namespace trainyard::kernels {

// y[b, t, :] = tokens[ids[b, t], :] + positions[t, :]
//   ids: [batch, time] i32 in [0, vocab); tokens: [vocab, width]; positions: [>= time, width],
//   optional
// The loader checked the ids; an id out of range aborts on the CPU.
template <typename T>
struct EmbeddingForwardOf {
  static constexpr const char* kName = "embedding";
  T ids, tokens, positions, y;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
  TY_FIELDS(Read(ids, I32), Read(tokens), Read(positions, Optional()), Write(y), batch, time, width,
            vocab)
};
using EmbeddingForward = EmbeddingForwardOf<Buffer>;

// dtokens[id, :] += dy of each place where id occurs, in order of (b, t); dpositions[t, :] += sum
// over b. Always accumulates: the gradients were zeroed before, or another use of a tied table has
// already added to them.
template <typename T>
struct EmbeddingBackwardOf {
  static constexpr const char* kName = "embedding_backward";
  T dy, ids, dtokens, dpositions;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
  TY_FIELDS(Read(dy), Read(ids, I32), Update(dtokens), Update(dpositions, Optional()), batch, time,
            width, vocab)
};
using EmbeddingBackward = EmbeddingBackwardOf<Buffer>;

}  // namespace trainyard::kernels
