#include "executor/engine/lowering.h"

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "executor/plan/spec/facts.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

namespace k = ::trainyard::kernels;
namespace p = ::trainyard::plan;

static_assert(p::kPlace == k::NormalizeImages::kPlace);

// Turns an op over ids of tensors into the same op over the buffers of these tensors in the arena.
struct Binder {
  const p::Plan& plan;
  char* arena;
  plan::Instance of;

  k::Buffer At(p::TensorId id, bool takes_row_stride) const {
    if (id == p::kNone) return {};
    const p::Tensor& tensor = plan.tensors[id];
    TY_CHECK(takes_row_stride || tensor.row_stride == 0, tensor.name,
             ": its op takes no rows that lie apart");
    TY_CHECK(plan.offsets[id] != p::kNoPlace, tensor.name, " has no place of its own");
    return {arena + offset(id), tensor.type, tensor.row_stride,
            /*padded=*/tensor.row_stride > 0};
  }

  int64_t offset(p::TensorId id) const { return plan.offset(id, of); }

  // Embedding tables, or one tensor per table (such as gradients), by their places relative to the
  // first.
  k::Tables At(const std::vector<p::TensorId>& tables, bool takes_row_stride) const {
    if (tables.empty()) return {};
    k::Tables bound{.first = At(tables[0], takes_row_stride),
                    .list = {.count = static_cast<int64_t>(tables.size())}};
    TY_CHECK(bound.list.count <= k::TableList::kMost, bound.list.count, " tables");
    for (size_t t = 0; t < tables.size(); ++t) {
      bound.list.start[t] = (offset(tables[t]) - offset(tables[0])) / 4;
      bound.list.rows[t] = plan.tensors[tables[t]].dims[0];
    }
    return bound;
  }

  template <typename From, typename To>
  void BindField(const From& from, To& to) const {
    if constexpr (k::kIsTouched<From>) {
      to.at = At(from.at, from.takes_row_stride);
    } else if constexpr (k::kIsNatural<From>) {
      to.value = from.value;
    } else {
      to = from;
    }
  }

  template <template <typename> typename Op>
  Op<k::Buffer> Bind(const Op<p::TensorId>& op) const {
    Op<k::Buffer> bound;
    const auto from = op.Fields();
    auto to = bound.Fields();
    [&]<size_t... I>(std::index_sequence<I...>) {
      (BindField(std::get<I>(from), std::get<I>(to)), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(to)>>());
    return bound;
  }
};

}  // namespace

absl::StatusOr<kernels::Kernels> Lower(kernels::Device& device, const plan::Plan& plan, void* arena,
                                       const std::vector<plan::Op>& ops, const plan::Instance& of) {
  const Binder binder{plan, static_cast<char*>(arena), of};
  kernels::Kernels kernels;
  kernels.reserve(ops.size());
  for (const plan::Op& op : ops) {
    absl::StatusOr<kernels::Kernel> kernel =
        std::visit([&](const auto& o) { return device.Prepare(binder.Bind(o)); }, op);
    if (!kernel.ok()) {
      return Annotate(kernel.status(), absl::StrCat("op ", kernels.size(), " of the plan"));
    }
    kernels.push_back(*std::move(kernel));
  }
  return kernels;
}

}  // namespace trainyard::engine
