#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

absl::Status MemoryStores::CheckLeads(int64_t leader_epoch) {
  if (leader_.epoch == leader_epoch) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("leader epoch ", leader_epoch, " is over: the newest is ", leader_.epoch));
}

bool MemoryStores::HoldsRanks(const std::string& node, bool or_lost) {
  for (const auto& [uid, entry] : by_uid_) {
    for (const auto& [number, attempt] : entry.attempts) {
      for (const RankRecord& rank : attempt.ranks) {
        const bool lost = rank.state == RankState::kLost;
        if (rank.node != node || rank.state == RankState::kGone) continue;
        if (!lost || or_lost) return true;
      }
    }
  }
  return false;
}

absl::StatusOr<NodeRequests> MemoryStores::ListNodeRequests(WhichRequests which) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  NodeRequests all{.yard_id = "memory"};
  for (const auto& [node, request] : node_requests_) {
    if (which == WhichRequests::kLive && request.state == NodeRequestState::kEnded) continue;
    all.requests.push_back(request);
  }
  return all;
}

absl::Status MemoryStores::AddNodeRequests(int64_t leader_epoch,
                                           const std::vector<NodeRequest>& requests) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_RETURN_IF_ERROR(CheckLeads(leader_epoch));
  for (const NodeRequest& request : requests) {
    NodeRequest made{.node = request.node, .pool = request.pool, .why = request.why};
    made.create_time = made.change_time = Now();
    node_requests_.emplace(made.node, made);
  }
  return absl::OkStatus();
}

absl::Status MemoryStores::UpdateNodeRequests(int64_t leader_epoch,
                                              const std::vector<NodeRequest>& requests) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_RETURN_IF_ERROR(CheckLeads(leader_epoch));
  for (const NodeRequest& request : requests) {
    const auto found = node_requests_.find(request.node);
    if (found == node_requests_.end()) continue;
    NodeRequest& kept = found->second;
    if (kept.state == NodeRequestState::kEnded) continue;
    kept.state = request.state;
    kept.engine_id = request.engine_id;
    kept.engine_words = request.engine_words;
    kept.failed = request.failed;
    kept.proven_gone = request.proven_gone;
    kept.change_time = Now();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> MemoryStores::ReleaseIdleNodes(
    int64_t leader_epoch, const std::vector<std::string>& nodes) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_RETURN_IF_ERROR(CheckLeads(leader_epoch));
  std::vector<std::string> released;
  for (const std::string& node : nodes) {
    const auto found = node_requests_.find(node);
    if (found == node_requests_.end() || HoldsRanks(node, false)) continue;
    NodeRequest& request = found->second;
    if (request.state != NodeRequestState::kWanted && request.state != NodeRequestState::kAsked) {
      continue;
    }
    request.state = NodeRequestState::kReleasing;
    request.change_time = Now();
    released.push_back(node);
    const auto registered = nodes_.find(node);
    if (registered == nodes_.end()) continue;
    registered->second.draining = true;
    node_changed_[node] = ++writes_;
  }
  return released;
}

absl::StatusOr<int> MemoryStores::ForgetEndedNodes(int64_t leader_epoch) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  TY_RETURN_IF_ERROR(CheckLeads(leader_epoch));
  int gone = 0;
  for (auto it = node_requests_.begin(); it != node_requests_.end();) {
    const NodeRequest& request = it->second;
    const bool ended = request.state == NodeRequestState::kEnded;
    const auto node = nodes_.find(request.node);
    if (ended && node != nodes_.end() && !node->second.reachable &&
        !HoldsRanks(request.node, true)) {
      std::erase_if(node_keys_, [&](const auto& key) { return key.second.node == request.node; });
      nodes_.erase(node);
      node_changed_.erase(request.node);
      ++writes_;
      ++gone;
    }
    // With keys of those whose agents joined and never registered.
    const bool old = ended && request.change_time < Now() - kEndedRequestsAreKept &&
                     nodes_.count(request.node) == 0;
    if (old)
      std::erase_if(node_keys_, [&](const auto& key) { return key.second.node == it->first; });
    it = old ? node_requests_.erase(it) : std::next(it);
  }
  return gone;
}

}  // namespace trainyard
