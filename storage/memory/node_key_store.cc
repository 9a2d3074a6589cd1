#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"

namespace trainyard {

constexpr absl::Duration kTokensKept = absl::Hours(24 * 7);

absl::StatusOr<JoinToken> MemoryStores::AddJoinToken(const JoinToken& token,
                                                     absl::Duration valid_for) {
  TY_RETURN_IF_ERROR(Available());
  TY_RETURN_IF_ERROR(CheckJoinToken(token, valid_for));
  absl::MutexLock lock(&mu_);
  JoinToken made = token;
  made.create_time = Now();
  made.expire_time = made.create_time + valid_for;
  std::erase_if(join_tokens_, [&](const JoinToken& one) {
    return one.expire_time < made.create_time - kTokensKept;
  });
  join_tokens_.push_back(made);
  return made;
}

absl::StatusOr<std::vector<JoinToken>> MemoryStores::ListJoinTokens() {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  return std::vector<JoinToken>(join_tokens_.rbegin(), join_tokens_.rend());
}

absl::StatusOr<JoinToken> MemoryStores::RevokeJoinToken(const std::string& id) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  for (JoinToken& token : join_tokens_) {
    if (token.id != id) continue;
    token.revoke_time = std::min(token.revoke_time, Now());
    return token;
  }
  return absl::NotFoundError(absl::StrCat("no join token ", id));
}

NodeKey* MemoryStores::KeyOfName(const std::string& node) {
  for (auto& [fingerprint, key] : node_keys_) {
    if (key.node == node && key.revoke_time == absl::InfiniteFuture()) return &key;
  }
  return nullptr;
}

absl::StatusOr<NodeKey> MemoryStores::Join(const JoinWish& wish) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  JoinFacts facts;
  JoinToken* shown = nullptr;
  for (JoinToken& token : join_tokens_) {
    if (token.sha256 == wish.token_sha256) shown = &token;
  }
  if (shown != nullptr) facts.token = *shown;
  const auto known = node_keys_.find(wish.fingerprint);
  if (known != node_keys_.end()) facts.known = known->second;
  const NodeKey* holder = KeyOfName(wish.node);
  if (holder != nullptr && holder->fingerprint != wish.fingerprint) facts.holder = *holder;
  const auto registered = nodes_.find(wish.node);
  if (registered != nodes_.end() && registered->second.reachable) {
    facts.registered = registered->second.uid;
  }
  if (const auto request = node_requests_.find(wish.node); request != node_requests_.end()) {
    facts.request = request->second;
  }
  TY_ASSIGN_OR_RETURN(const Joined joined, DecideJoin(wish, facts, Now()));
  if (joined.counts) {
    shown->joins += 1;
    node_keys_[wish.fingerprint] = joined.key;
  }
  return joined.key;
}

absl::StatusOr<NodeKey> MemoryStores::FindNodeKey(const std::string& fingerprint) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  const auto found = node_keys_.find(fingerprint);
  if (found == node_keys_.end()) return absl::NotFoundError("no node has joined with this key");
  return found->second;
}

absl::StatusOr<NodeKey> MemoryStores::RevokeNode(const std::string& node, const std::string& by) {
  TY_RETURN_IF_ERROR(Available());
  absl::MutexLock lock(&mu_);
  NodeKey* key = KeyOfName(node);
  if (key == nullptr) {
    const NodeKey* before = nullptr;
    for (const auto& [fingerprint, revoked] : node_keys_) {
      const bool later = before == nullptr || revoked.revoke_time > before->revoke_time;
      if (revoked.node == node && later) before = &revoked;
    }
    if (before != nullptr) return *before;
    return NeverJoined(node);
  }
  key->revoke_time = Now();
  key->revoked_by = by;
  const auto found = nodes_.find(node);
  if (found != nodes_.end()) {
    found->second.incarnation += kRevokedSession;
    node_changed_[node] = ++writes_;
  }
  return *key;
}

}  // namespace trainyard
