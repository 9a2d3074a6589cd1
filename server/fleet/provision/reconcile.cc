#include "server/fleet/provision/reconcile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr absl::Duration kFailuresAreTold = absl::Minutes(15);

using AllocationsByNode = std::map<std::string, std::vector<const Allocation*>>;

class Reconciler {
 public:
  Reconciler(const std::vector<Pool>& pools, const std::set<std::string>& registered)
      : registered_(registered) {
    for (const Pool& pool : pools) pools_[pool.name] = &pool;
  }

  // `those`: what the engine has under its name, at most one of which is left live.
  void See(const NodeRequest& request, const std::vector<const Allocation*>& those) {
    NodeRequest seen = request;
    const Allocation* live = nullptr;
    bool all_proven = !those.empty();
    for (const Allocation* one : those) {
      if (one->state != Allocation::State::kOver) {
        live = one;
      } else {
        all_proven = all_proven && one->proven_gone;
      }
    }
    if (live != nullptr) {
      SeeLive(seen, *live);
    } else if (!those.empty()) {
      SeeOver(seen, *those.back(), all_proven);
    } else if (request.state != NodeRequestState::kWanted) {
      seen.state = NodeRequestState::kEnded;
      absl::StrAppend(&seen.engine_words, seen.engine_words.empty() ? "" : "; ",
                      "the engine knows it no more");
    }
    if (seen.state != request.state || seen.engine_id != request.engine_id ||
        seen.engine_words != request.engine_words) {
      out_.changed.push_back(std::move(seen));
    }
  }

  void Release(const Allocation& allocation) { out_.releases.push_back(allocation.id); }

  Reconciled Take() { return std::move(out_); }

 private:
  void SeeLive(NodeRequest& seen, const Allocation& live) {
    if (seen.state == NodeRequestState::kWanted) seen.state = NodeRequestState::kAsked;
    seen.engine_id = live.id;
    seen.engine_words = live.words;
    const auto pool = pools_.find(seen.pool);
    const absl::Duration limit =
        pool == pools_.end() ? absl::InfiniteDuration() : pool->second->boot_timeout;
    if (seen.state == NodeRequestState::kAsked && live.state == Allocation::State::kRuns &&
        live.ran > limit && registered_.count(seen.node) == 0) {
      seen.state = NodeRequestState::kReleasing;
      seen.failed = true;
      out_.failed_pools[seen.pool] =
          absl::StrCat(seen.node, " ran for ", absl::FormatDuration(live.ran),
                       " and its agent did not come (boot_timeout)");
    }
    if (seen.state == NodeRequestState::kReleasing) Release(live);
  }

  void SeeOver(NodeRequest& seen, const Allocation& over, bool proven_gone) {
    if (seen.state != NodeRequestState::kReleasing && registered_.count(seen.node) == 0) {
      seen.failed = true;
      out_.failed_pools[seen.pool] =
          absl::StrCat(seen.node, ": ", over.words, " before its agent came");
    }
    seen.state = NodeRequestState::kEnded;
    seen.engine_id = over.id;
    seen.engine_words = over.words;
    seen.proven_gone = proven_gone;
  }

  const std::set<std::string>& registered_;
  std::map<std::string, const Pool*> pools_;
  Reconciled out_;
};

}  // namespace

Reconciled Reconcile(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                     const std::vector<Allocation>& allocations,
                     const std::set<std::string>& registered) {
  AllocationsByNode by_node;
  for (const Allocation& one : allocations) by_node[one.node].push_back(&one);
  std::map<std::string, const NodeRequest*> live;
  for (const NodeRequest& request : requests) {
    if (request.state != NodeRequestState::kEnded) live[request.node] = &request;
  }
  Reconciler reconciler(pools, registered);
  for (auto& [node, those] : by_node) {
    // The first that the engine was asked for stays.
    bool kept = live.count(node) == 0;
    std::vector<const Allocation*> rest;
    for (const Allocation* one : those) {
      if (one->state != Allocation::State::kOver && std::exchange(kept, true)) {
        reconciler.Release(*one);
      } else {
        rest.push_back(one);
      }
    }
    those = std::move(rest);
  }
  for (const auto& [node, request] : live) reconciler.See(*request, by_node[node]);
  return reconciler.Take();
}

std::map<std::string, std::vector<int>> WantedByAsk(const std::vector<NodeRequest>& requests,
                                                    const std::string& pool) {
  std::map<std::string, std::vector<int>> wanted;
  for (const NodeRequest& request : requests) {
    if (request.pool != pool || request.state != NodeRequestState::kWanted) continue;
    const AskedName name = ParseAskedName(request.node);
    wanted[name.ask].push_back(name.index);
  }
  return wanted;
}

std::vector<std::string> DescribeRequests(const std::vector<NodeRequest>& requests,
                                          const std::set<std::string>& registered, absl::Time now) {
  std::map<std::pair<std::string, std::string>, int> counts;
  std::map<std::string, const NodeRequest*> last;  // by pool: that came, or failed
  for (const NodeRequest& request : requests) {
    if (request.failed || registered.count(request.node) > 0) {
      const NodeRequest*& newest = last[request.pool];
      if (newest == nullptr || newest->change_time < request.change_time) newest = &request;
    }
    if (request.state != NodeRequestState::kWanted && request.state != NodeRequestState::kAsked) {
      continue;
    }
    if (registered.count(request.node) > 0) continue;
    ++counts[{request.pool, request.engine_words}];
  }
  std::vector<std::string> sentences;
  for (const auto& [what, count] : counts) {
    const auto& [pool, words] = what;
    sentences.push_back(absl::StrCat(count, count == 1 ? " node is" : " nodes are",
                                     " asked of pool ", pool, ": ",
                                     words.empty() ? "its engine has not answered yet" : words));
  }
  for (const auto& [pool, request] : last) {
    if (!request->failed || request->change_time < now - kFailuresAreTold) continue;
    sentences.push_back(
        absl::StrCat("the newest node of pool ", pool, ", ", request->node, ", did not come up (",
                     absl::FormatTime(absl::RFC3339_sec, request->change_time, absl::UTCTimeZone()),
                     "): ", request->engine_words));
  }
  return sentences;
}

}  // namespace trainyard
