#include "kernels/cpu/twins.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

dnnl::memory::data_type Twins::TypeOf(const Buffer& buffer) const {
  return !widens_ && buffer.dtype == DType::kBF16 ? dnnl::memory::data_type::bf16
                                                  : dnnl::memory::data_type::f32;
}

DnnlOperand Twins::Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                         const StoredRows& stored,
                         std::initializer_list<std::vector<Twin>*> lists) {
  if (!Has(buffer, stored)) return {argument, shape, buffer.data};
  const bool widened = widens_ && buffer.dtype != DType::kF32;
  const size_t element = widened ? sizeof(float) : SizeOf(buffer.dtype);
  const auto all = static_cast<int64_t>(shape.get_size() / element);
  const Twin twin{.buffer = buffer,
                  .widened = widened,
                  .stored = stored.Apart() ? stored : StoredRows{1, all, all},
                  .scratch_offset = layout_.Take(shape.get_size())};
  for (std::vector<Twin>* list : lists) list->push_back(twin);
  return {argument, shape, nullptr, twin.scratch_offset};
}

DnnlOperand Twins::Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                        const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_});
}
DnnlOperand Twins::Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                         const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&written_});
}
DnnlOperand Twins::Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                          const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_, &written_});
}

template <typename F>
void Twins::ForRuns(const Twin& twin, const F& f) const {
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

void Twins::Fill(void* scratch) const {
  for (const Twin& twin : read_) {
    char* const to = static_cast<char*>(scratch) + twin.scratch_offset;
    const Buffer& from = twin.buffer;
    const auto size = SizeOf(from.dtype);
    ForRuns(twin, [&](int64_t at, int64_t in_twin, int64_t n) {
      if (!twin.widened) {
        std::memcpy(to + in_twin * size, static_cast<const char*>(from.data) + at * size, n * size);
      } else if (from.dtype == DType::kBF16) {
        vectors_.bf16.to_f32(from.As<BFloat16>() + at, reinterpret_cast<float*>(to) + in_twin, n);
      } else {
        vectors_.f16.to_f32(from.As<Float16>() + at, reinterpret_cast<float*>(to) + in_twin, n);
      }
    });
  }
}

void Twins::BringBack(void* scratch) const {
  for (const Twin& twin : written_) {
    const char* const from = static_cast<const char*>(scratch) + twin.scratch_offset;
    const auto* const floats = reinterpret_cast<const float*>(from);
    const Buffer& to = twin.buffer;
    const auto size = SizeOf(to.dtype);
    ForRuns(twin, [&](int64_t at, int64_t in_twin, int64_t n) {
      if (!twin.widened) {
        std::memcpy(static_cast<char*>(to.data) + at * size, from + in_twin * size, n * size);
      } else if (to.dtype == DType::kBF16) {
        vectors_.bf16.from_f32(floats + in_twin, to.As<BFloat16>() + at, n);
      } else {
        vectors_.f16.from_f32(floats + in_twin, to.As<Float16>() + at, n);
      }
    });
  }
}

Kernel InSequence(const Dnnl& dnnl, Twins twins, std::vector<DnnlCall> calls,
                  const ScratchLayout& layout) {
  struct Program {
    Twins twins;
    std::vector<DnnlCall> calls;
  };
  // Shared only because a std::function must be copyable.
  const auto program = std::make_shared<const Program>(Program{std::move(twins), std::move(calls)});
  return Kernel{[&dnnl, program](Stream& stream) {
                  dnnl.UseThreads();
                  program->twins.Fill(stream.scratch);
                  for (const DnnlCall& call : program->calls) call.Run(stream.scratch);
                  program->twins.BringBack(stream.scratch);
                },
                layout.size()};
}

}  // namespace trainyard::kernels
