#pragma once

// 16-bit element types. They only hold the bits: all arithmetic on them is fp32.

#include <cstdint>

namespace trainyard::kernels {

struct BFloat16 {  // sign, 8 bits of exponent, 7 of significand: the upper half of an fp32
  uint16_t bits;
};

struct Float16 {  // IEEE 754 binary16: sign, 5 bits of exponent, 10 of significand
  uint16_t bits;
};

}  // namespace trainyard::kernels
