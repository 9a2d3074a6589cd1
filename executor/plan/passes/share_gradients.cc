#include "executor/plan/passes/share_gradients.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "executor/plan/passes/logical_ranks.h"
#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/passes/shard_gradients.h"

namespace trainyard::plan {

namespace {

// The first op of `ops` that touches a tensor; op -1: none does.
struct FirstTouch {
  int64_t op = -1;
  Access access = Access::kRead;
};

std::vector<FirstTouch> FirstTouches(const Plan& plan, std::vector<Op> ops) {
  std::vector<FirstTouch> touches(plan.tensors.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto touch = [&](TensorId id, Access access) {
      if (touches[id].op < 0) touches[id] = {static_cast<int64_t>(i), access};
    };
    VisitOperands(ops[i], touch);
  }
  return touches;
}

// Before each op the gradients that it is the first to touch, and adds to.
void ZeroInMicro(Plan& plan, const std::vector<bool>& zeroed,
                 const std::vector<FirstTouch>& touches) {
  std::vector<std::vector<TensorId>> before(plan.micro.size());
  for (size_t i = 0; i < zeroed.size(); ++i) {
    if (zeroed[i]) before[touches[plan.gradients[i]].op].push_back(plan.gradients[i]);
  }
  std::vector<Op> ops;
  for (size_t i = 0; i < before.size(); ++i) {
    for (const TensorId id : before[i])
      ops.push_back(Zero{.x = id, .n = plan.tensors[id].elements()});
    ops.push_back(std::move(plan.micro[i]));
  }
  plan.micro = std::move(ops);
}

// Those of the last chunk first, with what plan.zero has so far.
void ZeroBefore(Plan& plan, const std::vector<bool>& zeroed) {
  int64_t begin = 0;
  for (auto chunk = plan.chunks.rbegin(); chunk != plan.chunks.rend(); ++chunk) {
    for (const auto& [first, end] : RunsOfChunk(plan, plan.chunks.rend() - chunk - 1)) {
      for (size_t i = first; i < end;) {
        size_t next = i;
        while (next < end && zeroed[next]) ++next;
        if (next > i) {
          plan.zero.push_back(Zero{.x = plan.gradients[i], .n = RunLength(plan, i, next)});
        }
        i = std::max(next, i + 1);
      }
    }
    const auto end = static_cast<int64_t>(plan.zero.size());
    chunk->zero = {begin, end};
    begin = end;
  }
}

// The last line of a gradient that ends within it, which later ops read whole.
std::vector<ReservedRange> Always(const Plan& plan, int64_t end) {
  std::vector<ReservedRange> reserved;
  const auto stay = [&](int64_t offset, int64_t bytes) {
    reserved.push_back(
        {.offset = offset - plan.gradient_region.offset, .bytes = bytes, .first = -1, .last = end});
  };
  for (const TensorId id : plan.gradients) {
    if (plan.gradients_sharded) break;  // Plan::clear_padding
    const Tensor& tensor = plan.tensors[id];
    const int64_t line = kAlignment / SizeOf(ElementType::kF32) * SizeOf(tensor.type);
    if (tensor.bytes() % line != 0) stay(plan.offsets[id] + BytesInRun(tensor) - line, line);
  }
  return reserved;
}

}  // namespace

void ZeroGradients(Plan& plan) {
  const std::vector<FirstTouch> touches = FirstTouches(plan, plan.micro);
  std::vector<bool> zeroed;
  for (const TensorId id : plan.gradients) {
    zeroed.push_back(touches[id].op >= 0 && touches[id].access != Access::kWrite);
  }
  // In a pipeline a forward pass may run before the gradients of the logical rank before are added
  // up.
  if (plan.micro_batches == 1 && plan.host.stages == 1) {
    ZeroInMicro(plan, zeroed, touches);
  } else {
    ZeroBefore(plan, zeroed);
  }
}

std::vector<ReservedRange> GradientsInMicro(const Plan& plan) {
  const auto end = static_cast<int64_t>(plan.micro.size());
  if (plan.gradients_sharded) return SharesInMicro(plan);
  if (plan.micro_batches != 1 || !plan.partial_sums.empty() || plan.host.stages > 1) {
    return {{.offset = 0, .bytes = plan.gradient_region.bytes, .first = -1, .last = end}};
  }
  std::vector<ReservedRange> reserved = Always(plan, end);
  const std::vector<FirstTouch> touches = FirstTouches(plan, plan.micro);
  for (const TensorId id : plan.gradients) {
    reserved.push_back({.offset = plan.offsets[id] - plan.gradient_region.offset,
                        .bytes = BytesInRun(plan.tensors[id]),
                        .first = touches[id].op,
                        .last = end});
  }
  return reserved;
}

std::vector<ReservedRange> GradientsInEvaluation(const Plan& plan) {
  return Always(plan, static_cast<int64_t>(plan.evaluate_begin.size() + plan.evaluate.size()));
}

}  // namespace trainyard::plan
