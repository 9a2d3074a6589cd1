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
  GangArithmetic told;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const Arithmetic first = ArithmeticFromText(all[0]), other = ArithmeticFromText(all[rank]);
    const std::string difference =
        ArithmeticDifference(first, "on rank 0", other, absl::StrCat("on rank ", rank));
    const bool certain = !SameArithmetic(CertainArithmetic(first), CertainArithmetic(other));
    if (allowed == v1::Parallel::ANY || !certain) {
      told.difference = told.difference.empty() ? difference : told.difference;
      continue;
    }
    return MarkCommon(WithFault(
        Fault::kGang, absl::FailedPreconditionError(absl::StrCat(
                          "the arithmetic differs between ranks, and spec.parallel.arithmetic is "
                          "not ANY: ",
                          difference))));
  }
  if (told.difference.empty()) told.arithmetic = mine;
  return told;
}

absl::Status CheckSameArithmetic(const Arithmetic& before, const Arithmetic& now, int64_t step,
                                 v1::Parallel::Arithmetic allowed) {
  if (allowed != v1::Parallel::SAME || before.empty() ||
      SameArithmetic(CertainArithmetic(before), CertainArithmetic(now))) {
    return absl::OkStatus();
  }
  return MarkCommon(
      WithFault(Fault::kGang, absl::FailedPreconditionError(absl::StrCat(
                                  "the arithmetic is not that of the checkpoint of step ", step,
                                  ", and spec.parallel.arithmetic is SAME: ",
                                  ArithmeticDifference(CertainArithmetic(before), "before",
                                                       CertainArithmetic(now), "now")))));
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
