#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// y[b, t, :] = tokens[ids[b, t], :] + positions[t, :]
//   ids: [batch, time] i32 in [0, vocab); tokens: [vocab, width]; positions: [>= time, width],
//   optional
// The loader checked the ids; an id out of range aborts on the CPU.
struct EmbeddingForward {
  Buffer ids, tokens, positions, y;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
};

// dtokens[id, :] += dy of each place where id occurs, in order of (b, t); dpositions[t, :] += sum
// over b. Always accumulates: the caller zeroes, or another gradient of a tied table is there
// already.
struct EmbeddingBackward {
  Buffer dy, ids, dtokens, dpositions;
  int64_t batch = 0, time = 0, width = 0, vocab = 0;
};

}  // namespace trainyard::kernels
