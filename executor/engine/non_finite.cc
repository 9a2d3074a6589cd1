#include "executor/engine/non_finite.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "executor/engine/finite.h"
#include "executor/engine/parameter_shares.h"
#include "executor/plan/ops/op.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSearchedAtOnce = int64_t{4} << 20;  // bytes read back at once

// What is found in a chunk, and the value of the first element that is not finite.
struct Found {
  Extent extent;
  double value = 0;
};

template <typename T>
Found FindIn(const std::vector<char>& chunk, int64_t bytes) {
  const auto* const x = reinterpret_cast<const T*>(chunk.data());
  const Extent extent = ExtentOf(x, bytes / static_cast<int64_t>(sizeof(T)));
  return {extent, extent.first_bad < 0 ? 0 : ValueOf(x[extent.first_bad])};
}

Found FindIn(plan::ElementType type, const std::vector<char>& chunk, int64_t bytes) {
  switch (type) {
    case plan::ElementType::kF32:
      return FindIn<float>(chunk, bytes);
    case plan::ElementType::kF64:
      return FindIn<double>(chunk, bytes);
    case plan::ElementType::kBF16:
      return FindIn<kernels::BFloat16>(chunk, bytes);
    case plan::ElementType::kF16:
      return FindIn<kernels::Float16>(chunk, bytes);
    case plan::ElementType::kI32:
    case plan::ElementType::kU8:
      break;
  }
  return {};
}

bool IsLoss(const plan::Op& op) {
  return std::holds_alternative<plan::CrossEntropy>(op) ||
         std::holds_alternative<plan::CrossEntropyOfShards>(op) ||
         std::holds_alternative<plan::BinaryCrossEntropy>(op);
}

std::vector<plan::TensorId> Operands(const plan::Op& op, bool written) {
  std::vector<plan::TensorId> ids;
  plan::VisitOperands(op, [&](plan::TensorId id, plan::Access access) {
    if ((access != plan::Access::kRead) == written) ids.push_back(id);
  });
  return ids;
}

}  // namespace

NonFiniteSearch::NonFiniteSearch(Session& session) : session_(session), chunk_(kSearchedAtOnce) {}

absl::StatusOr<std::string> NonFiniteSearch::Scan(plan::TensorId id, const plan::Instance& place,
                                                  const plan::Tensor* of, int64_t first) {
  const plan::Tensor& tensor = session_.plan().tensors[id];
  if (tensor.type == plan::ElementType::kI32 || tensor.type == plan::ElementType::kU8) return "";
  // Running statistics are passed over: no loss of a training step depends on them.
  if (tensor.kind == plan::TensorKind::kPendingBuffer) return "";
  const int64_t width = plan::SizeOf(tensor.type);
  // Rows that lie apart are read one after the other: what lies between them is no value.
  const bool apart = tensor.row_stride > 0;
  const int64_t run = apart ? tensor.dims.back() : tensor.elements();
  const int64_t step = apart ? tensor.stride_of_rows() : run;
  double largest = 0;
  for (int64_t row = 0; row * run < tensor.elements(); ++row) {
    for (int64_t at = 0; at < run * width; at += kSearchedAtOnce) {
      const int64_t bytes = std::min(kSearchedAtOnce, run * width - at);
      TY_RETURN_IF_ERROR(
          session_.ReadNow(id, chunk_.data(), bytes, row * step * width + at, place));
      const Found found = FindIn(tensor.type, chunk_, bytes);
      if (found.extent.first_bad >= 0) {
        return absl::StrCat("element ", first + row * run + at / width + found.extent.first_bad,
                            " of [", absl::StrJoin((of == nullptr ? tensor : *of).dims, ", "),
                            "], value ", found.value);
      }
      largest = std::max(largest, found.extent.largest);
    }
  }
  largest_[id] = largest;
  return "";
}

absl::Status NonFiniteSearch::Look(plan::TensorId id, const std::string& what,
                                   const plan::Instance& place) {
  if (id == plan::kNone || !found_.empty() || received_) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::string bad, Scan(id, place));
  if (!bad.empty()) {
    found_ = absl::StrCat(what, " \"", session_.plan().tensors[id].name, "\", ", bad);
  }
  return absl::OkStatus();
}

absl::Status NonFiniteSearch::LookAtRows(plan::TensorId table, const std::string& what) {
  const plan::Plan& plan = session_.plan();
  const plan::OwnedRun& rows = *plan.RowsOf(table);
  if (rows.elements.size() == 0 || !found_.empty() || received_) return absl::OkStatus();
  const plan::Tensor& whole = plan.tensors[table];
  const int64_t before = rows.elements.first - FirstElementOf(plan, table);
  TY_ASSIGN_OR_RETURN(const std::string bad, Scan(rows.weights, {}, &whole, before));
  if (!bad.empty()) found_ = absl::StrCat(what, " \"", whole.name, "\", ", bad);
  return absl::OkStatus();
}

std::string NonFiniteSearch::Inputs(plan::Op op) const {
  std::vector<std::string> parts;
  for (const plan::TensorId id : Operands(op, /*written=*/false)) {
    const auto seen = largest_.find(id);
    if (seen == largest_.end()) continue;
    parts.push_back(
        absl::StrFormat("\"%s\" max |x| = %.3g", session_.plan().tensors[id].name, seen->second));
  }
  if (parts.empty()) return "";
  return absl::StrCat("; its inputs are finite: ", absl::StrJoin(parts, ", "));
}

// What another rank makes is reported by that rank, which knows what it comes of.
absl::Status NonFiniteSearch::LookAtReceived(const plan::Op& op, const plan::Instance& place) {
  for (const plan::TensorId id : Operands(op, /*written=*/false)) {
    if (session_.plan().tensors[id].kind != plan::TensorKind::kReceived) continue;
    TY_ASSIGN_OR_RETURN(const std::string bad, Scan(id, place));
    received_ |= !bad.empty();
  }
  // The rows of this rank were looked at when they were written.
  if (const auto* const all = std::get_if<plan::GatherRows>(&op)) {
    TY_ASSIGN_OR_RETURN(const std::string bad, Scan(all->y, place));
    received_ |= !bad.empty();
  }
  return absl::OkStatus();
}

absl::Status NonFiniteSearch::Run(const std::vector<plan::Op>& ops, const kernels::Kernels& program,
                                  const std::string& where,
                                  const std::vector<plan::Instance>& places) {
  const plan::Plan& plan = session_.plan();
  size_t loss = std::find_if(ops.begin(), ops.end(), IsLoss) - ops.begin();
  // A stage of a pipeline other than the last has none.
  if (loss == ops.size() && &ops == &plan.micro && plan.host.stages > 1) {
    loss = static_cast<size_t>(plan.backward_from) - 1;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    session_.Launch(program[i]);  // all of them: other ranks may wait for what they find
    if (!found_.empty() || received_) continue;
    const plan::Instance place = places.empty() ? plan::Instance() : places[i];
    TY_RETURN_IF_ERROR(LookAtReceived(ops[i], place));
    if (received_) continue;
    for (const plan::TensorId id : Operands(ops[i], /*written=*/true)) {
      TY_ASSIGN_OR_RETURN(const std::string bad, Scan(id, place));
      if (bad.empty()) continue;
      // Numbered as in a list that has the look-up as an op.
      const bool behind = &ops == &plan.micro && plan.micro_look_up.rows != plan::kNone &&
                          static_cast<int64_t>(i) >= plan.micro_look_up.was_before;
      const char* const pass = loss == ops.size() ? "" : i <= loss ? " forward" : " backward";
      found_ = absl::StrCat("op ", i + (behind ? 1 : 0), " ", plan::OpName(ops[i]), " \"",
                            session_.plan().tensors[id].name, "\"", pass, ", ", where, ", ", bad,
                            Inputs(ops[i]));
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
