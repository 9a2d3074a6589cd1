#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/data/dataset.h"

namespace trainyard::data {

// Token data cut into windows: the arithmetic that text and token files share.
class Windows : public Dataset {
 public:
  int64_t size(Split split) const override;
  absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                    void* targets) const override;
  bool sampled_with_replacement() const override { return true; }

 protected:
  // `train`, `validation`: tokens of each part (a file); no window leaves its part.
  Windows(int64_t context, std::vector<int64_t> train, std::vector<int64_t> validation,
          int64_t vocab);

  // kInvalidArgument when no training window fits, or a held-out split has nothing to predict.
  absl::Status Check(const std::string& what) const;

  // Writes ids at + [0, n) of a part to `inputs` and at + 1 + [0, n) to `targets`.
  virtual absl::Status ReadWindow(Split split, size_t part, int64_t at, int64_t n, int32_t* inputs,
                                  int32_t* targets) const = 0;

 private:
  struct Parts {
    std::vector<int64_t> tokens;
    std::vector<int64_t> end;  // windows up to and with this part
  };
  absl::Status FillOne(Split split, int64_t sample, int32_t* inputs, int32_t* targets) const;
  const Parts& parts(Split split) const { return split == Split::kTrain ? train_ : validation_; }

  int64_t context_;
  Parts train_, validation_;
};

}  // namespace trainyard::data
