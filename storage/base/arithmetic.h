#pragma once

// The fingerprint of the arithmetic: what the bits of a result depend on beside the job.

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// Values by name: {"device", "CPU"}, {"loops", "avx512"}. Empty: unknown. Two machines compute the
// same bits if theirs are equal and known.
using Arithmetic = std::map<std::string, std::string>;

// How many values a fingerprint from outside may have, and how long names and values may be.
constexpr size_t kMostArithmeticValues = 32;
constexpr size_t kLongestArithmeticText = 128;

// One line that ArithmeticFromText reads: "device: CPU; loops: avx512". "": unknown.
std::string ArithmeticToText(const Arithmetic& arithmetic);

// Unknown where `text` is not what ArithmeticToText writes, or exceeds the bounds.
Arithmetic ArithmeticFromText(absl::string_view text);

// Whether it keeps the bounds and its text can be read back. One that is empty does.
bool IsWellFormed(const Arithmetic& arithmetic);

// What of a fingerprint is known to change bits: without the sizes of caches and the C library, of
// which that has not been seen. The slots of one gang are alike in it.
Arithmetic CertainArithmetic(Arithmetic arithmetic);

// Whether results of both have the same bits, as far as anybody knows.
bool SameArithmetic(const Arithmetic& a, const Arithmetic& b);

// Says in words what differs, "" if nothing does: "loops: avx512 before, avx2 now". `where_a` and
// `where_b` say whose each is: "before", "on rank 0".
std::string ArithmeticDifference(const Arithmetic& a, absl::string_view where_a,
                                 const Arithmetic& b, absl::string_view where_b);

}  // namespace trainyard
