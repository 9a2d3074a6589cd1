#include "kernels/cpu/vector/transpose.h"

#include "kernels/cpu/vector/loops.h"

namespace trainyard::kernels::TRAINYARD_ISA {

template <typename T>
void Transposed(const T* x, int64_t rows, int64_t cols, int64_t x_stride, T* y, int64_t y_stride) {
  TransposeBlock(x, rows, cols, x_stride, y, y_stride);
}

template <typename T>
void RegisterTranspose(ElementLoops<T>& loops) {
  loops.transpose = Transposed<T>;
}
TRAINYARD_FOR_EACH_ELEMENT(RegisterTranspose)

}  // namespace trainyard::kernels::TRAINYARD_ISA
