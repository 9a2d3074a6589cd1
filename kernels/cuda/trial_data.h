#pragma once

// Numbers to try algorithms on, and whether two results are the same to the bit.

#include <cstdint>

#include "kernels/buffer.h"
#include "kernels/device.h"

namespace trainyard::kernels::cuda {

// An operand of a product: stored rows that lie `step` elements apart, and which of both indices
// counts the `terms` of a sum.
struct TrialOperand {
  Buffer x;
  int64_t rows = 0, cols = 0, step = 0;
  bool terms_in_rows = false;
  int64_t terms() const { return terms_in_rows ? rows : cols; }
};

// Fills `a` and `b` with numbers in [-scale, scale), the same each time, of any element type. With
// `cancel` the second half of the terms of each sum takes away what the first half gave: what is
// left is what rounding left, which no other order of addition leaves, and which a result of 16
// bits has room for.
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
