#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/vector/table.h"
#include "kernels/device.h"

namespace trainyard::kernels {

// The operands of an op that oneDNN does not compute in their type on this machine: fp32 twins of
// them in scratch, filled before its primitives run and rounded back after. Where none is needed,
// and for operands of fp32, the operands themselves.
class F32Twins {
 public:
  // `type`: what the op's products are of.
  F32Twins(const Dnnl& dnnl, const VectorTable& vectors, int threads, DType type,
           ScratchLayout& layout)
      : needed_(!dnnl.Computes(type)), vectors_(vectors), threads_(threads), layout_(layout) {}

  // What oneDNN sees `buffer` as.
  dnnl::memory::data_type TypeOf(const Buffer& buffer) const;

  // An operand of `shape` which the primitives read, write or add to. `span`: elements from its
  // first to its last, and of what lies between them; 0: they lie densely.
  DnnlOperand Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                   int64_t span = 0);
  DnnlOperand Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer);
  DnnlOperand Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                     int64_t span = 0);

  // Around the run of the primitives.
  void Fill(void* scratch) const;
  void RoundBack(void* scratch) const;

 private:
  struct Twin {
    Buffer buffer;
    int64_t n;
    size_t scratch_offset;
  };
  // The twin of `buffer` goes to each of the lists.
  DnnlOperand Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                    int64_t span, std::initializer_list<std::vector<Twin>*> lists);

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
