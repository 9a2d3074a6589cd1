#pragma once

#include <cstdint>

#include "executor/data/dataset/dataset.h"

namespace trainyard::data {

// Samples of dense and categorical features and a click: how they are laid out for the device.
class ClickSamples : public Dataset {
 public:
  int64_t size(Split split) const override {
    return split == Split::kTrain ? facts_.train_size : facts_.validation_size;
  }
  absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override;
  bool sampled_with_replacement() const override { return false; }

 protected:
  explicit ClickSamples(const plan::DataFacts& facts);

  // Writes the features of a sample in [0, size(split)) and returns whether it is a click.
  virtual bool Read(Split split, int64_t sample, float* dense, int32_t* ids) const = 0;
};

}  // namespace trainyard::data
