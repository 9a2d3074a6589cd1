#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// Of an image: RGB.
inline constexpr int64_t kMostChannels = 3;

// What the model must know of its data. executor/data reads them from the files; a spec that
// declares them all needs no file to be planned.
struct DataFacts {
  enum class Kind { kImages, kTokens, kDocuments, kClicks };
  Kind kind = Kind::kImages;

  // Images: [height, width, channels] bytes and a label in [0, classes).
  int64_t height = 0, width = 0, channels = 0, classes = 0;

  // Tokens, documents: ids in [0, vocab).
  int64_t vocab = 0;

  // Clicks: `dense` floats and `categorical` ids in [0, buckets), and a label of 0 or 1.
  int64_t dense = 0, categorical = 0, buckets = 0;

  // Samples of one epoch (images, clicks, windows of documents), or tokens of the training part. 0:
  // unknown (steps are given).
  int64_t train_size = 0;
  int64_t validation_size = 0;  // 0: there is no held-out split

  // What the data set will hold in host memory, as its source counts it: in all, and besides for
  // each thread that fills samples. Estimated of data that was not read to its end; of data whose
  // files nobody has seen, what is known without them.
  int64_t held_bytes = 0;
  int64_t bytes_per_thread = 0;
};

// Whether training sees crops of these images, which the device makes: samples for training then
// come with places, i32 [kPlace] each (kernels::NormalizeImages).
inline bool TakesCrops(const v1::IdxData& idx) { return idx.crop_padding() > 0 || idx.flip(); }
inline constexpr int64_t kPlace = 3;

// "images", "tokens", "documents", "clicks".
const char* NameOf(DataFacts::Kind kind);

// Whether data with these facts can be trained on. kInvalidArgument names what is missing or odd.
absl::Status CheckFacts(const DataFacts& facts);

// The steps of a run: those given, or as many as go over the data `epochs` times. kInvalidArgument
// where its size is unknown or the steps are too many to count.
absl::StatusOr<int64_t> TotalSteps(const v1::JobSpec& spec, const DataFacts& facts);

// How a model wants text and tokens cut.
struct Windowing {
  int64_t context = 0;      // tokens of a window; 0: the model takes no tokens
  double mask_rate = 0;     // above 0: windows of documents, masked
  int64_t mask_token = -1;  // its id; -1: the first one beyond the data's

  bool masked() const { return mask_rate > 0; }
};

}  // namespace trainyard::plan
