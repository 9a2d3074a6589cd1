#pragma once

#include "kernels/device.h"
#include "kernels/for_element.h"

namespace trainyard::kernels::cuda {

// Element `i` of a buffer.
inline void* ElementAt(const Buffer& buffer, int64_t i) {
  return static_cast<char*>(buffer.data) + i * SizeOf(buffer.dtype);
}

}  // namespace trainyard::kernels::cuda
