#include "executor/engine/stage.h"

#include <utility>

#include "storage/base/status.h"

namespace trainyard::engine {

using Kind = plan::StageAction::Kind;

Stage::Stage(Session& session, ShardsAcrossRanks& shards, const std::vector<StepPart>& parts)
    : session_(session),
      shards_(shards),
      actions_(plan::ActionsOf(session.plan().host.stages, session.plan().host.stage(),
                               static_cast<int64_t>(parts.size()))) {
  for (const StepPart& part : parts) partials_.push_back(part.partial);
  for (const plan::StageAction& action : actions_) {
    TY_CHECK(action.flight < session.plan().in_flight, action.flight, " of ",
             session.plan().in_flight, " micro-batches in flight");
  }
}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(Session& session, ShardsAcrossRanks& shards,
                                                     const std::vector<kernels::Kernels>& micro,
                                                     const std::vector<StepPart>& parts) {
  std::unique_ptr<Stage> stage(new Stage(session, shards, parts));
  const plan::Plan& plan = session.plan();
  const bool last = plan.backward_from == static_cast<int64_t>(plan.micro.size());
  stage->with_sums_.resize(micro.size());
  for (int64_t flight = 0; flight < plan.in_flight; ++flight) {
    for (size_t partial = 0; partial < micro.size(); ++partial) {
      kernels::Kernels all = micro[partial];
      if (flight > 0) {
        TY_ASSIGN_OR_RETURN(all,
                            session.Prepare(plan.micro, static_cast<int64_t>(partial), flight));
        session.Tune(all);
        all = shards.WithExchanges(std::move(all), plan.micro_exchanges,
                                   static_cast<int64_t>(partial), flight);
      }
      const auto cut = last ? all.begin() : all.begin() + plan.backward_from;
      if (partial == 0 && !last) {
        stage->forward_.emplace_back(kernels::Kernels(all.begin(), cut));
      }
      stage->with_sums_[partial].emplace_back(kernels::Kernels(cut, all.end()));
    }
  }
  return stage;
}

absl::Status Stage::Run(const Around& around) {
  for (const plan::StageAction& action : actions_) {
    absl::Status passed;
    switch (action.kind) {
      case Kind::kForward:
      case Kind::kBackward:
      case Kind::kBoth:
        passed = Pass(action, around);
        break;
      default:
        Move(action.kind, action.flight);
    }
    TY_RETURN_IF_ERROR(shards_.status());  // which may be why it did not run
    TY_RETURN_IF_ERROR(passed);
  }
  return absl::OkStatus();
}

absl::Status Stage::Pass(const plan::StageAction& action, const Around& around) {
  const int64_t micro_batch = action.micro_batch;
  if (action.kind == Kind::kBackward) {
    around.resume(micro_batch);
  } else {
    TY_RETURN_IF_ERROR(around.load(micro_batch, action.flight));
  }
  if (action.kind == Kind::kForward) return session_.Run(forward_[action.flight]);
  around.before_sums(micro_batch);
  TY_RETURN_IF_ERROR(session_.Run(with_sums_[partials_[micro_batch]][action.flight]));
  around.after_sums(micro_batch);
  return absl::OkStatus();
}

void Stage::Move(Kind kind, int64_t flight) {
  const plan::Plan& plan = session_.plan();
  const auto apart = static_cast<int>(plan.host.in_stage());
  switch (kind) {
    case Kind::kReceiveFromBefore:
      return shards_.Receive(-apart, plan.links.from_before, flight);
    case Kind::kSendToAfter:
      return shards_.Send(apart, plan.links.to_after, flight);
    case Kind::kReceiveFromAfter:
      return shards_.Receive(apart, plan.links.from_after, flight);
    case Kind::kSendToBefore:
      return shards_.Send(-apart, plan.links.to_before, flight);
    default:
      TY_CHECK(false, "a pass is no move");
  }
}

kernels::Kernels Stage::OneByOne(kernels::Kernels micro) {
  const plan::Plan& plan = session_.plan();
  const auto before = [&](int64_t op, Kind kind) {
    micro[op].launch = [this, kind, launch = std::move(micro[op].launch)](kernels::Stream& stream) {
      Move(kind, 0);
      launch(stream);
    };
  };
  const auto after = [&](int64_t op, Kind kind) {
    micro[op].launch = [this, kind, launch = std::move(micro[op].launch)](kernels::Stream& stream) {
      launch(stream);
      Move(kind, 0);
    };
  };
  if (plan.links.from_before != plan::kNone) {
    before(0, Kind::kReceiveFromBefore);
    after(static_cast<int64_t>(micro.size()) - 1, Kind::kSendToBefore);
  }
  if (plan.links.to_after != plan::kNone) {
    after(plan.backward_from - 1, Kind::kSendToAfter);
    before(plan.backward_from, Kind::kReceiveFromAfter);
  }
  return micro;
}

}  // namespace trainyard::engine
