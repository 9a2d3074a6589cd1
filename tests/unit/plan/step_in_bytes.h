#pragma once

// A step of a stage of a pipeline, byte by byte.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/plan/graph/pipeline.h"
#include "executor/plan/graph/plan.h"
#include "executor/plan/ops/op.h"

namespace trainyard::plan {

// Makes the passes of a stage, or those of an evaluation, and notes of each byte of the arena which
// tensor of which micro-batch was written there last. A test fails when an op reads what is not
// there any more.
class StepInBytes {
 public:
  explicit StepInBytes(const Plan& plan) : plan_(plan), written_(plan.arena_bytes, {kNone, 0}) {}

  void Run(int64_t micro_batches) {
    using Kind = StageAction::Kind;
    for (const StageAction& action :
         ActionsOf(plan_.host.pipeline(), plan_.host.stage(), micro_batches)) {
      const StageChunk& chunk = plan_.chunks[action.chunk];
      place_ = {.flight = action.flight, .batch = action.batch};
      micro_batch_ = action.micro_batch;
      const bool forward = action.kind == Kind::kForward || action.kind == Kind::kBoth;
      if (forward && action.chunk == 0) {
        for (const TensorId id : {plan_.input, plan_.ids, plan_.target}) Write(id);
      }
      switch (action.kind) {
        case Kind::kForward:
          RunMicro(chunk.forward.first, chunk.forward.end);
          break;
        case Kind::kBackward:
          RunMicro(chunk.backward.first, chunk.backward.end);
          break;
        case Kind::kBoth:
          RunMicro(chunk.forward.first, chunk.backward.end);
          break;
        case Kind::kReceiveFromBefore:
          Write(chunk.links.from_before);
          break;
        case Kind::kReceiveFromAfter:
          Write(chunk.links.from_after);
          break;
        case Kind::kSendToAfter:
          ExpectThere(chunk.links.to_after, "sent to the next piece");
          break;
        case Kind::kSendToBefore:
          ExpectThere(chunk.links.to_before, "sent to the piece before");
          break;
      }
    }
  }

  // A batch of an evaluation.
  void Evaluate() {
    place_ = {};
    micro_batch_ = -1;  // what is there is of others
    for (const TensorId id : {plan_.eval_input, plan_.eval_ids, plan_.eval_target}) Write(id);
    const auto end = static_cast<int64_t>(plan_.evaluate.size());
    for (size_t i = 0; i < plan_.evaluate_begin.size(); ++i) {
      RunOp(plan_.evaluate_begin, static_cast<int64_t>(i), {});
    }
    for (int64_t i = 0; i < end; ++i) RunOp(plan_.evaluate, i, plan_.evaluate_exchanges);
    Exchange(end, plan_.evaluate_exchanges);
  }

 private:
  void RunMicro(int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) RunOp(plan_.micro, i, plan_.micro_exchanges);
  }

  // What other ranks need, or send, before op `i` of `ops`.
  void Exchange(int64_t i, const std::vector<ShardExchange>& exchanges) {
    for (const ShardExchange& exchange : exchanges) {
      if (exchange.before_op == i) Exchange(exchange);
    }
  }

  void RunOp(const std::vector<Op>& ops, int64_t i, const std::vector<ShardExchange>& exchanges) {
    Exchange(i, exchanges);
    const std::string at = absl::StrCat("read by op ", i, " ", OpName(ops[i]));
    VisitOperands(ops[i], [&](TensorId id, Access access) {
      if (access != Access::kWrite) ExpectThere(id, at);
    });
    VisitOperands(ops[i], [&](TensorId id, Access access) {
      if (access != Access::kRead) Write(id);
    });
  }

  void Exchange(const ShardExchange& exchange) {
    for (const TensorId id : exchange.tensors) {
      const bool mine = exchange.gathered != kNone || plan_.tensors[id].made_by == plan_.host.rank;
      if (mine) ExpectThere(id, "sent to others");
    }
    for (const TensorId id : exchange.tensors) {
      if (plan_.tensors[id].kind == TensorKind::kReceived) Write(id);
    }
    if (exchange.gathered != kNone) Write(exchange.gathered);
  }

  bool Passes(TensorId id) const {
    if (id == kNone) return false;
    const TensorKind kind = plan_.tensors[id].kind;
    return kind == TensorKind::kActivation || kind == TensorKind::kReceived ||
           kind == TensorKind::kInput;
  }
  void Write(TensorId id) {
    if (!Passes(id)) return;
    const int64_t at = plan_.offset(id, place_);
    std::fill_n(written_.begin() + at, plan_.tensors[id].bytes(), std::pair(id, micro_batch_));
  }
  void ExpectThere(TensorId id, const std::string& why) const {
    if (!Passes(id)) return;
    const int64_t at = plan_.offset(id, place_), bytes = plan_.tensors[id].bytes();
    for (int64_t i = at; i < at + bytes; ++i) {
      if (written_[i] == std::pair(id, micro_batch_)) continue;
      const auto [other, of] = written_[i];
      ADD_FAILURE() << plan_.tensors[id].name << ", " << why << ", is overwritten by "
                    << (other == kNone ? "nothing" : plan_.tensors[other].name)
                    << " of micro-batch " << of;
      return;
    }
  }

  const Plan& plan_;
  Instance place_;
  int64_t micro_batch_ = 0;
  std::vector<std::pair<TensorId, int64_t>> written_;  // by byte
};

}  // namespace trainyard::plan
