#include "executor/data/images/resample.h"

#include <algorithm>
#include <cmath>

namespace trainyard::data {

namespace {

// Rows that are blended at once.
constexpr int64_t kRows = 4;

std::vector<const ResampleLoops*> FindLoops() {
  __builtin_cpu_init();
  std::vector<const ResampleLoops*> loops;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    loops.push_back(&avx512::Loops());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    loops.push_back(&avx2::Loops());
  }
  loops.push_back(&baseline::Loops());
  return loops;
}

// Which of [axis.low, axis.high) lie under the filter of target pixel i, and where its centre is.
struct Reach {
  double centre = 0;
  int64_t first = 0, end = 0;
};

Reach ReachOf(const Axis& axis, int64_t i, double scale, double support) {
  Reach reach;
  reach.centre = axis.begin + (static_cast<double>(i) + 0.5) * scale;
  const auto first = static_cast<int64_t>(std::floor(reach.centre - support + 0.5));
  const auto end = static_cast<int64_t>(std::floor(reach.centre + support + 0.5));
  reach.first = std::clamp(first, axis.low, axis.high - 1);
  reach.end = std::clamp(end, reach.first + 1, axis.high);
  return reach;
}

}  // namespace

absl::Span<const ResampleLoops* const> SupportedLoops() {
  static const auto& loops = *new std::vector<const ResampleLoops*>(FindLoops());
  return loops;
}

void MakeTaps(const Axis& axis, Taps& taps) {
  const double scale = (axis.end - axis.begin) / static_cast<double>(axis.out);
  const double support = std::max(scale, 1.0);
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.first.resize(axis.out);
  taps.count.resize(axis.out);
  taps.weights.resize(axis.out * taps.stride);
  for (int64_t i = 0; i < axis.out; ++i) {
    const Reach reach = ReachOf(axis, i, scale, support);
    const int64_t at = axis.mirrored ? axis.out - 1 - i : i;
    float* weights = taps.weights.data() + at * taps.stride;
    const auto weight = [&](int64_t source) {
      const double distance = static_cast<double>(source) + 0.5 - reach.centre;
      return std::max(0.0, 1 - std::abs(distance) / support);
    };
    double sum = 0;
    for (int64_t s = reach.first; s < reach.end; ++s) sum += weight(s);
    for (int64_t s = reach.first; s < reach.end; ++s) {
      // Nothing under the filter: the nearest pixel alone.
      weights[s - reach.first] = static_cast<float>(sum > 0 ? weight(s) / sum : 1);
    }
    taps.first[at] = static_cast<int32_t>(reach.first - axis.origin);
    taps.count[at] = static_cast<int32_t>(sum > 0 ? reach.end - reach.first : 1);
  }
}

void Resampler::Resample(const Source& source, const Axis& x, const Axis& y, uint8_t* out) {
  MakeTaps(x, x_);
  MakeTaps(y, y_);
  // Only the columns that exist for the filter.
  const int64_t left = x.low - x.origin;
  for (int32_t& first : x_.first) first -= static_cast<int32_t>(left);
  const int64_t values = (x.high - x.low) * source.channels;
  if (rows_.size() < static_cast<size_t>(kRows * (values + 1))) rows_.resize(kRows * (values + 1));
  const int64_t source_stride = source.width * source.channels;
  for (int64_t begin = 0; begin < y.out; begin += kRows) {
    const int64_t end = std::min(begin + kRows, y.out);
    for (int64_t i = begin; i < end; ++i) {
      loops_.blend_rows(
          {.rows = source.pixels + y_.first[i] * source_stride + left * source.channels,
           .stride = source_stride,
           .weights = y_.weights.data() + i * y_.stride,
           .taps = y_.count[i],
           .n = values,
           .out = rows_.data() + (i - begin) * (values + 1)});
    }
    loops_.blend_pixels({.rows = rows_.data(),
                         .stride = values + 1,
                         .height = end - begin,
                         .first = x_.first.data(),
                         .taps = x_.count.data(),
                         .weights = x_.weights.data(),
                         .weights_stride = x_.stride,
                         .width = x.out,
                         .channels = source.channels,
                         .out = out + begin * x.out * source.channels});
  }
}

}  // namespace trainyard::data
