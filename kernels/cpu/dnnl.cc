#include "kernels/cpu/dnnl.h"

#include <omp.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels {

DnnlCall::DnnlCall(const dnnl::primitive& primitive, const dnnl::stream& stream,
                   const std::vector<DnnlOperand>& operands)
    : primitive_(primitive), stream_(stream) {
  for (const DnnlOperand& o : operands) {
    if (o.shape.get_size() == 0) continue;
    if (o.data == nullptr) floating_.emplace_back(memories_.size(), o.scratch_offset);
    memories_.emplace_back(o.shape, dnnl::engine(stream_.get_engine()), o.data);
    arguments_.push_back({o.argument, memories_.back().get()});
  }
}

void DnnlCall::Run(void* scratch) const {
  if (scratch != last_scratch_) {
    for (const auto& [index, offset] : floating_) {
      memories_[index].set_data_handle(static_cast<char*>(scratch) + offset, stream_);
    }
    last_scratch_ = scratch;
  }
  // The C call, because the C++ one builds a vector each time.
  const dnnl_status_t status = dnnl_primitive_execute(
      primitive_.get(), stream_.get(), static_cast<int>(arguments_.size()), arguments_.data());
  if (status != dnnl_success) {
    std::fprintf(stderr, "oneDNN failed with status %d\n", static_cast<int>(status));
    std::abort();
  }
}

Dnnl::Dnnl(int threads)
    : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

void Dnnl::UseThreads() const {
  if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
}

absl::Status Dnnl::StatusOf(const char* op, const dnnl::error& e) {
  const std::string message = absl::StrCat(op, ": oneDNN: ", e.message);
  switch (e.status) {
    case dnnl_unimplemented:
      return absl::UnimplementedError(message);
    case dnnl_invalid_arguments:
      return absl::InvalidArgumentError(message);
    case dnnl_out_of_memory:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

dnnl::primitive_attr UserScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

DnnlCall Reorder(const Dnnl& dnnl, const DnnlOperand& from, const DnnlOperand& to, bool add,
                 ScratchLayout& layout) {
  dnnl::primitive_attr attributes = UserScratch();
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc pd(dnnl.engine(), from.shape, dnnl.engine(), to.shape,
                                         attributes);
  const dnnl::memory::desc scratch = pd.scratchpad_desc();
  return DnnlCall(dnnl::reorder(pd), dnnl.stream(),
                  {{DNNL_ARG_FROM, from.shape, from.data, from.scratch_offset},
                   {DNNL_ARG_TO, to.shape, to.data, to.scratch_offset},
                   {DNNL_ARG_SCRATCHPAD, scratch, nullptr, layout.Take(scratch.get_size())}});
}

Kernel InSequence(const Dnnl& dnnl, std::vector<DnnlCall> calls, const ScratchLayout& layout) {
  // Shared only because a std::function must be copyable.
  auto shared = std::make_shared<const std::vector<DnnlCall>>(std::move(calls));
  return Kernel{[&dnnl, shared](Stream& stream) {
                  dnnl.UseThreads();
                  for (const DnnlCall& call : *shared) call.Run(stream.scratch);
                },
                layout.size()};
}

DnnlOperand PlaceFor(int argument, const dnnl::memory::desc& wanted,
                     const dnnl::memory::desc& plain, void* data, ScratchLayout& layout) {
  if (wanted == plain) return {argument, plain, data};
  return {argument, wanted, nullptr, layout.Take(wanted.get_size())};
}

DnnlOperand InputFor(const Dnnl& dnnl, int argument, const dnnl::memory::desc& wanted,
                     const dnnl::memory::desc& plain, void* data, ScratchLayout& layout,
                     std::vector<DnnlCall>& calls) {
  const DnnlOperand place = PlaceFor(argument, wanted, plain, data, layout);
  if (place.data == nullptr) {
    calls.push_back(Reorder(dnnl, {argument, plain, data}, place, false, layout));
  }
  return place;
}

}  // namespace trainyard::kernels
