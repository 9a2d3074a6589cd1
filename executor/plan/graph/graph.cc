#include "executor/plan/graph/graph.h"

#include <utility>

#include "storage/base/status.h"

namespace trainyard::plan {

namespace {

int64_t Product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t dim : dims) n *= dim;
  return n;
}

}  // namespace

int64_t Tensor::elements() const { return Product(dims); }

int64_t Tensor::bytes() const {
  const int64_t stored = row_stride == 0 ? elements() : elements() / dims.back() * row_stride;
  return stored * SizeOf(type);
}

int64_t StoredTensor::elements() const { return Product(dims); }

std::vector<StoredTensor> Stored(const Tensor& parameter) {
  if (parameter.shard) {
    Tensor whole{
        .name = parameter.shard->whole, .dims = parameter.shard->dims, .parts = parameter.parts};
    return Stored(whole);
  }
  if (parameter.parts.empty()) return {{parameter.name, parameter.dims}};
  const int64_t row_bytes = parameter.bytes() / parameter.dims[0];
  std::vector<StoredTensor> stored;
  int64_t offset = 0;
  for (const Part& part : parameter.parts) {
    std::vector<int64_t> dims = parameter.dims;
    dims[0] = part.rows;
    stored.push_back({part.name, std::move(dims), offset});
    offset += part.rows * row_bytes;
  }
  TY_CHECK(offset == parameter.bytes(), parameter.name, ": its parts are not the whole");
  return stored;
}

int64_t Adapter::first_row(const Tensor& parameter) const {
  return stored.offset / (parameter.bytes() / parameter.dims[0]);
}

TensorId Graph::Add(Tensor tensor) {
  tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(tensors.size() - 1);
}

const Tensor& Graph::operator[](TensorId id) const {
  TY_CHECK(id >= 0 && id < static_cast<TensorId>(tensors.size()), "tensor ", id.index);
  return tensors[id];
}

void Retarget(const absl::flat_hash_map<TensorId, TensorId>& by, std::vector<Op>& ops) {
  const auto replace = [&](TensorId& id, Access) {
    if (const auto found = by.find(id); found != by.end()) id = found->second;
  };
  for (Op& op : ops) VisitOperands(op, replace);
}

}  // namespace trainyard::plan
