#pragma once

#include "kernels/buffer.h"

namespace trainyard::kernels {

// Largest of each window x window square, stride = window, incomplete windows at the edges dropped.
//   x: [batch, height, width, channels]; y: [batch, height / window, width / window, channels]
//   index: u8, as y: place of the first maximum within its window, row by row; window <= 15
struct MaxPoolForward {
  Buffer x, y, index;
  int64_t batch = 0, height = 0, width = 0, channels = 0, window = 2;
};

// dx: as x, overwritten: dy at the maxima, 0 elsewhere. height and width are those of x.
struct MaxPoolBackward {
  Buffer dy, index, dx;
  int64_t batch = 0, height = 0, width = 0, channels = 0, window = 2;
};

}  // namespace trainyard::kernels
