#pragma once

// Numbers to try algorithms on, and whether two results are the same to the bit.

#include <cstdint>

#include "kernels/buffer.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// An operand of a product: stored rows that lie `step` elements apart. terms_in_rows says which of
// its two indices counts the terms of a sum.
struct TrialOperand {
  Buffer x;
  int64_t rows = 0, cols = 0, step = 0;
  bool terms_in_rows = false;
  int64_t terms() const { return terms_in_rows ? rows : cols; }
};

// Fills `a` and `b` with numbers in [-scale, scale), the same each time, of any element type. With
// `cancel` the second half of the terms of each sum is the negated first half. Only rounding errors
// are left then: they differ for any other order of addition, and a 16-bit result has room for
// them.
void LaunchTrialOperands(Stream& stream, const TrialOperand& a, const TrialOperand& b, float scale,
                         bool cancel);

// x[i] in [-scale, scale).
void LaunchTrialData(Stream& stream, const Buffer& x, int64_t n, float scale);

// Writes parts of a digest of the bits of c, `rows` rows of `cols` elements that lie `step` apart;
// their sum is the digest. Returns how many, at most kMostDigestParts.
inline constexpr int64_t kMostDigestParts = 1024;
int64_t LaunchDigest(Stream& stream, const Buffer& c, int64_t rows, int64_t cols, int64_t step,
                     uint64_t* parts);

}  // namespace trainyard::kernels::cuda
