#pragma once

// The fingerprint of the arithmetic that a run computes with.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "executor/engine/gang.h"
#include "kernels/device.h"
#include "storage/base/arithmetic.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

// The version of our own arithmetic: kernels, the order of ops and sums, random draws. Raise it
// with a change that changes the bits of any job on purpose.
constexpr int kArithmeticVersion = 1;

// What the device tells, and our own version.
Arithmetic ArithmeticOf(const kernels::Device& device);

// What all ranks of a gang compute with.
struct GangArithmetic {
  Arithmetic arithmetic;   // unknown where ranks differ
  std::string difference;  // which rank differs from rank 0 and in what; "": none
};

// Compares what the ranks compute with, `mine` on this one. Where they differ in what is known to
// change bits, and may not, the failure has the fault kGang on every rank and says what
// GangArithmetic would say.
absl::StatusOr<GangArithmetic> CompareArithmetic(const Gang& gang, const Arithmetic& mine,
                                                 v1::Parallel::Arithmetic allowed);

// Whether a run may go on from a checkpoint of `step` that was computed with `before`: any may,
// unless it is `allowed` no other arithmetic than that of its first attempt. The scheduler sees to
// that, by what agents told when they began; this is what is so. Every rank fails alike.
absl::Status CheckSameArithmetic(const Arithmetic& before, const Arithmetic& now, int64_t step,
                                 v1::Parallel::Arithmetic allowed);

// What to tell of a run that goes on at `step` from a checkpoint of `before`; "" if nothing
// changed.
std::string ArithmeticNotice(const Arithmetic& before, const Arithmetic& now, int64_t step);

}  // namespace trainyard::engine
