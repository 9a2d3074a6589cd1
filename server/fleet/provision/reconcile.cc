#include "server/fleet/provision/reconcile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/printable.h"

namespace trainyard {
namespace {

// A node that ends by itself so soon after it began is a failure of its pool.
constexpr absl::Duration kTooShort = absl::Seconds(20);
constexpr absl::Duration kFailuresAreTold = absl::Minutes(15);

using AllocationsByNode = std::map<std::string, std::vector<const Allocation*>>;

class Reconciler {
 public:
  Reconciler(const std::vector<Pool>& pools, const KnownNodes& known) : known_(known) {
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
    } else if (request.state != NodeRequestState::kWanted && known_.here.count(seen.node) == 0) {
      SeeNothing(seen);
    }
    if (seen.state != request.state || seen.engine_id != request.engine_id ||
        seen.engine_words != request.engine_words) {
      out_.changed.push_back(std::move(seen));
    }
  }

  void Release(const Allocation& allocation) { out_.releases.push_back(allocation.id); }

  Reconciled Take() { return std::move(out_); }

 private:
  bool Came(const NodeRequest& request) const { return known_.registered.count(request.node) > 0; }

  void Fail(NodeRequest& seen, const std::string& why) {
    seen.failed = true;
    seen.engine_words = why;
    out_.failed_pools[seen.pool] = absl::StrCat(seen.node, ": ", why);
  }

  void SeeLive(NodeRequest& seen, const Allocation& live) {
    if (seen.state == NodeRequestState::kWanted) seen.state = NodeRequestState::kAsked;
    seen.engine_id = live.id;
    if (!seen.failed) seen.engine_words = live.words;
    const auto pool = pools_.find(seen.pool);
    const absl::Duration limit =
        pool == pools_.end() ? absl::InfiniteDuration() : pool->second->boot_timeout;
    const bool late = live.state == Allocation::State::kRuns && live.ran > limit;
    if (seen.state == NodeRequestState::kAsked && !Came(seen) && (live.stuck || late)) {
      if (!seen.failed && live.stuck) Fail(seen, absl::StrCat(live.words, ", and stays so"));
      if (!seen.failed) {
        Fail(seen, absl::StrCat(live.words, " for ", absl::FormatDuration(live.ran),
                                ", and its agent did not come (boot_timeout)"));
      }
      out_.give_up.push_back(seen.node);
    }
    if (seen.state == NodeRequestState::kReleasing) Release(live);
  }

  void SeeOver(NodeRequest& seen, const Allocation& over, bool proven_gone) {
    const bool given_up = seen.state == NodeRequestState::kReleasing;
    seen.state = NodeRequestState::kEnded;
    seen.engine_id = over.id;
    seen.proven_gone = proven_gone;
    if (!seen.failed) seen.engine_words = over.words;
    if (given_up) return;
    if (!Came(seen)) {
      Fail(seen, absl::StrCat(over.words, " before its agent came"));
    } else if (over.ran < kTooShort) {
      out_.failed_pools[seen.pool] =
          absl::StrCat(seen.node, ": ", over.words, " after ", absl::FormatDuration(over.ran));
    }
  }

  void SeeNothing(NodeRequest& seen) {
    const bool asked = seen.state == NodeRequestState::kAsked;
    seen.state = NodeRequestState::kEnded;
    // Else one that the engine takes and never shows would be asked for again and again.
    if (asked && !Came(seen)) {
      Fail(seen, "its engine has taken it and does not show it");
      if (!seen.engine_id.empty()) out_.releases.push_back(seen.engine_id);
    } else {
      absl::StrAppend(&seen.engine_words, seen.engine_words.empty() ? "" : "; ",
                      "its engine has forgotten it");
    }
  }

  const KnownNodes& known_;
  std::map<std::string, const Pool*> pools_;
  Reconciled out_;
};

}  // namespace

KnownNodes NodesIn(const CapacityView& view) {
  KnownNodes known;
  for (const CapacityView::Node& node : view.nodes) {
    known.registered.insert(node.name);
    if (!node.away) known.here.insert(node.name);
  }
  return known;
}

Reconciled Reconcile(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                     const std::vector<Allocation>& allocations, const KnownNodes& known) {
  AllocationsByNode by_node;
  for (const Allocation& one : allocations) by_node[one.node].push_back(&one);
  std::map<std::string, const NodeRequest*> live;
  for (const NodeRequest& request : requests) {
    if (request.state != NodeRequestState::kEnded) live[request.node] = &request;
  }
  Reconciler reconciler(pools, known);
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

Reconciled FindLesser(const std::vector<Pool>& pools, const std::vector<NodeRequest>& requests,
                      const CapacityView& view) {
  std::map<std::string, const CapacityView::Node*> nodes;
  for (const CapacityView::Node& node : view.nodes) nodes[node.name] = &node;
  Reconciled found;
  for (const NodeRequest& request : requests) {
    const auto node = nodes.find(request.node);
    const auto pool = std::find_if(pools.begin(), pools.end(),
                                   [&](const Pool& one) { return one.name == request.pool; });
    if (request.state != NodeRequestState::kAsked || request.failed || node == nodes.end() ||
        pool == pools.end()) {
      continue;
    }
    const std::vector<CapacityView::Slot>& slots = node->second->slots;
    int64_t least = 0;
    const auto serve = std::count_if(slots.begin(), slots.end(), [&](const auto& slot) {
      if (slot.device == pool->device)
        least = least == 0 ? slot.bytes : std::min(least, slot.bytes);
      return slot.device == pool->device && slot.bytes >= pool->bytes;
    });
    if (serve >= pool->slots) continue;
    NodeRequest& changed = found.changed.emplace_back(request);
    changed.failed = true;
    changed.engine_words =
        absl::StrCat("it brings ", slots.size(), " slots", least == 0 ? "" : " of ",
                     least == 0 ? "" : DescribeBytes(least), ", and --pools says ", pool->slots,
                     " ", pool->device, " of ", DescribeBytes(pool->bytes));
    found.failed_pools[request.pool] = absl::StrCat(request.node, ": ", changed.engine_words);
  }
  return found;
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
        absl::StrCat("the newest node of pool ", pool, ", ", request->node, ", is not of use (",
                     absl::FormatTime(absl::RFC3339_sec, request->change_time, absl::UTCTimeZone()),
                     "): ", request->engine_words));
  }
  return sentences;
}

}  // namespace trainyard
