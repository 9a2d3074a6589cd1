#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/data/dataset/dataset.h"
#include "executor/data/text/masking.h"

namespace trainyard::data {

// Token data cut into windows: the arithmetic that text and token files share. Masked windows lie
// side by side in both splits, all others as Dataset says.
class Windows : public Dataset {
 public:
  int64_t size(Split split) const override;
  absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override;
  absl::Status FillForTraining(uint64_t seed, absl::Span<const int64_t> samples,
                               absl::Span<const int64_t> epochs, void* inputs,
                               void* targets) const override;
  bool sampled_with_replacement() const override { return !windowing_.masked(); }

 protected:
  // `train`, `validation`: tokens of each part (a file, a document); no window leaves its part.
  Windows(const plan::Windowing& windowing, std::vector<int64_t> train,
          std::vector<int64_t> validation, int64_t vocab);

  // kInvalidArgument when no training window fits, or a held-out split has nothing to predict.
  absl::Status Check(const std::string& what) const;

  // Writes ids at + [0, n) of a part to `inputs` and, unless it is null, at + 1 + [0, n) to
  // `targets`.
  virtual absl::Status ReadWindow(Split split, size_t part, int64_t at, int64_t n, int32_t* inputs,
                                  int32_t* targets) const = 0;

 private:
  struct Parts {
    std::vector<int64_t> tokens;
    std::vector<int64_t> end;  // windows up to and with this part
  };
  // Where a window lies.
  struct Place {
    size_t part = 0;
    int64_t at = 0, n = 0;
  };
  Place PlaceOf(Split split, int64_t sample) const;
  absl::Status FillOne(Split split, int64_t sample, int32_t* inputs, int32_t* targets) const;
  // Draws for training; without `epochs` those that stay the same.
  absl::Status FillMasked(Split split, uint64_t seed, absl::Span<const int64_t> samples,
                          absl::Span<const int64_t> epochs, int32_t* inputs,
                          int32_t* targets) const;
  const Parts& parts(Split split) const { return split == Split::kTrain ? train_ : validation_; }

  const plan::Windowing windowing_;
  const int64_t context_;
  const Masking masking_;
  Parts train_, validation_;
};

// What token data cut so is called.
inline plan::DataFacts::Kind KindOf(const plan::Windowing& windowing) {
  return windowing.masked() ? plan::DataFacts::Kind::kDocuments : plan::DataFacts::Kind::kTokens;
}

// Windows of `context` side by side over so many tokens, the last of which may be shorter.
int64_t WindowsOf(int64_t tokens, int64_t context);

// Of parts of so many tokens: windows side by side of documents, or tokens in all.
int64_t SizeOf(const std::vector<int64_t>& parts, const plan::Windowing& windowing);

}  // namespace trainyard::data
