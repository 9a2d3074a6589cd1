#include "executor/engine/non_finite.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "executor/engine/finite.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kChunk = int64_t{4} << 20;  // bytes read back at once

bool IsFloat(plan::ElementType type) {
  switch (type) {
    case plan::ElementType::kF32:
    case plan::ElementType::kF64:
      return true;
    case plan::ElementType::kI32:
    case plan::ElementType::kU8:
      return false;
  }
  return false;
}

bool IsLoss(const plan::Op& op) {
  return std::holds_alternative<plan::CrossEntropy>(op) ||
         std::holds_alternative<plan::BinaryCrossEntropy>(op);
}

std::vector<plan::TensorId> Operands(plan::Op op, bool written) {
  std::vector<plan::TensorId> ids;
  std::visit(
      [&](auto& o) {
        o.Visit([&](plan::TensorId id, plan::Access access) {
          if ((access != plan::Access::kRead) == written) ids.push_back(id);
        });
      },
      op);
  return ids;
}

}  // namespace

NonFiniteSearch::NonFiniteSearch(Session& session) : session_(session), chunk_(kChunk) {}

absl::StatusOr<std::string> NonFiniteSearch::Scan(plan::TensorId id) {
  const plan::Tensor& tensor = session_.plan().tensors[id];
  // Running statistics are still those of the first time.
  if (!IsFloat(tensor.type) || tensor.kind == plan::TensorKind::kBuffer) return "";
  const bool wide = tensor.type == plan::ElementType::kF64;
  const int64_t width = plan::SizeOf(tensor.type);
  double largest = 0;
  for (int64_t at = 0; at < tensor.bytes(); at += kChunk) {
    const int64_t bytes = std::min(kChunk, tensor.bytes() - at);
    session_.Read(id, chunk_.data(), bytes, at);
    TY_RETURN_IF_ERROR(session_.Synchronize());
    const auto* const floats = reinterpret_cast<const float*>(chunk_.data());
    const auto* const doubles = reinterpret_cast<const double*>(chunk_.data());
    const Extent extent = wide ? ExtentOf(doubles, bytes / width) : ExtentOf(floats, bytes / width);
    if (extent.first_bad >= 0) {
      const double value = wide ? doubles[extent.first_bad] : floats[extent.first_bad];
      return absl::StrCat("element ", at / width + extent.first_bad, " of [",
                          absl::StrJoin(tensor.dims, ", "), "], value ", value);
    }
    largest = std::max(largest, extent.largest);
  }
  largest_[id] = largest;
  return "";
}

absl::Status NonFiniteSearch::Look(plan::TensorId id, const std::string& what) {
  if (id == plan::kNone || !found_.empty()) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::string bad, Scan(id));
  if (!bad.empty()) {
    found_ = absl::StrCat(what, " \"", session_.plan().tensors[id].name, "\", ", bad);
  }
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

absl::Status NonFiniteSearch::Run(const std::vector<plan::Op>& ops,
                                  const std::vector<kernels::Kernel>& program,
                                  const std::string& where) {
  const size_t loss = std::find_if(ops.begin(), ops.end(), IsLoss) - ops.begin();
  for (size_t i = 0; i < ops.size() && found_.empty(); ++i) {
    session_.Launch(program[i]);
    for (const plan::TensorId id : Operands(ops[i], /*written=*/true)) {
      TY_ASSIGN_OR_RETURN(const std::string bad, Scan(id));
      if (bad.empty()) continue;
      const char* const pass = loss == ops.size() ? "" : i <= loss ? " forward" : " backward";
      found_ =
          absl::StrCat("op ", i, " ", plan::OpName(ops[i]), " \"", session_.plan().tensors[id].name,
                       "\"", pass, ", ", where, ", ", bad, Inputs(ops[i]));
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::engine
