#include "executor/data/windows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

Windows::Windows(int64_t context, std::vector<int64_t> train, std::vector<int64_t> validation,
                 int64_t vocab)
    : context_(context), train_{std::move(train), {}}, validation_{std::move(validation), {}} {
  facts_.kind = plan::DataFacts::Kind::kTokens;
  facts_.vocab = vocab;
  facts_.train_size = std::accumulate(train_.tokens.begin(), train_.tokens.end(), int64_t{0});
  facts_.validation_size =
      std::accumulate(validation_.tokens.begin(), validation_.tokens.end(), int64_t{0});
  input_bytes_ = target_bytes_ = context * static_cast<int64_t>(sizeof(int32_t));

  int64_t windows = 0;
  for (const int64_t tokens : train_.tokens) {
    windows +=
        std::max<int64_t>(0, tokens - context);  // one more token than inputs: the last target
    train_.end.push_back(windows);
  }
  windows = 0;
  for (const int64_t tokens : validation_.tokens) {
    windows += tokens < 2 ? 0 : (tokens - 1 + context - 1) / context;
    validation_.end.push_back(windows);
  }
}

absl::Status Windows::Check(const std::string& what) const {
  if (size(Split::kTrain) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": found ", facts_.train_size, " training tokens in ", train_.tokens.size(),
        " parts, expected one of at least ", context_ + 1, " (the context and its next token)"));
  }
  if (facts_.validation_size > 0 && size(Split::kValidation) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the held-out split of ",
                                                   facts_.validation_size,
                                                   " tokens has nothing to predict"));
  }
  return absl::OkStatus();
}

int64_t Windows::size(Split split) const {
  const Parts& p = parts(split);
  return p.end.empty() ? 0 : p.end.back();
}

absl::Status Windows::Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                           void* targets) const {
  int32_t* input = static_cast<int32_t*>(inputs);
  int32_t* target = static_cast<int32_t*>(targets);
  for (const int64_t sample : samples) {
    TY_RETURN_IF_ERROR(FillOne(split, sample, input, target));
    input += context_;
    target += context_;
  }
  return absl::OkStatus();
}

absl::Status Windows::FillOne(Split split, int64_t sample, int32_t* inputs,
                              int32_t* targets) const {
  int64_t n = 0;
  if (sample >= 0) {
    TY_CHECK(sample < size(split), "window ", sample, " of ", size(split));
    const Parts& p = parts(split);
    const auto part =
        static_cast<size_t>(std::upper_bound(p.end.begin(), p.end.end(), sample) - p.end.begin());
    const int64_t within = part == 0 ? sample : sample - p.end[part - 1];
    const int64_t at = split == Split::kTrain ? within : within * context_;
    n = std::min(context_, p.tokens[part] - 1 - at);
    TY_RETURN_IF_ERROR(ReadWindow(split, part, at, n, inputs, targets));
  }
  std::fill(inputs + n, inputs + context_, 0);
  std::fill(targets + n, targets + context_, -1);
  return absl::OkStatus();
}

}  // namespace trainyard::data
