#pragma once

// The cross-entropy of kernels/ops/cross_entropy.h where the classes are shared out among several
// shards: shard s of n has those from s * classes / n to (s + 1) * classes / n. Each says what it
// knows of a row in five numbers, from which all is known that the gradient of its own logits
// takes.

#include "kernels/ops/embedding_tables.h"

namespace trainyard::kernels {

// What a shard knows of a row, as many floats side by side.
struct ClassStatistics {
  float largest;          // of its logits
  float sum;              // of exp(logit - largest)
  float mean;             // of logit - largest; 0 unless smoothing asks for it
  float of_target;        // the logit of the target; 0 unless this shard has it
  int32_t first_largest;  // the class of the first largest logit, counted in the shard; -1 unless
                          // asked for
};
inline constexpr int64_t kClassStatistics = sizeof(ClassStatistics) / sizeof(float);

// What all shards know of a row.
struct RowNorm {
  float largest;  // of all logits
  float sum;      // of exp(logit - largest)
};
inline constexpr int64_t kRowNorm = sizeof(RowNorm) / sizeof(float);

//   logits: [rows, classes] E, those of one shard, whose first class is `first`; targets: [rows]
//   i32, over all classes, negative: the row does not count
//   statistics: [rows, kClassStatistics]
template <typename T>
struct CrossEntropyShardOf {
  static constexpr const char* kName = "cross_entropy_shard";
  T logits, targets, statistics;
  int64_t rows = 0, classes = 0, first = 0;
  bool with_mean = false, with_first_largest = false;
  TY_FIELDS(Read(logits, E), Read(targets, I32), Write(statistics), rows, classes, MayBeZero(first),
            with_mean, with_first_largest)
};
using CrossEntropyShard = CrossEntropyShardOf<Buffer>;

//   statistics: of each shard that has classes, in order; classes: of all
//   losses, z_losses, correct: as CrossEntropy's; norms: [rows, kRowNorm]
// Sums over shards are added in the tree of kernels/ops/add_parts.h.
template <typename T>
struct CrossEntropyOfShardsOf {
  static constexpr const char* kName = "cross_entropy_of_shards";
  TablesOf<T> statistics;
  T targets, losses, z_losses, correct, norms;
  int64_t rows = 0, classes = 0;
  float smoothing = 0, z_loss = 0;

  const char* Problem() const { return statistics.list.Problem(); }
  TY_FIELDS(Read(statistics), Read(targets, I32), Write(losses), Write(z_losses, Optional()),
            Write(correct, Optional()), Write(norms, Optional()), rows, classes, smoothing, z_loss)
};
using CrossEntropyOfShards = CrossEntropyOfShardsOf<Buffer>;

// dlogits: as CrossEntropy's, of one shard; may be logits.
template <typename T>
struct CrossEntropyShardGradientOf {
  static constexpr const char* kName = "cross_entropy_shard_gradient";
  T logits, targets, norms, dlogits;
  T state;
  int64_t rows = 0, classes = 0, first = 0;
  int64_t all_classes = 0;
  float scale = 1, smoothing = 0, z_loss = 0;
  TY_FIELDS(Read(logits, E), Read(targets, I32), Read(norms), Write(dlogits, E),
            Read(state, Optional(State)), rows, classes, MayBeZero(first), all_classes, scale,
            smoothing, z_loss)
};
using CrossEntropyShardGradient = CrossEntropyShardGradientOf<Buffer>;

}  // namespace trainyard::kernels
