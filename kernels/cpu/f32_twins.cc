#include "kernels/cpu/f32_twins.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

dnnl::memory::data_type F32Twins::TypeOf(const Buffer& buffer) const {
  return !needed_ && buffer.dtype == DType::kBF16 ? dnnl::memory::data_type::bf16
                                                  : dnnl::memory::data_type::f32;
}

DnnlOperand F32Twins::Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                            const StoredRows& stored,
                            std::initializer_list<std::vector<Twin>*> lists) {
  if (!Has(buffer)) return {argument, shape, buffer.data};
  const auto all = static_cast<int64_t>(shape.get_size() / sizeof(float));
  const bool dense = stored.rows <= 1 || stored.step == stored.cols;
  const Twin twin{buffer, dense ? StoredRows{1, all, all} : stored, layout_.Take(shape.get_size())};
  for (std::vector<Twin>* list : lists) list->push_back(twin);
  return {argument, shape, nullptr, twin.scratch_offset};
}

DnnlOperand F32Twins::Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                           const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_});
}
DnnlOperand F32Twins::Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                            const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&written_});
}
DnnlOperand F32Twins::Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                             const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_, &written_});
}

template <typename F>
void F32Twins::ForRuns(const Twin& twin, const F& f) const {
  const auto& [rows, cols, step] = twin.stored;
  if (rows == 1) {
    ParallelRuns(threads_, cols, kSerialElements,
                 [&f](int64_t begin, int64_t end) { f(begin, begin, end - begin); });
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kSerialElements / cols);
  ParallelRuns(threads_, rows, grain, [&, cols = cols, step = step](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row * step, row * cols, cols);
  });
}

void F32Twins::Fill(void* scratch) const {
  for (const Twin& twin : read_) {
    auto* const to = reinterpret_cast<float*>(static_cast<char*>(scratch) + twin.scratch_offset);
    ForRuns(twin, [&](int64_t at, int64_t in_twin, int64_t n) {
      if (twin.buffer.dtype == DType::kBF16) {
        vectors_.bf16.to_f32(twin.buffer.As<BFloat16>() + at, to + in_twin, n);
      } else {
        vectors_.f16.to_f32(twin.buffer.As<Float16>() + at, to + in_twin, n);
      }
    });
  }
}

void F32Twins::RoundBack(void* scratch) const {
  for (const Twin& twin : written_) {
    const auto* const from =
        reinterpret_cast<const float*>(static_cast<const char*>(scratch) + twin.scratch_offset);
    ForRuns(twin, [&](int64_t at, int64_t in_twin, int64_t n) {
      if (twin.buffer.dtype == DType::kBF16) {
        vectors_.bf16.from_f32(from + in_twin, twin.buffer.As<BFloat16>() + at, n);
      } else {
        vectors_.f16.from_f32(from + in_twin, twin.buffer.As<Float16>() + at, n);
      }
    });
  }
}

Kernel InSequence(const Dnnl& dnnl, F32Twins twins, std::vector<DnnlCall> calls,
                  const ScratchLayout& layout) {
  struct Program {
    F32Twins twins;
    std::vector<DnnlCall> calls;
  };
  // Shared only because a std::function must be copyable.
  const auto program = std::make_shared<const Program>(Program{std::move(twins), std::move(calls)});
  return Kernel{[&dnnl, program](Stream& stream) {
                  dnnl.UseThreads();
                  program->twins.Fill(stream.scratch);
                  for (const DnnlCall& call : program->calls) call.Run(stream.scratch);
                  program->twins.RoundBack(stream.scratch);
                },
                layout.size()};
}

}  // namespace trainyard::kernels
