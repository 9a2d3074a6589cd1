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

// Makes the passes of a stage, and notes of each byte of the arena which tensor of which
// micro-batch was written there last. A test fails when an op reads what is not there any more.
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
          RunOps(chunk.forward.first, chunk.forward.end);
          break;
        case Kind::kBackward:
          RunOps(chunk.backward.first, chunk.backward.end);
          break;
        case Kind::kBoth:
          RunOps(chunk.forward.first, chunk.backward.end);
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

 private:
  void RunOps(int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      for (const ShardExchange& exchange : plan_.micro_exchanges) {
        if (exchange.before_op == i) Exchange(exchange);
      }
      const std::string at = absl::StrCat("read by op ", i, " ", OpName(plan_.micro[i]));
      VisitOperands(plan_.micro[i], [&](TensorId id, Access access) {
        if (access != Access::kWrite) ExpectThere(id, at);
      });
      VisitOperands(plan_.micro[i], [&](TensorId id, Access access) {
        if (access != Access::kRead) Write(id);
      });
    }
  }

  void Exchange(const ShardExchange& exchange) {
    for (const TensorId id : exchange.tensors) {
      const bool mine = exchange.gathered != kNone || plan_.tensors[id].made_by == plan_.host.rank;
      if (mine) ExpectThere(id, "sent to the others of the stage");
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
