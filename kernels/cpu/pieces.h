#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cpu/dnnl.h"

namespace trainyard::kernels {

// While it lives, oneDNN makes primitives for one thread, and runs them on the calling one.
class OneThread {
 public:
  explicit OneThread(const Dnnl& dnnl);
  ~OneThread() { dnnl_.UseThreads(); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const Dnnl& dnnl_;
};

// A primitive, made for one thread, and its operands; it has scratch of its own beside.
struct PieceStep {
  dnnl::primitive primitive;
  dnnl::memory::desc scratchpad;
  std::vector<DnnlOperand> operands;
  std::vector<DnnlOperand> kept;  // at offsets in what the thread keeps for a piece
};

// A piece of an op: one thread runs its steps in order.
using Piece = std::vector<PieceStep>;

// Copies between two layouts of the same tensor. Made under OneThread.
PieceStep ReorderStep(const Dnnl& dnnl, const DnnlOperand& from, const DnnlOperand& to);

// Pieces that any threads may run in any order, so that the bits of an op do not depend on how many
// threads there are. Pieces of one thread share their scratch.
class SharedPieces {
 public:
  SharedPieces() = default;
  SharedPieces(const Dnnl& dnnl, int threads, std::vector<Piece> pieces, ScratchLayout& layout);

  void Run(const Dnnl& dnnl, int threads, void* scratch) const;

 private:
  std::vector<std::vector<DnnlCall>> groups_;  // one per thread, or per piece if fewer
};

}  // namespace trainyard::kernels
