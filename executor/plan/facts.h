#pragma once

#include <cstdint>

namespace trainyard::plan {

// What the model must know of its data. executor/data reads them from the files; a spec that
// declares them all needs no file to be planned.
struct DataFacts {
  enum class Kind { kImages, kTokens, kClicks };
  Kind kind = Kind::kImages;

  // Images: [height, width, channels] floats and a label in [0, classes).
  int64_t height = 0, width = 0, channels = 0, classes = 0;

  // Tokens: ids in [0, vocab).
  int64_t vocab = 0;

  // Clicks: `dense` floats and `categorical` ids in [0, buckets), and a label of 0 or 1.
  int64_t dense = 0, categorical = 0, buckets = 0;

  // Samples of one epoch (images, clicks), or tokens of the training part. 0: unknown (steps are
  // given).
  int64_t train_size = 0;
  int64_t validation_size = 0;  // 0: there is no held-out split
};

// "images", "tokens", "clicks".
const char* NameOf(DataFacts::Kind kind);

}  // namespace trainyard::plan
