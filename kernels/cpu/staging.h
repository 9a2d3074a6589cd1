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

  bool Apart() const { return rows > 1 && step != cols; }
};

// The operands of an op as oneDNN sees them. An operand that oneDNN cannot take as it lies has a
// staged copy, which lies in scratch and is filled before the primitives run and brought back
// after. There are two reasons for a staged copy:
//  - oneDNN does not compute in the operand's type on this machine: the staged copy is fp32.
//  - The rows of a matrix lie apart, in a product for which oneDNN 2.6 has its brgemm (with bf16
//    instructions, AMX included, and in fp32 with AVX-512): the staged copy is dense and of the
//    operand's own type. brgemm takes dense matrices only; for all others oneDNN has an older
//    kernel that may add in another order (in fp32 it does so for a few rows on some CPUs) and
//    takes 8 bytes of scratch per element of a bf16 result. So the choice of kernel, and with it
//    the bits, follows from shapes alone.
// An operand without a staged copy is used in place.
class Staging {
 public:
  // `widens`: whether 16-bit operands of the op have staged copies in fp32. `packs`: whether
  // matrices whose rows lie apart have dense ones.
  Staging(bool widens, bool packs, const VectorTable& vectors, int threads, ScratchLayout& layout)
      : widens_(widens), packs_(packs), vectors_(vectors), threads_(threads), layout_(layout) {}

  // Whether oneDNN sees a staged copy, which is dense however `buffer` lies.
  bool Has(const Buffer& buffer, const StoredRows& stored = {}) const {
    return (widens_ && buffer.dtype != DType::kF32) || (packs_ && stored.Apart());
  }

  // The type as which oneDNN sees `buffer`.
  dnnl::memory::data_type TypeOf(const Buffer& buffer) const;

  // An operand of `shape` that the primitives read, write or add to, in the staged copy if there is
  // one. `stored` says how the rows of `buffer` lie; the default is densely.
  DnnlOperand Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                   const StoredRows& stored = {});
  DnnlOperand Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                    const StoredRows& stored = {});
  DnnlOperand Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                     const StoredRows& stored = {});

  // Fill comes before the run of the primitives, BringBack after it.
  void Fill(void* scratch) const;
  void BringBack(void* scratch) const;

 private:
  struct StagedCopy {
    Buffer buffer;
    bool widened;       // fp32; else of the buffer's type
    StoredRows stored;  // one row where it lies densely
    size_t scratch_offset;
  };
  // Appends the staged copy of `buffer`, if it has one, to each of `lists`.
  DnnlOperand Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                    const StoredRows& stored,
                    std::initializer_list<std::vector<StagedCopy>*> lists);
  // Calls f(offset in the buffer, offset in the staged copy, elements) for runs that cover it.
  template <typename F>
  void ForRuns(const StagedCopy& staged, const F& f) const;

  bool widens_, packs_;
  const VectorTable& vectors_;
  int threads_;
  ScratchLayout& layout_;  // used while the op is prepared
  std::vector<StagedCopy> read_, written_;
};

}  // namespace trainyard::kernels
