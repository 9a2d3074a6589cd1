#include "executor/data/clicks/click_samples.h"

#include <algorithm>

#include "storage/base/status.h"

namespace trainyard::data {

ClickSamples::ClickSamples(const plan::DataFacts& facts) {
  facts_ = facts;
  input_bytes_ = facts.dense * static_cast<int64_t>(sizeof(float)) +
                 facts.categorical * static_cast<int64_t>(sizeof(int32_t));
  target_bytes_ = sizeof(int32_t);
}

absl::Status ClickSamples::Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                                void* targets) const {
  float* dense = static_cast<float*>(inputs);
  int32_t* ids = reinterpret_cast<int32_t*>(dense + samples.size() * facts_.dense);
  int32_t* target = static_cast<int32_t*>(targets);
  for (const int64_t sample : samples) {
    if (sample < 0) {
      std::fill(dense, dense + facts_.dense, 0.0f);
      std::fill(ids, ids + facts_.categorical, 0);
      *target = -1;
    } else {
      TY_CHECK(sample < size(split), "sample ", sample, " of ", size(split));
      *target = Read(split, sample, dense, ids) ? 1 : 0;
    }
    dense += facts_.dense;
    ids += facts_.categorical;
    ++target;
  }
  return absl::OkStatus();
}

}  // namespace trainyard::data
