#include "executor/engine/hosted_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/engine/fault.h"
#include "executor/plan/passes/optimizer_step.h"
#include "storage/base/status.h"

namespace trainyard::engine {

HostedState::HostedState(Session& session, const Groups& groups, ShardedState* shares)
    : session_(session),
      shares_(shares),
      exchange_(groups.shards(), [this](const StateRequest& request, absl::Span<float> to) {
        return ReadOwn(request, to);
      }) {}

absl::Status HostedState::Read(int64_t what, size_t position, int64_t first, absl::Span<float> to) {
  const plan::Plan& plan = session_.plan();
  const plan::Tensor& parameter = plan.tensors[plan.of_group[position]];
  // What every rank of the group has, this one has, too.
  const int64_t host = plan.host.hosts(parameter) ? plan.host.rank : plan.host.HostOf(parameter);
  const auto owner = static_cast<int>(host);
  return exchange_.Read(
      owner, {.kind = what, .place = static_cast<int64_t>(position), .first = first}, to);
}

absl::Status HostedState::ReadOwn(const StateRequest& request, absl::Span<float> to) {
  const plan::Plan& plan = session_.plan();
  const auto refuse = [&] {
    return WithFault(
        Fault::kGang,
        absl::InternalError(absl::StrCat(
            "rank 0 asks for ", request.n, " elements from ", request.first, " on of state ",
            request.kind, " of parameter ", request.place, ", which this rank does not have")));
  };
  if (request.place < 0 || request.place >= static_cast<int64_t>(plan.of_group.size())) {
    return refuse();
  }
  const auto found =
      std::find(plan.parameters.begin(), plan.parameters.end(), plan.of_group[request.place]);
  if (found == plan.parameters.end()) return refuse();
  const auto position = static_cast<size_t>(found - plan.parameters.begin());
  const int64_t elements = plan.tensors[*found].elements();
  if (request.first < 0 || request.n > elements || request.first > elements - request.n) {
    return refuse();
  }
  if (shares_ != nullptr && request.kind >= 0) {
    const bool known = request.kind < static_cast<int64_t>(plan.optimizer_state.size());
    if (!known || position >= plan.gradients.size()) return refuse();
    return shares_->Read(request.kind, plan::RunLength(plan, 0, position) + request.first, to);
  }
  const plan::TensorId id = Snapshot::TensorOf(plan, request.kind, position);
  if (id == plan::kNone) return refuse();
  return session_.ReadNow(id, to.data(), to.size() * sizeof(float), request.first * sizeof(float));
}

}  // namespace trainyard::engine
