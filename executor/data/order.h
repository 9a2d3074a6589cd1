#pragma once

// Which training sample comes when: a pure function, so that any step can be resumed exactly and
// any rank can be asked for any share.

#include <cstdint>

namespace trainyard::data {

// `index` counts the samples of the whole run: step * batch_size + place in the global batch.
class Order {
 public:
  // `size`: samples of the training split. With replacement: sample `index` is uniform over the
  // split. Without: epoch index / size is its own permutation of the split.
  Order(uint64_t seed, int64_t size, bool with_replacement)
      : seed_(seed), size_(size), with_replacement_(with_replacement) {}

  int64_t Sample(int64_t index) const;
  int64_t Epoch(int64_t index) const { return index / size_; }

 private:
  uint64_t seed_;
  int64_t size_;
  bool with_replacement_;
};

}  // namespace trainyard::data
