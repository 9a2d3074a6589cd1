#include "executor/engine/fault.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trainyard::engine {
namespace {

constexpr char kPayload[] = "trainyard/fault";
constexpr char kRolledBack[] = "trainyard/rolled_back";
constexpr char kCommon[] = "trainyard/common";

}  // namespace

absl::Status WithFault(Fault fault, const absl::Status& status) {
  if (status.ok() || status.GetPayload(kPayload).has_value()) return status;
  absl::Status faulty = status;
  faulty.SetPayload(kPayload, absl::Cord(absl::StrCat(static_cast<int>(fault))));
  return faulty;
}

absl::Status WithDeviceFault(const absl::Status& status) {
  return WithFault(absl::IsResourceExhausted(status) ? Fault::kOutOfMemory : Fault::kDevice,
                   status);
}

absl::Status WithStorageFault(const absl::Status& status) {
  return WithFault(Fault::kStorage, status);
}

absl::Status WithDataFault(const absl::Status& status) {
  const bool machine = absl::IsInternal(status) || absl::IsUnavailable(status);
  return WithFault(machine ? Fault::kStorage : Fault::kData, status);
}

Fault FaultOf(const absl::Status& status) {
  int fault = 0;
  const auto payload = status.GetPayload(kPayload);
  if (payload.has_value() && absl::SimpleAtoi(std::string(*payload), &fault)) {
    return static_cast<Fault>(fault);
  }
  return absl::IsUnimplemented(status) ? Fault::kUnimplemented : Fault::kInternal;
}

bool Retryable(const absl::Status& status) {
  switch (FaultOf(status)) {
    case Fault::kDevice:
    case Fault::kGang:
      return true;
    case Fault::kStorage:
      // What is damaged, or belongs to another spec, stays so.
      return !absl::IsDataLoss(status) && !absl::IsFailedPrecondition(status);
    case Fault::kNumeric:
      return RolledBack(status);
    default:
      return false;
  }
}

absl::Status MarkRolledBack(const absl::Status& status) {
  absl::Status marked = status;
  marked.SetPayload(kRolledBack, absl::Cord());
  return marked;
}

bool RolledBack(const absl::Status& status) { return status.GetPayload(kRolledBack).has_value(); }

absl::Status MarkCommon(const absl::Status& status) {
  absl::Status marked = status;
  marked.SetPayload(kCommon, absl::Cord());
  return marked;
}

bool IsCommon(const absl::Status& status) { return status.GetPayload(kCommon).has_value(); }

}  // namespace trainyard::engine
