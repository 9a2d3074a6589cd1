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
  kInternal,  // a defect of Trainyard
};

// OK stays OK; a fault that was named before stays.
absl::Status WithFault(Fault fault, const absl::Status& status);

// A failure of what a device does: kOutOfMemory for lack of its memory, which it may notice late,
// else kDevice.
absl::Status WithDeviceFault(const absl::Status& status);

// A failure of the data room: kData, or kStorage where the machine failed (kInternal, as
// ErrnoStatus says it of EIO, ESTALE or EMFILE, and kUnavailable), which another attempt may not
// meet.
absl::Status WithDataFault(const absl::Status& status);

// A failure to write or read what a run keeps: kStorage.
absl::Status WithStorageFault(const absl::Status& status);

// What WithFault said; else by the code: kUnimplemented, or kInternal.
Fault FaultOf(const absl::Status& status);

// Whether the same attempt may succeed when it is made again.
bool Retryable(const absl::Status& status);

// A failure after which the run went back to a checkpoint: whoever runs it goes on from the newest.
absl::Status MarkRolledBack(const absl::Status& status);
bool RolledBack(const absl::Status& status);

}  // namespace trainyard::engine

// TY_ASSIGN_OR_RETURN and TY_RETURN_IF_ERROR that name a fault.
#define TY_ASSIGN_OR_FAULT(fault, lhs, expr) \
  TY_ASSIGN_OR_FAULT_(TY_CONCAT_(ty_faulty_, __LINE__), fault, lhs, expr)
#define TY_ASSIGN_OR_FAULT_(var, fault, lhs, expr)                           \
  auto var = (expr);                                                         \
  if (!var.ok()) return ::trainyard::engine::WithFault(fault, var.status()); \
  lhs = *std::move(var)
