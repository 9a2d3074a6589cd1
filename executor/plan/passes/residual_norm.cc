#include "executor/plan/passes/residual_norm.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "executor/plan/memory/memory.h"
#include "executor/plan/ops/op.h"

namespace trainyard::plan {

namespace {

class Joining {
 public:
  Joining(const std::vector<Tensor>& tensors, const std::vector<Op>& ops,
          const std::vector<TensorId>& results)
      : tensors_(tensors), last_(tensors.size(), -1) {
    for (const LiveRange& life : LiveRanges(tensors, ops, results)) last_[life.tensor] = life.last;
  }

  // Both in one; none: `op` is no sum, `next` not the norm of it, or their types are none that
  // kernels/ops/layer_norm.h takes.
  std::optional<LayerNormForward> Joined(const Op& op, const Op& next) const {
    const auto* const sum = std::get_if<Add>(&op);
    const auto* const norm = std::get_if<LayerNormForward>(&next);
    if (sum == nullptr || norm == nullptr || norm->x != sum->y) return std::nullopt;
    const auto wide = [&](TensorId id) { return tensors_[id].type == ElementType::kF32; };
    const bool narrow_alike = tensors_[sum->b].type == tensors_[norm->y].type;
    if (!wide(sum->a) || !(wide(sum->b) || wide(norm->y) || narrow_alike)) return std::nullopt;
    LayerNormForward joined = *norm;
    joined.x = sum->a;
    joined.residual = sum->b;
    joined.sum = sum->y;
    return joined;
  }

  // Whether each operand of the sum, op `at`, that nobody reads later leaves its memory to what is
  // written, as PackActivations has it: to one tensor of its size.
  bool NeedsNoMore(int64_t at, const LayerNormForward& joined) const {
    std::vector<TensorId> left, taken;
    for (const auto& [in, out] : InPlacePairs(joined)) {
      const bool fits = Ends(in, at) && tensors_[in].bytes() == tensors_[out].bytes();
      if (!fits || Holds(left, in) || Holds(taken, out)) continue;
      left.push_back(in);
      taken.push_back(out);
    }
    return (!Ends(joined.x, at) || Holds(left, joined.x)) &&
           (!Ends(joined.residual, at) || Holds(left, joined.residual));
  }

 private:
  bool Ends(TensorId id, int64_t at) const {
    return tensors_[id].kind == TensorKind::kActivation && last_[id] == at;
  }
  static bool Holds(const std::vector<TensorId>& ids, TensorId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }

  const std::vector<Tensor>& tensors_;
  std::vector<int64_t> last_;  // op that touches a tensor; -1: none does
};

}  // namespace

JoinedNorms JoinResidualNorms(ResidualNorms which, const std::vector<Tensor>& tensors,
                              const std::vector<TensorId>& results, size_t forward,
                              std::vector<Op>& ops) {
  const Joining joining(tensors, ops, results);
  JoinedNorms count;
  std::vector<Op> all;
  for (size_t i = 0; i < ops.size(); ++i) {
    std::optional<LayerNormForward> joined;
    if (i + 1 < ops.size()) joined = joining.Joined(ops[i], ops[i + 1]);
    const bool wanted = joined && (which == ResidualNorms::kAll ||
                                   joining.NeedsNoMore(static_cast<int64_t>(i), *joined));
    if (!wanted) {
      all.push_back(std::move(ops[i]));
      continue;
    }
    all.push_back(*joined);
    ++count.count;
    count.in_forward += i < forward;
    ++i;  // the norm
  }
  ops = std::move(all);
  return count;
}

}  // namespace trainyard::plan
