#include "kernels/cpu/dnnl.h"

#include <omp.h>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/bugs.h"

namespace trainyard::kernels {

DnnlOperand PartOf(const DnnlOperand& whole, int64_t elements, const dnnl::memory::desc& shape) {
  const auto moved =
      elements * static_cast<int64_t>(dnnl::memory::data_type_size(shape.data_type()));
  DnnlOperand part = whole;
  part.shape = shape;
  if (whole.data == nullptr) {
    part.scratch_offset += moved;
  } else {
    part.data = static_cast<char*>(whole.data) + moved;
  }
  return part;
}

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
    AbortWith(absl::StrCat("oneDNN failed with status ", static_cast<int>(status)));
  }
}

Dnnl::Dnnl(int threads)
    : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

void Dnnl::UseThreads() const {
  if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
}

namespace {

bool Has(dnnl::cpu_isa wanted) {
  // An instruction set's bits contain those of what it extends.
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (has & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

}  // namespace

bool Dnnl::Computes(DType type) const {
  if (type != DType::kBF16) return type == DType::kF32;
  return Has(dnnl::cpu_isa::avx512_core_bf16);
}

bool Dnnl::AddsByShape() const { return Has(dnnl::cpu_isa::avx512_core); }

bool Dnnl::HasAmx() const { return Has(dnnl::cpu_isa::avx512_core_amx); }

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

DnnlOperand PlaceFor(const dnnl::memory::desc& wanted, const DnnlOperand& plain,
                     ScratchLayout& layout) {
  if (wanted == plain.shape) return plain;
  return {plain.argument, wanted, nullptr, layout.Take(wanted.get_size())};
}

DnnlOperand InputFor(const Dnnl& dnnl, const dnnl::memory::desc& wanted, const DnnlOperand& plain,
                     ScratchLayout& layout, std::vector<DnnlCall>& calls) {
  const DnnlOperand place = PlaceFor(wanted, plain, layout);
  if (place.shape != plain.shape) {
    calls.push_back(Reorder(dnnl, plain, place, false, layout));
  }
  return place;
}

}  // namespace trainyard::kernels
