#pragma once

// What a masked language model has to find (Devlin et al. 2019, 3.1).

#include <cstdint>

namespace trainyard::data {

struct Masking {
  double rate = 0;    // of the tokens of a window that are drawn, each by itself
  int32_t token = 0;  // what hides them
  int64_t vocab = 0;  // others that replace them are in [0, vocab)
};

// Of ids[0, n), one window, the drawn ones go to `targets`, all others become -1 there. Of the
// drawn ones 80 % become masking.token, 10 % a random token, 10 % stay. A function of (seed, epoch,
// sample).
void Mask(const Masking& masking, uint64_t seed, int64_t epoch, int64_t sample, int64_t n,
          int32_t* ids, int32_t* targets);

}  // namespace trainyard::data
