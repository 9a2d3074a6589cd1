#include "kernels/cpu/staging.h"

#include <cstring>
#include <memory>
#include <utility>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels {

dnnl::memory::data_type Staging::TypeOf(const Buffer& buffer) const {
  return !widens_ && buffer.dtype == DType::kBF16 ? dnnl::memory::data_type::bf16
                                                  : dnnl::memory::data_type::f32;
}

DnnlOperand Staging::Place(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                           const StoredRows& stored,
                           std::initializer_list<std::vector<StagedCopy>*> lists) {
  if (!Has(buffer, stored)) return {argument, shape, buffer.data};
  const bool widened = widens_ && buffer.dtype != DType::kF32;
  const size_t element = widened ? sizeof(float) : SizeOf(buffer.dtype);
  const auto all = static_cast<int64_t>(shape.get_size() / element);
  const StagedCopy staged{.buffer = buffer,
                          .widened = widened,
                          .stored = stored.Apart() ? stored : StoredRows{1, all, all},
                          .scratch_offset = layout_.Take(shape.get_size())};
  for (std::vector<StagedCopy>* list : lists) list->push_back(staged);
  return {argument, shape, nullptr, staged.scratch_offset};
}

DnnlOperand Staging::Read(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                          const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_});
}
DnnlOperand Staging::Write(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                           const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&written_});
}
DnnlOperand Staging::Update(int argument, const dnnl::memory::desc& shape, const Buffer& buffer,
                            const StoredRows& stored) {
  return Place(argument, shape, buffer, stored, {&read_, &written_});
}

template <typename F>
void Staging::ForRuns(const StagedCopy& staged, const F& f) const {
  const auto& [rows, cols, step] = staged.stored;
  if (rows == 1) {
    ParallelRuns(threads_, cols, kSerialElements,
                 [&f](int64_t begin, int64_t end) { f(begin, begin, end - begin); });
    return;
  }
  ParallelFor(threads_, rows, GrainOf(cols),
              [&f, cols = cols, step = step](int64_t row) { f(row * step, row * cols, cols); });
}

void Staging::Fill(void* scratch) const {
  for (const StagedCopy& staged : read_) {
    char* const to = static_cast<char*>(scratch) + staged.scratch_offset;
    const Buffer& from = staged.buffer;
    const auto size = SizeOf(from.dtype);
    ForRuns(staged, [&](int64_t at, int64_t in_staged, int64_t n) {
      if (!staged.widened) {
        std::memcpy(to + in_staged * size, static_cast<const char*>(from.data) + at * size,
                    n * size);
      } else {
        ForElement(from.dtype, [&]<typename T>() {
          LoopsOf<T>(vectors_).to_f32(from.As<T>() + at, reinterpret_cast<float*>(to) + in_staged,
                                      n);
        });
      }
    });
  }
}

void Staging::BringBack(void* scratch) const {
  for (const StagedCopy& staged : written_) {
    const char* const from = static_cast<const char*>(scratch) + staged.scratch_offset;
    const auto* const floats = reinterpret_cast<const float*>(from);
    const Buffer& to = staged.buffer;
    const auto size = SizeOf(to.dtype);
    ForRuns(staged, [&](int64_t at, int64_t in_staged, int64_t n) {
      if (!staged.widened) {
        std::memcpy(static_cast<char*>(to.data) + at * size, from + in_staged * size, n * size);
      } else {
        ForElement(to.dtype, [&]<typename T>() {
          LoopsOf<T>(vectors_).from_f32(floats + in_staged, to.As<T>() + at, n);
        });
      }
    });
  }
}

}  // namespace trainyard::kernels
