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

}  // namespace trainyard::kernels
