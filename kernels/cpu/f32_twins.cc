#include "kernels/cpu/f32_twins.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

dnnl::memory::data_type F32Twins::TypeOf(const Buffer& buffer) const {
  return !needed_ && buffer.dtype == DType::kBF16 ? dnnl::memory::data_type::bf16
                                                  : dnnl::memory::data_type::f32;
}

DnnlOperand F32Twins::Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                            int64_t span, std::initializer_list<std::vector<Twin>*> lists) {
  if (!needed_ || buffer.dtype == DType::kF32) return {argument, shape, buffer.data};
  const int64_t n = span > 0 ? span : static_cast<int64_t>(shape.get_size() / sizeof(float));
  const Twin twin{buffer, n, layout_.Take(shape.get_size())};
  for (std::vector<Twin>* list : lists) list->push_back(twin);
  return {argument, shape, nullptr, twin.scratch_offset};
}

DnnlOperand F32Twins::Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                           int64_t span) {
  return Place(argument, shape, buffer, span, {&read_});
}
DnnlOperand F32Twins::Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer) {
  return Place(argument, shape, buffer, 0, {&written_});
}
DnnlOperand F32Twins::Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                             int64_t span) {
  return Place(argument, shape, buffer, span, {&read_, &written_});
}

void F32Twins::Fill(void* scratch) const {
  for (const Twin& twin : read_) {
    auto* const to = reinterpret_cast<float*>(static_cast<char*>(scratch) + twin.scratch_offset);
    ParallelRuns(threads_, twin.n, kSerialElements, [&](int64_t begin, int64_t end) {
      if (twin.buffer.dtype == DType::kBF16) {
        vectors_.bf16.to_f32(twin.buffer.As<BFloat16>() + begin, to + begin, end - begin);
      } else {
        vectors_.f16.to_f32(twin.buffer.As<Float16>() + begin, to + begin, end - begin);
      }
    });
  }
}

void F32Twins::RoundBack(void* scratch) const {
  for (const Twin& twin : written_) {
    const auto* const from =
        reinterpret_cast<const float*>(static_cast<const char*>(scratch) + twin.scratch_offset);
    ParallelRuns(threads_, twin.n, kSerialElements, [&](int64_t begin, int64_t end) {
      if (twin.buffer.dtype == DType::kBF16) {
        vectors_.bf16.from_f32(from + begin, twin.buffer.As<BFloat16>() + begin, end - begin);
      } else {
        vectors_.f16.from_f32(from + begin, twin.buffer.As<Float16>() + begin, end - begin);
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
