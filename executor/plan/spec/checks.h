#pragma once

// The parts of ResolveSpec, one per part of the spec, and the words of its messages.

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// Each checks its part and fills its defaults; `field` is where the part lives ("spec.model").
absl::Status ResolveModel(v1::Model& model);
absl::Status ResolveLayers(v1::LayerList& layers);
absl::Status ResolveData(v1::Data& data);
absl::Status ResolveTraining(v1::Training& training, int64_t logical_ranks);
absl::Status ResolveOptimizer(v1::Optimizer& optimizer);
// `steps`: of the run; 0: not known yet, then CheckScheduleFits follows.
absl::Status ResolveSchedule(v1::Schedule& schedule, int64_t steps);
absl::Status CheckScheduleFits(const v1::Schedule& schedule, int64_t steps);
absl::Status CheckOptimizerFitsSchedule(const v1::Optimizer& optimizer,
                                        const v1::Schedule& schedule);
absl::Status ResolvePrecision(v1::Precision& precision);
absl::Status ResolveResources(v1::Resources& resources, const v1::Parallel& parallel);
absl::Status ResolveParallel(v1::Parallel& parallel, int64_t slots);
// What is not built yet of layers that are cut across ranks, of a resolved spec.
absl::Status CheckMesh(const v1::JobSpec& spec);
absl::Status CheckShard(const v1::JobSpec& spec);
absl::Status CheckSecondOwner(const v1::JobSpec& spec);
absl::Status CheckArithmetic(const v1::Parallel& parallel);
absl::Status ResolveEvaluation(v1::Evaluation& evaluation, bool held_out, int64_t micro_batch);
absl::Status ResolveCheckpoint(v1::CheckpointPolicy& checkpoint);
absl::Status ResolveRetry(v1::RetryPolicy& retry);
absl::Status ResolveFineTune(v1::FineTune& fine_tune);
// The tokenizer FROM_CHECKPOINT is that of `fine_tune.from`.
absl::Status ResolveStartTokenizer(const v1::FineTune& fine_tune, v1::Data& data);
absl::Status ResolveMetrics(v1::JobSpec& spec);  // after data and evaluation

// Whether resolved data has a held-out split.
bool HasHeldOutSplit(const v1::Data& data);

inline constexpr int64_t kMostLogicalRanks = 65536;
inline constexpr int64_t kMostSlots = 65536;
inline constexpr int64_t kWidest = 65536;                    // numbers per token or pixel
inline constexpr size_t kLongestPattern = 512;               // bytes of a pattern of names
inline constexpr int64_t kMostTables = 128;                  // kernels::TableList
inline constexpr int64_t kMostIds = (int64_t{1} << 31) - 1;  // rows of a table

template <typename... Parts>
absl::Status Invalid(const std::string& field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", parts...));
}

// "spec.precision.compute: BF16 is not built yet; use FP32"
inline absl::Status NotBuilt(const std::string& field, const std::string& what,
                             const std::string& instead) {
  return absl::UnimplementedError(absl::StrCat(field, ": ", what, " is not built yet; ", instead));
}

inline absl::Status CheckRange(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid(field, value, " is not in [", low, ", ", high, "]");
}

inline absl::Status CheckAtLeast(const std::string& field, int64_t value, int64_t low) {
  if (value >= low) return absl::OkStatus();
  return Invalid(field, value, " is less than ", low);
}

inline absl::Status CheckFinite(const std::string& field, double value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return Invalid(field, value, " is not a finite number");
}

inline absl::Status CheckNotNegative(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Invalid(field, value, " is not a finite number of at least 0");
}

inline absl::Status CheckPositive(const std::string& field, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return Invalid(field, value, " is not a finite number above 0");
}

// [0, 1): rates and momenta.
inline absl::Status CheckFraction(const std::string& field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return Invalid(field, value, " is not in [0, 1)");
}

// "spec.resources.device: 7 is no device; use CPU or CUDA" unless the enum has the value.
template <typename Enum>
absl::Status CheckChoice(const std::string& field, Enum value, const char* what) {
  const bool known = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value);
  return known ? absl::OkStatus() : Invalid(field, static_cast<int>(value), " is no ", what);
}

// "try 96 or 128": the multiples of `unit` on either side of `value`, which is none.
inline std::string TryMultiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  if (below == 0) return absl::StrCat("try ", unit);
  return absl::StrCat("try ", below, " or ", below + unit);
}

// "spec.model.gpt.width: 100 is not a multiple of heads 32; try 96 or 128"
inline absl::Status CheckMultiple(const std::string& field, int64_t value,
                                  const std::string& unit_name, int64_t unit) {
  if (value % unit == 0) return absl::OkStatus();
  return Invalid(field, value, " is not a multiple of ", unit_name, " ", unit, "; ",
                 TryMultiples(value, unit));
}

}  // namespace trainyard::plan
