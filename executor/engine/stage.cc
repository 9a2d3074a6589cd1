#include "executor/engine/stage.h"

#include <algorithm>
#include <utility>

#include "executor/plan/ops/op.h"
#include "storage/base/status.h"

namespace trainyard::engine {

using Kind = plan::StageAction::Kind;

namespace {

bool IsPass(Kind kind) {
  return kind == Kind::kForward || kind == Kind::kBackward || kind == Kind::kBoth;
}

// Whether some of plan.micro touch what is kept of each micro-batch that is uploaded.
bool TouchesBatch(const plan::Plan& plan, const plan::Run& ops) {
  bool touches = false;
  for (int64_t i = ops.first; i < ops.end && plan.batch_bytes > 0; ++i) {
    plan::VisitOperands(plan.micro[i], [&](plan::TensorId id, plan::Access) {
      touches |= plan.offset(id, {.batch = 1}) != plan.offset(id, {});
    });
  }
  return touches;
}

}  // namespace

Stage::Stage(Session& session, ShardsAcrossRanks& shards, const std::vector<StepPart>& parts)
    : session_(session),
      shards_(shards),
      actions_(plan::ActionsOf(session.plan().host.pipeline(), session.plan().host.stage(),
                               static_cast<int64_t>(parts.size()))) {
  for (const StepPart& part : parts) partials_.push_back(part.partial);
  const plan::MostInFlight& planned = session.plan().in_flight;
  for (const plan::StageAction& action : actions_) {
    TY_CHECK(action.flight < planned.flights && action.batch < planned.batches, "place ",
             action.flight, " of ", planned.flights, " in flight, upload ", action.batch, " of ",
             planned.batches);
  }
}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(Session& session, ShardsAcrossRanks& shards,
                                                     const std::vector<kernels::Kernels>& micro,
                                                     const std::vector<StepPart>& parts) {
  std::unique_ptr<Stage> stage(new Stage(session, shards, parts));
  for (const plan::StageAction& action : stage->actions_) {
    Program*& program = stage->of_actions_.emplace_back(nullptr);
    if (!IsPass(action.kind)) continue;
    const Part part = stage->PartOf(action);
    const auto [found, is_new] = stage->programs_.try_emplace(part);
    if (is_new) {
      TY_ASSIGN_OR_RETURN(found->second, stage->Prepare(part, micro));
    }
    program = &found->second;
  }
  return stage;
}

Stage::Part Stage::PartOf(const plan::StageAction& action) const {
  const plan::StageChunk& chunk = ChunkOf(action);
  Part part = {.ops = chunk.forward, .of = {.flight = action.flight}};
  if (action.kind == Kind::kBackward) part.ops = chunk.backward;
  if (action.kind == Kind::kBoth) part.ops.end = chunk.backward.end;
  // Only what adds to sums, or reads what is kept of each upload, differs by them.
  if (action.kind != Kind::kForward) part.of.partial = partials_[action.micro_batch];
  if (TouchesBatch(session_.plan(), part.ops)) part.of.batch = action.batch;
  return part;
}

absl::StatusOr<Program> Stage::Prepare(const Part& part,
                                       const std::vector<kernels::Kernels>& micro) {
  const plan::Run& run = part.ops;
  const auto cut = [&run](const auto& all) {
    return std::decay_t<decltype(all)>(all.begin() + run.first, all.begin() + run.end);
  };
  if (part.of.flight == 0 && part.of.batch == 0) return Program(cut(micro[part.of.partial]));
  const plan::Plan& plan = session_.plan();
  TY_ASSIGN_OR_RETURN(kernels::Kernels kernels, session_.Prepare(cut(plan.micro), part.of));
  session_.Tune(kernels);
  std::vector<plan::ShardExchange> exchanges;
  for (plan::ShardExchange exchange : plan.micro_exchanges) {
    if (exchange.before_op < run.first || exchange.before_op >= run.end) continue;
    exchange.before_op -= run.first;
    exchanges.push_back(std::move(exchange));
  }
  return Program(shards_.WithExchanges(std::move(kernels), exchanges, part.of));
}

absl::Status Stage::Run(const Around& around) {
  for (size_t i = 0; i < actions_.size(); ++i) {
    const plan::StageAction& action = actions_[i];
    absl::Status passed;
    if (of_actions_[i] != nullptr) {
      passed = Pass(action, *of_actions_[i], around);
    } else {
      Move(action.kind, ChunkOf(action).links, {.flight = action.flight});
    }
    TY_RETURN_IF_ERROR(shards_.status());  // which may be why it did not run
    TY_RETURN_IF_ERROR(passed);
  }
  return absl::OkStatus();
}

absl::Status Stage::Pass(const plan::StageAction& action, Program& program, const Around& around) {
  const int64_t micro_batch = action.micro_batch;
  if (action.kind == Kind::kBackward || action.chunk > 0) {
    around.resume(micro_batch);
  } else {
    TY_RETURN_IF_ERROR(around.load(micro_batch, {.flight = action.flight, .batch = action.batch}));
  }
  if (action.kind == Kind::kForward) return session_.Run(program);
  around.before_sums(micro_batch, ChunkOf(action));
  TY_RETURN_IF_ERROR(session_.Run(program));
  around.after_sums(micro_batch, ChunkOf(action));
  return absl::OkStatus();
}

void Stage::Move(Kind kind, const plan::StageLinks& links, const plan::Instance& of) {
  const plan::ShardHost& host = session_.plan().host;
  switch (kind) {
    case Kind::kReceiveFromBefore:
      return shards_.Receive(host.before(), links.from_before, of);
    case Kind::kSendToAfter:
      return shards_.Send(host.after(), links.to_after, of);
    case Kind::kReceiveFromAfter:
      return shards_.Receive(host.after(), links.from_after, of);
    case Kind::kSendToBefore:
      return shards_.Send(host.before(), links.to_before, of);
    default:
      TY_CHECK(false, "a pass is no move");
  }
}

std::vector<plan::StageAction> Stage::ActionsWith(int64_t micro_batch, bool passes) const {
  std::vector<plan::StageAction> found;
  for (const plan::StageAction& action : actions_) {
    if (action.micro_batch == micro_batch && IsPass(action.kind) == passes) found.push_back(action);
  }
  return found;
}

kernels::Kernels Stage::OneByOne(int64_t micro_batch) {
  kernels::Kernels micro(session_.plan().micro.size());
  for (const plan::StageAction& pass : ActionsWith(micro_batch, /*passes=*/true)) {
    const Part part = PartOf(pass);
    const kernels::Kernels& kernels = programs_.at(part).kernels();
    std::copy(kernels.begin(), kernels.end(), micro.begin() + part.ops.first);
  }
  for (const plan::StageAction& move : ActionsWith(micro_batch, /*passes=*/false)) {
    const plan::StageChunk& chunk = ChunkOf(move);
    const auto made = [this, move] {
      Move(move.kind, ChunkOf(move).links, {.flight = move.flight});
    };
    const auto before = [&](int64_t op) {
      micro[op].launch = [made, launch = std::move(micro[op].launch)](kernels::Stream& stream) {
        made();
        launch(stream);
      };
    };
    const auto after = [&](int64_t op) {
      micro[op].launch = [made, launch = std::move(micro[op].launch)](kernels::Stream& stream) {
        launch(stream);
        made();
      };
    };
    switch (move.kind) {
      case Kind::kReceiveFromBefore:
        before(chunk.forward.first);
        break;
      case Kind::kSendToAfter:
        after(chunk.forward.end - 1);
        break;
      case Kind::kReceiveFromAfter:
        before(chunk.backward.first);
        break;
      default:
        after(chunk.backward.end - 1);
    }
  }
  return micro;
}

std::vector<plan::Instance> Stage::PlacesOneByOne(int64_t micro_batch) const {
  std::vector<plan::Instance> places(session_.plan().micro.size());
  for (const plan::StageAction& pass : ActionsWith(micro_batch, /*passes=*/true)) {
    const Part part = PartOf(pass);
    std::fill(places.begin() + part.ops.first, places.begin() + part.ops.end, part.of);
  }
  return places;
}

plan::Instance Stage::PlaceOf(int64_t micro_batch) const {
  const plan::StageAction first = ActionsWith(micro_batch, /*passes=*/true).front();
  return {.flight = first.flight, .batch = first.batch};
}

}  // namespace trainyard::engine
