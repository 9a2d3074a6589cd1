#pragma once

// Elements of sixteen bits, by their definition.

#include <cstdint>

#include "kernels/buffer.h"

namespace trainyard::reference {

// Of a type of elements; f32 is what a float holds.
double ToDouble(kernels::DType type, uint16_t bits);

// The nearest element, of two equally near the even one; what is more than half a step past the
// largest is infinite.
uint16_t ToBits(kernels::DType type, double x);

// The nearest number that the type holds; of f32 the nearest float.
double Rounded(kernels::DType type, double x);

// Half the distance from 1 to the next larger number: how far rounding moves a number, relative to
// it.
double UnitRoundoff(kernels::DType type);

}  // namespace trainyard::reference
