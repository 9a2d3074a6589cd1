#include "kernels/cpu/pieces.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

OneThread::OneThread(const Dnnl& dnnl) : dnnl_(dnnl) { omp_set_num_threads(1); }

PieceStep ReorderStep(const Dnnl& dnnl, const DnnlOperand& from, const DnnlOperand& to) {
  const dnnl::reorder::primitive_desc pd(dnnl.engine(), from.shape, dnnl.engine(), to.shape,
                                         UserScratch());
  return {dnnl::reorder(pd),
          pd.scratchpad_desc(),
          {{DNNL_ARG_FROM, from.shape, from.data, from.scratch_offset},
           {DNNL_ARG_TO, to.shape, to.data, to.scratch_offset}}};
}

SharedPieces::SharedPieces(const Dnnl& dnnl, int threads, std::vector<Piece> pieces,
                           ScratchLayout& layout) {
  size_t scratch = 0, kept = 0;
  for (const Piece& piece : pieces) {
    for (const PieceStep& step : piece) {
      scratch = std::max(scratch, step.scratchpad.get_size());
      for (const DnnlOperand& operand : step.kept) {
        kept = std::max(kept, operand.scratch_offset + operand.shape.get_size());
      }
    }
  }
  groups_.resize(std::min<size_t>(pieces.size(), threads));
  for (size_t group = 0; group < groups_.size(); ++group) {
    const size_t place = layout.Take(scratch), keep = layout.Take(kept);
    const size_t end = pieces.size() * (group + 1) / groups_.size();
    for (size_t i = pieces.size() * group / groups_.size(); i < end; ++i) {
      for (PieceStep& step : pieces[i]) {
        step.operands.push_back({DNNL_ARG_SCRATCHPAD, step.scratchpad, nullptr, place});
        for (DnnlOperand operand : step.kept) {
          operand.scratch_offset += keep;
          step.operands.push_back(operand);
        }
        groups_[group].emplace_back(step.primitive, dnnl.stream(), step.operands);
      }
    }
  }
}

// Within a parallel region oneDNN uses no threads of its own.
void SharedPieces::Run(const Dnnl& dnnl, int threads, void* scratch) const {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (const DnnlCall& call : groups_[i]) call.Run(scratch);
    }
  };
  if (groups_.size() == 1) {
    const OneThread alone(dnnl);
    run(0, 1);
    return;
  }
  ParallelRuns(threads, static_cast<int64_t>(groups_.size()), 1, run);
}

}  // namespace trainyard::kernels
