#include "executor/engine/arithmetic.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {

Arithmetic ArithmeticOf(const kernels::Device& device) {
  Arithmetic arithmetic = device.Arithmetic();
  arithmetic["engine"] = absl::StrCat(kArithmeticVersion);
  return arithmetic;
}

absl::StatusOr<GangArithmetic> CompareArithmetic(const Gang& gang, const Arithmetic& mine,
                                                 v1::Parallel::Arithmetic allowed) {
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> all, gang.Gather(ArithmeticToText(mine)));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string difference =
        ArithmeticDifference(ArithmeticFromText(all[0]), "on rank 0", ArithmeticFromText(all[rank]),
                             absl::StrCat("on rank ", rank));
    if (allowed == v1::Parallel::ANY) return GangArithmetic{.difference = difference};
    return MarkCommon(WithFault(
        Fault::kGang, absl::FailedPreconditionError(absl::StrCat(
                          "the arithmetic differs between ranks, and spec.parallel.arithmetic is ",
                          v1::Parallel::Arithmetic_Name(allowed), ": ", difference))));
  }
  return GangArithmetic{.arithmetic = mine};
}

std::string ArithmeticNotice(const Arithmetic& before, const Arithmetic& now, int64_t step) {
  if (SameArithmetic(before, now)) return "";
  return absl::StrCat(
      "after step ", step,
      before.empty() ? " the arithmetic may be another" : " the arithmetic is another",
      ", and results may differ in their last digits: ",
      ArithmeticDifference(before, "before", now, "now"));
}

}  // namespace trainyard::engine
