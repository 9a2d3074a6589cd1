#include "kernels/cuda/plan_cache.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/cuda/cache_file.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr size_t kLongestPlan = size_t{64} << 20;

}  // namespace

PlanCache::PlanCache(const std::string& folder, const std::string& machine) {
  if (!folder.empty()) folder_ = absl::StrCat(folder, "/plans-", PlainName(machine));
}

std::string PlanCache::PathOf(absl::string_view name) const {
  return absl::StrCat(folder_, "/", PlainName(name), ".plan");
}

// A file holds the name, a line end, the plan and a line end. A file that was cut short lacks the
// last line end; the name in the file tells names apart that share a path.
std::string PlanCache::Find(absl::string_view name) const {
  if (folder_.empty()) return "";
  const std::string text = ReadCacheFile(PathOf(name), kLongestPlan);
  absl::string_view plan = text;
  if (!absl::ConsumePrefix(&plan, absl::StrCat(name, "\n")) || !absl::ConsumeSuffix(&plan, "\n")) {
    return "";
  }
  return std::string(plan);
}

void PlanCache::Put(absl::string_view name, absl::string_view plan) const {
  if (folder_.empty() || plan.empty()) return;
  ReplaceCacheFile(PathOf(name), absl::StrCat(name, "\n", plan, "\n"));
}

}  // namespace trainyard::kernels::cuda
