#include "executor/data/text/windows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

Masking MaskingOf(const plan::Windowing& windowing, int64_t vocab) {
  const int64_t token = windowing.mask_token < 0 ? vocab : windowing.mask_token;
  return {.rate = windowing.mask_rate, .token = static_cast<int32_t>(token), .vocab = vocab};
}

}  // namespace

int64_t WindowsOf(int64_t tokens, int64_t context) { return (tokens + context - 1) / context; }

int64_t SizeOf(const std::vector<int64_t>& parts, const plan::Windowing& windowing) {
  int64_t size = 0;
  for (const int64_t tokens : parts) {
    size += windowing.masked() ? WindowsOf(tokens, windowing.context) : tokens;
  }
  return size;
}

Windows::Windows(const plan::Windowing& windowing, std::vector<int64_t> train,
                 std::vector<int64_t> validation, int64_t vocab)
    : windowing_(windowing),
      context_(windowing.context),
      masking_(MaskingOf(windowing, vocab)),
      train_{std::move(train), {}},
      validation_{std::move(validation), {}} {
  facts_.kind = KindOf(windowing);
  facts_.vocab = vocab;
  facts_.train_size = SizeOf(train_.tokens, windowing);
  facts_.validation_size = SizeOf(validation_.tokens, windowing);
  const int64_t context = context_;
  input_bytes_ = target_bytes_ = context * static_cast<int64_t>(sizeof(int32_t));
  const auto cut = [](Parts& parts, const auto& windows_of) {
    int64_t windows = 0;
    for (const int64_t tokens : parts.tokens) parts.end.push_back(windows += windows_of(tokens));
  };
  if (windowing.masked()) {
    input_bytes_ += sizeof(int32_t);  // the length
    const auto of_document = [&](int64_t tokens) { return WindowsOf(tokens, context); };
    cut(train_, of_document);
    cut(validation_, of_document);
    return;
  }
  // One more token than inputs: the last target.
  cut(train_, [&](int64_t tokens) { return std::max<int64_t>(0, tokens - context); });
  cut(validation_, [&](int64_t tokens) { return tokens < 2 ? 0 : WindowsOf(tokens - 1, context); });
}

absl::Status Windows::Check(const std::string& what) const {
  if (size(Split::kTrain) == 0 && windowing_.masked()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": found no document, expected one of at least one token"));
  }
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
  if (windowing_.masked()) return FillMasked(split, /*seed=*/0, samples, {}, input, target);
  for (const int64_t sample : samples) {
    TY_RETURN_IF_ERROR(FillOne(split, sample, input, target));
    input += context_;
    target += context_;
  }
  return absl::OkStatus();
}

absl::Status Windows::FillForTraining(uint64_t seed, absl::Span<const int64_t> samples,
                                      absl::Span<const int64_t> epochs, void* inputs,
                                      void* targets) const {
  if (!windowing_.masked()) return Fill(Split::kTrain, samples, inputs, targets);
  return FillMasked(Split::kTrain, seed, samples, epochs, static_cast<int32_t*>(inputs),
                    static_cast<int32_t*>(targets));
}

Windows::Place Windows::PlaceOf(Split split, int64_t sample) const {
  TY_CHECK(sample < size(split), "window ", sample, " of ", size(split));
  const Parts& p = parts(split);
  const auto part =
      static_cast<size_t>(std::upper_bound(p.end.begin(), p.end.end(), sample) - p.end.begin());
  const int64_t within = part == 0 ? sample : sample - p.end[part - 1];
  const bool overlap = split == Split::kTrain && !windowing_.masked();
  const int64_t at = overlap ? within : within * context_;
  const int64_t tokens = p.tokens[part] - (windowing_.masked() ? 0 : 1);
  return {.part = part, .at = at, .n = std::min(context_, tokens - at)};
}

absl::Status Windows::FillOne(Split split, int64_t sample, int32_t* inputs,
                              int32_t* targets) const {
  Place place;
  if (sample >= 0) {
    place = PlaceOf(split, sample);
    TY_RETURN_IF_ERROR(ReadWindow(split, place.part, place.at, place.n, inputs, targets));
  }
  std::fill(inputs + place.n, inputs + context_, 0);
  std::fill(targets + place.n, targets + context_, -1);
  return absl::OkStatus();
}

absl::Status Windows::FillMasked(Split split, uint64_t seed, absl::Span<const int64_t> samples,
                                 absl::Span<const int64_t> epochs, int32_t* inputs,
                                 int32_t* targets) const {
  int32_t* const lengths = inputs + static_cast<int64_t>(samples.size()) * context_;
  for (size_t i = 0; i < samples.size(); ++i, inputs += context_, targets += context_) {
    Place place;
    if (samples[i] >= 0) {
      place = PlaceOf(split, samples[i]);
      TY_RETURN_IF_ERROR(ReadWindow(split, place.part, place.at, place.n, inputs, nullptr));
    }
    lengths[i] = static_cast<int32_t>(std::max<int64_t>(1, place.n));
    Mask(masking_, seed, epochs.empty() ? 0 : epochs[i], samples[i], place.n, inputs, targets);
    std::fill(inputs + place.n, inputs + context_, 0);
    std::fill(targets + place.n, targets + context_, -1);
  }
  return absl::OkStatus();
}

}  // namespace trainyard::data
