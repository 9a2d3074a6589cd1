#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

// The rows of a stored matrix: `step` elements from the start of one to the next.
struct StoredRows {
  int64_t rows = 0, cols = 0, step = 0;
};

// The operands of an op that oneDNN does not compute in their type on this machine: fp32 twins of
// them in scratch, filled before its primitives run and rounded back after. Where none is needed,
// and for operands of fp32, the operands themselves.
class F32Twins {
 public:
  // `type`: what the op's products are of.
  F32Twins(const Dnnl& dnnl, const VectorTable& vectors, int threads, DType type,
           ScratchLayout& layout)
      : needed_(!dnnl.Computes(type)), vectors_(vectors), threads_(threads), layout_(layout) {}

  // Whether oneDNN sees a twin, which is dense however `buffer` lies.
  bool Has(const Buffer& buffer) const { return needed_ && buffer.dtype != DType::kF32; }

  // What oneDNN sees `buffer` as.
  dnnl::memory::data_type TypeOf(const Buffer& buffer) const;

  // An operand of `shape` which the primitives read, write or add to: of the twin where there is
  // one. `stored`: how `buffer` lies; without it densely.
  DnnlOperand Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                   const StoredRows& stored = {});
  DnnlOperand Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                    const StoredRows& stored = {});
  DnnlOperand Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                     const StoredRows& stored = {});

  // Around the run of the primitives.
  void Fill(void* scratch) const;
  void RoundBack(void* scratch) const;

 private:
  struct Twin {
    Buffer buffer;
    StoredRows stored;  // one row where it lies densely
    size_t scratch_offset;
  };
  // The twin of `buffer` goes to each of the lists.
  DnnlOperand Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                    const StoredRows& stored, std::initializer_list<std::vector<Twin>*> lists);
  // Calls f(place in the buffer, place in the twin, elements) for runs of all of `twin`.
  template <typename F>
  void ForRuns(const Twin& twin, const F& f) const;

  bool needed_;
  const VectorTable& vectors_;
  int threads_;
  ScratchLayout& layout_;  // used while the op is prepared
  std::vector<Twin> read_, written_;
};

// The calls one after the other, with their twins around them.
Kernel InSequence(const Dnnl& dnnl, F32Twins twins, std::vector<DnnlCall> calls,
                  const ScratchLayout& layout);

}  // namespace trainyard::kernels
