#include "server/fleet/provision/provisioner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

// What was asked for so short a time ago is on its way.
constexpr absl::Duration kMoving = absl::Seconds(30);
constexpr int kMostDoublings = 10;
constexpr int kMostInAsk = 500;  // Slurm's arrays have 1,000 tasks, unless it is told otherwise

bool IsLive(const NodeRequest& request) { return request.state != NodeRequestState::kEnded; }

// In `requests`, those that changed in place of what they were.
void Fold(const std::vector<NodeRequest>& changed, std::vector<NodeRequest>& requests) {
  std::map<std::string, const NodeRequest*> by_node;
  for (const NodeRequest& one : changed) by_node[one.node] = &one;
  for (NodeRequest& request : requests) {
    if (const auto one = by_node.find(request.node); one != by_node.end()) request = *one->second;
  }
}

}  // namespace

Provisioner::Provisioner(Stores& stores, Clock& clock, ProvisionerOptions options)
    : stores_(stores), clock_(clock), options_(std::move(options)) {}

void Provisioner::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Provisioner::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

bool Provisioner::WantsCapacity() {
  absl::MutexLock lock(&mu_);
  return !busy_ && !dormant_ && !offered_.has_value() && !stopping_;
}

bool Provisioner::stopping() {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

void Provisioner::Offer(CapacityView view) {
  absl::MutexLock lock(&mu_);
  offered_ = std::move(view);
  changed_.Signal();
}

void Provisioner::Run() {
  std::string complaint;
  while (true) {
    CapacityView view;
    {
      absl::MutexLock lock(&mu_);
      busy_ = false;
      while (!offered_.has_value() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      view = *std::exchange(offered_, std::nullopt);
      busy_ = true;
    }
    const absl::Status status = Turn(view);
    if (!status.ok() && status.ToString() != complaint) {
      spdlog::warn("provision: {}", status.ToString());
    }
    complaint = status.ok() ? "" : status.ToString();
  }
}

void Provisioner::BeginEpoch(int64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  pools_.clear();
  failures_.clear();
  idle_since_.clear();
  swept_ = false;
  sweep_at_ = absl::ZeroDuration();
}

absl::Status Provisioner::Turn(const CapacityView& view) {
  BeginEpoch(view.leader_epoch);
  const bool sweeps = clock_.SinceBoot() >= sweep_at_;
  TY_ASSIGN_OR_RETURN(NodeRequests all, stores_.provision().ListNodeRequests(
                                            sweeps ? WhichRequests::kAll : WhichRequests::kLive));
  if (options_.pools.empty() && all.requests.empty()) {
    absl::MutexLock lock(&mu_);
    dormant_ = true;
    return absl::OkStatus();
  }
  if (engine_ == nullptr) engine_ = options_.make_engine(all.yard_id);
  if (sweeps) {
    const absl::Status swept = Sweep(view, all.requests);
    sweep_at_ = clock_.SinceBoot() + NextSweep(view, all.requests);
    swept_ = swept.ok();
    TY_RETURN_IF_ERROR(swept);
  }
  // An engine that does not answer is asked for nothing until it does.
  if (!swept_ || stopping()) return absl::OkStatus();
  LearnArithmetic(options_.pools, view, all.requests, pools_);
  const CapacityPlan plan = PlanCapacity(options_.pools, pools_, view, all.requests, idle_since_);
  idle_since_ = plan.idle_since;
  TY_RETURN_IF_ERROR(Ask(view, plan, all.requests));
  return Release(plan, all.requests);
}

absl::Status Provisioner::Sweep(const CapacityView& view, std::vector<NodeRequest>& requests) {
  TY_ASSIGN_OR_RETURN(const std::vector<Allocation> allocations, engine_->List());
  const Reconciled found = Reconcile(options_.pools, requests, allocations, NodesIn(view));
  // Even if nothing changed: what is released next is wanted by nobody if no newer leader, who may
  // have asked for it after `requests` were read, exists.
  TY_RETURN_IF_ERROR(Learn(view, found, requests));
  TY_RETURN_IF_ERROR(Learn(view, FindLesser(options_.pools, requests, view), requests));
  if (!found.give_up.empty()) {
    TY_RETURN_IF_ERROR(stores_.provision().ReleaseIdleNodes(epoch_, found.give_up).status());
    stores_.wakeups().Wake("queue");
  }
  if (!found.releases.empty()) TY_RETURN_IF_ERROR(engine_->Release(found.releases));
  ForgetFailures(view, requests);
  TY_RETURN_IF_ERROR(Settle(view, requests));
  return EnsureWanted(view, requests);
}

absl::Status Provisioner::Learn(const CapacityView& view, const Reconciled& found,
                                std::vector<NodeRequest>& requests) {
  TY_RETURN_IF_ERROR(stores_.provision().UpdateNodeRequests(epoch_, found.changed));
  Fold(found.changed, requests);
  for (const auto& [pool, why] : found.failed_pools) Failed(pool, view.now, why);
  return absl::OkStatus();
}

// Of pools of which a node came since.
void Provisioner::ForgetFailures(const CapacityView& view,
                                 const std::vector<NodeRequest>& requests) {
  const std::set<std::string> here = NodesIn(view).here;
  for (const NodeRequest& request : requests) {
    if (request.state != NodeRequestState::kAsked || request.failed ||
        here.count(request.node) == 0) {
      continue;
    }
    const auto failures = failures_.find(request.pool);
    const bool since = failures != failures_.end() && request.create_time > failures->second.last;
    if (since) failures_.erase(failures);
  }
}

// What the engine saw end needs no operator who looks: lost ranks there are gone, and once nothing
// is left of the node, it is forgotten.
absl::Status Provisioner::Settle(const CapacityView& view,
                                 const std::vector<NodeRequest>& requests) {
  std::map<std::string, const CapacityView::Node*> away;
  for (const CapacityView::Node& node : view.nodes) {
    if (node.away) away[node.name] = &node;
  }
  bool any = false;
  for (const NodeRequest& request : requests) {
    if (IsLive(request)) continue;
    const auto node = away.find(request.node);
    if (node == away.end()) continue;
    any = true;
    if (!request.proven_gone || node->second->lost_jobs.empty()) continue;
    const absl::StatusOr<int> confirmed = stores_.fleet().ConfirmEmpty(request.node);
    if (!confirmed.ok()) {
      spdlog::warn("nodes/{}: {}", request.node, confirmed.status().ToString());
    }
    if (confirmed.value_or(0) == 0) continue;
    spdlog::info("nodes/{}: {} lost ranks are gone with it: {}", request.node, *confirmed,
                 request.engine_words);
    for (const std::string& uid : node->second->lost_jobs) stores_.wakeups().Wake("job:" + uid);
    stores_.wakeups().Wake("queue");
    stores_.wakeups().Wake("fleet");
  }
  const bool old = std::any_of(requests.begin(), requests.end(), [&](const NodeRequest& request) {
    return !IsLive(request) && request.change_time < view.now - kEndedRequestsAreKept;
  });
  if (!any && !old) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const int forgotten, stores_.provision().ForgetEndedNodes(epoch_));
  if (forgotten > 0) stores_.wakeups().Wake("queue");
  return absl::OkStatus();
}

// Those of which no answer is known: the sweep has just seen that the engine has none of them.
absl::Status Provisioner::EnsureWanted(const CapacityView& view,
                                       std::vector<NodeRequest>& requests) {
  for (const Pool& pool : options_.pools) {
    if (pools_[pool.name].not_before > view.now) continue;
    for (const auto& [ask, indices] : WantedByAsk(requests, pool.name)) {
      if (pools_[pool.name].not_before > view.now || stopping()) break;
      TY_RETURN_IF_ERROR(EnsureAsk(view, pool, ask, indices, requests));
    }
  }
  return absl::OkStatus();
}

absl::Status Provisioner::EnsureAsk(const CapacityView& view, const Pool& pool,
                                    const std::string& ask, const std::vector<int>& indices,
                                    std::vector<NodeRequest>& requests) {
  // A limit of the engine that refuses all may grant some: the rest is for later.
  const size_t most = std::max<size_t>(
      1, indices.size() >> std::min(failures_[pool.name].in_a_row, kMostDoublings));
  const std::vector<int> some(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(most));
  const absl::StatusOr<std::vector<std::string>> ids = engine_->Ensure(pool, ask, some);
  const absl::Status& ensured = ids.status();
  std::vector<NodeRequest> changed;
  for (const NodeRequest& request : requests) {
    const AskedName name = ParseAskedName(request.node);
    const bool asked = name.ask == ask && std::count(some.begin(), some.end(), name.index) > 0;
    if (!asked || request.state != NodeRequestState::kWanted) continue;
    NodeRequest& one = changed.emplace_back(request);
    one.engine_words = std::string(ensured.message());
    if (!ensured.ok()) continue;
    one.state = NodeRequestState::kAsked;
    one.engine_words = "its engine has taken it";
    const auto place = std::find(some.begin(), some.end(), name.index) - some.begin();
    if (static_cast<size_t>(place) < ids->size()) one.engine_id = (*ids)[place];
  }
  if (!ensured.ok()) Failed(pool.name, view.now, std::string(ensured.message()));
  TY_RETURN_IF_ERROR(stores_.provision().UpdateNodeRequests(epoch_, changed));
  Fold(changed, requests);
  return absl::OkStatus();
}

absl::Status Provisioner::Ask(const CapacityView& view, const CapacityPlan& plan,
                              std::vector<NodeRequest>& requests) {
  if (plan.asks.empty()) return absl::OkStatus();
  std::vector<NodeRequest> made;
  for (const CapacityAsk& wanted : plan.asks) {
    std::string ask;
    for (int i = 0; i < wanted.nodes; ++i) {
      if (i % kMostInAsk == 0) ask = absl::StrCat(wanted.pool, "-", RandomHex(4));
      made.push_back(
          {.node = AskedNodeName(ask, i % kMostInAsk + 1), .pool = wanted.pool, .why = wanted.why});
    }
    spdlog::info("pool {}: asks for {} nodes, for {}", wanted.pool, wanted.nodes, wanted.why);
  }
  TY_RETURN_IF_ERROR(stores_.provision().AddNodeRequests(epoch_, made));
  requests.insert(requests.end(), made.begin(), made.end());
  sweep_at_ = std::min(sweep_at_, clock_.SinceBoot() + options_.sweep_moving);
  for (const CapacityAsk& wanted : plan.asks) {
    const auto pool = std::find_if(options_.pools.begin(), options_.pools.end(),
                                   [&](const Pool& one) { return one.name == wanted.pool; });
    for (const auto& [ask, indices] : WantedByAsk(made, wanted.pool)) {
      // It has just refused one, or the rest is for who comes next.
      if (pools_[wanted.pool].not_before > view.now || stopping()) break;
      TY_RETURN_IF_ERROR(EnsureAsk(view, *pool, ask, indices, requests));
    }
  }
  return absl::OkStatus();
}

absl::Status Provisioner::Release(const CapacityPlan& plan,
                                  const std::vector<NodeRequest>& requests) {
  if (plan.releases.empty()) return absl::OkStatus();
  TY_ASSIGN_OR_RETURN(const std::vector<std::string> released,
                      stores_.provision().ReleaseIdleNodes(epoch_, plan.releases));
  if (released.empty()) return absl::OkStatus();
  stores_.wakeups().Wake("queue");
  sweep_at_ = std::min(sweep_at_, clock_.SinceBoot() + options_.sweep_moving);
  spdlog::info("gives back nodes that nobody has needed for long: {}",
               absl::StrJoin(released, ", "));
  const std::set<std::string> given(released.begin(), released.end());
  std::vector<std::string> ids;
  for (const NodeRequest& request : requests) {
    if (given.count(request.node) > 0 && !request.engine_id.empty()) {
      ids.push_back(request.engine_id);
    }
  }
  return ids.empty() ? absl::OkStatus() : engine_->Release(ids);
}

void Provisioner::Failed(const std::string& pool, absl::Time now, const std::string& why) {
  failures_[pool].last = now;
  const int before = failures_[pool].in_a_row++;
  const absl::Duration pause = std::min(
      options_.longest_pause, options_.first_pause * (1 << std::min(before, kMostDoublings)));
  pools_[pool].not_before = now + pause;
  spdlog::warn("pool {}: {}; asked again in {}", pool, why, absl::FormatDuration(pause));
}

absl::Duration Provisioner::NextSweep(const CapacityView& view,
                                      const std::vector<NodeRequest>& requests) {
  const std::set<std::string> registered = NodesIn(view).registered;
  absl::Duration next = options_.sweep_idle;
  for (const NodeRequest& request : requests) {
    const bool settled = request.state == NodeRequestState::kAsked
                             ? registered.count(request.node) > 0
                             : !IsLive(request) && registered.count(request.node) == 0;
    const bool moving = !settled && view.now - request.change_time < kMoving;
    if (moving) return options_.sweep_moving;
    if (!settled || IsLive(request)) next = options_.sweep;
  }
  return next;
}

}  // namespace trainyard
