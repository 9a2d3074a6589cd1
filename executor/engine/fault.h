#pragma once

// Who has to act on a failure of a run. Carried by the status itself, so that it survives being
// returned.

#include "absl/status/status.h"

namespace trainyard::engine {

enum class Fault {
  kSpec,  // the user's: a field of the spec
  kData,  // the user's: files that are missing, malformed or other than they were
  kUnimplemented,
  kOutOfMemory,
  kDevice,
  kStorage,   // a checkpoint or an event could not be written or read, or a disk failed
  kNumeric,   // NaN or infinity
  kGang,      // another rank of the gang failed, or the link to it
  kInternal,  // a defect of Trainyard
};

// OK stays OK; a fault that was named before stays.
absl::Status WithFault(Fault fault, const absl::Status& status);

// For a failure of a device: kOutOfMemory if its memory ran out, which it may notice late, else
// kDevice.
absl::Status WithDeviceFault(const absl::Status& status);

// For a failure of executor/data: kStorage if the machine failed (kUnavailable, or kInternal, which
// ErrnoStatus makes of EIO, ESTALE and EMFILE), since another attempt may succeed; else kData.
absl::Status WithDataFault(const absl::Status& status);

// For a failure to write or read what a run keeps: kStorage.
absl::Status WithStorageFault(const absl::Status& status);

// The fault that WithFault set; without one kUnimplemented or kInternal, by the code of the status.
Fault FaultOf(const absl::Status& status);

// Whether the same attempt may succeed when it is made again.
bool Retryable(const absl::Status& status);

// Marks a failure after which the run went back to a checkpoint: the caller has to run it again
// from the newest one.
absl::Status MarkRolledBack(const absl::Status& status);
bool RolledBack(const absl::Status& status);

// Marks a failure that every rank of a gang returns alike: nobody needs to be told of it.
absl::Status MarkCommon(const absl::Status& status);
bool IsCommon(const absl::Status& status);

}  // namespace trainyard::engine

// TY_ASSIGN_OR_RETURN and TY_RETURN_IF_ERROR that name a fault.
#define TY_ASSIGN_OR_FAULT(fault, lhs, expr) \
  TY_ASSIGN_OR_FAULT_(TY_CONCAT_(ty_faulty_, __LINE__), fault, lhs, expr)
#define TY_ASSIGN_OR_FAULT_(var, fault, lhs, expr)                           \
  auto var = (expr);                                                         \
  if (!var.ok()) return ::trainyard::engine::WithFault(fault, var.status()); \
  lhs = *std::move(var)
