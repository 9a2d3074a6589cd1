#pragma once

// The one place that knows oneDNN (Debian's 2.6.3, on OpenMP): primitives are made and bound to
// their memory here, once; running one allocates nothing of ours. Exceptions end here as Status.

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/buffer.h"
#include "kernels/device.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace trainyard::kernels {

// Memory of a primitive: at a fixed place, or at an offset within the scratch of the launch.
struct DnnlOperand {
  int argument;  // DNNL_ARG_...
  dnnl::memory::desc shape;
  void* data = nullptr;  // null: at scratch_offset
  size_t scratch_offset = 0;
};

// `shape` at `elements` from the start of `whole`, of the same type.
DnnlOperand PartOf(const DnnlOperand& whole, int64_t elements, const dnnl::memory::desc& shape);

// A primitive bound to its memory. Not thread-safe: one launch at a time.
class DnnlCall {
 public:
  // The scratchpad that the primitive asks for is one of the operands, at its scratch_offset.
  DnnlCall(const dnnl::primitive& primitive, const dnnl::stream& stream,
           const std::vector<DnnlOperand>& operands);

  // Aborts when oneDNN reports a failure: everything that can fail did so when it was made.
  void Run(void* scratch) const;

 private:
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> memories_;
  std::vector<std::pair<size_t, size_t>> floating_;  // index of memory, scratch offset
  std::vector<dnnl_exec_arg_t> arguments_;
  mutable void* last_scratch_ = nullptr;
};

// The CPU engine and one stream. oneDNN decides about threads when it makes a primitive, by
// omp_get_max_threads() of the calling thread.
class Dnnl {
 public:
  explicit Dnnl(int threads);

  const dnnl::engine& engine() const { return engine_; }
  const dnnl::stream& stream() const { return stream_; }

  // Whether this machine has instructions for products of `type`: fp32 always, bf16 if AVX-512 has
  // it (oneDNN computes bf16 elsewhere, too, but ten times slower than fp32), fp16 never (oneDNN
  // 2.6 has it for GPUs only).
  bool Computes(DType type) const;

  // Whether an fp32 product of dense matrices adds in an order that depends on its shape alone.
  // Most do with AVX-512, where oneDNN uses its brgemm; oneDNN's older gemm splits the result and
  // the sums by the number of threads.
  bool AddsByShape() const;

  // Whether products of bf16 are made by AMX, which is as good as always where the machine has it.
  bool HasAmx() const;

  // Runs `make` with the device's thread count in force; a dnnl::error becomes kUnimplemented
  // ("no kernel for these shapes") or kInternal, prefixed with `op`.
  template <typename T>
  absl::StatusOr<T> Guard(const char* op, const std::function<T()>& make) const {
    UseThreads();
    try {
      return make();
    } catch (const dnnl::error& e) {
      return StatusOf(op, e);
    }
  }

  // Every launch calls this first: the count belongs to the calling thread, not to the process.
  void UseThreads() const;

 private:
  static absl::Status StatusOf(const char* op, const dnnl::error& e);

  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
};

// Offsets of 64-byte aligned pieces of one scratch.
class ScratchLayout {
 public:
  size_t Take(size_t bytes) {
    const size_t at = size_;
    size_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

// Attributes of a primitive whose scratch the launch provides.
dnnl::primitive_attr UserScratch();

// Copies between two layouts of the same tensor; with `add` it adds to what is there.
DnnlCall Reorder(const Dnnl& dnnl, const DnnlOperand& from, const DnnlOperand& to, bool add,
                 ScratchLayout& layout);

// Where an operand lies in the layout that the primitive wants: in place, or in scratch.
DnnlOperand PlaceFor(const dnnl::memory::desc& wanted, const DnnlOperand& plain,
                     ScratchLayout& layout);

// The same for an operand that the primitive reads; appends to `calls` the reorder that brings it
// there, if one is needed.
DnnlOperand InputFor(const Dnnl& dnnl, const dnnl::memory::desc& wanted, const DnnlOperand& plain,
                     ScratchLayout& layout, std::vector<DnnlCall>& calls);

}  // namespace trainyard::kernels
