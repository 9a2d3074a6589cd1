#include "storage/records/node_key.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "storage/base/field_error.h"
#include "storage/base/status.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

constexpr int kMostJoins = 100'000;
constexpr absl::Duration kLongestValid = absl::Hours(24 * 366);
constexpr size_t kLongestPool = 63;

std::string When(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

bool IsPool(const std::string& pool) {
  for (const char c : pool) {
    const auto letter = static_cast<unsigned char>(c);
    if (!absl::ascii_islower(letter) && !absl::ascii_isdigit(letter) && c != '-') return false;
  }
  return pool.size() <= kLongestPool;
}

}  // namespace

absl::Status CheckJoinTokenHolds(const std::optional<JoinToken>& token, absl::Time now) {
  if (!token.has_value()) {
    return absl::UnauthenticatedError(
        "the join token is not known here: it ended long ago, or is of another yard");
  }
  if (token->revoke_time != absl::InfiniteFuture()) {
    return absl::UnauthenticatedError(
        absl::StrCat("join token ", token->id, " was revoked at ", When(token->revoke_time)));
  }
  if (now >= token->expire_time) {
    return absl::FailedPreconditionError(
        absl::StrCat("join token ", token->id, " ended at ", When(token->expire_time),
                     "; make another one with `trainyard admin join-token`"));
  }
  return absl::OkStatus();
}

absl::Status CheckJoinToken(const JoinToken& token, absl::Duration valid_for) {
  if (!IsPool(token.pool)) {
    return FieldError("pool", absl::StrCat("'", token.pool.substr(0, 100), "'"),
                      "at most 63 lower-case letters, digits and '-'");
  }
  if (token.most_joins < 1 || token.most_joins > kMostJoins) {
    return FieldError("most_joins", token.most_joins, absl::StrCat("1 to ", kMostJoins));
  }
  if (valid_for < absl::Seconds(1) || valid_for > kLongestValid) {
    return FieldError("valid_for", absl::FormatDuration(valid_for), "a second to 366 days");
  }
  return CheckText("creator", token.creator);
}

absl::StatusOr<Joined> DecideJoin(const JoinWish& wish, const JoinFacts& facts, absl::Time now) {
  TY_RETURN_IF_ERROR(CheckJoinTokenHolds(facts.token, now));
  const JoinToken& token = *facts.token;
  if (facts.known.has_value()) {
    const NodeKey& known = *facts.known;
    TY_RETURN_IF_ERROR(CheckNotRevoked(known));
    if (known.node != wish.node || known.node_uid != wish.node_uid) {
      return absl::FailedPreconditionError(
          absl::StrCat("this key has joined as nodes/", known.node,
                       known.node == wish.node ? " of another state directory" : "", "; nodes/",
                       wish.node, " needs a state directory and a key of its own"));
    }
    if (known.token_id == token.id) return Joined{.key = known};
  }
  if (facts.request.has_value() && facts.request->pool != token.pool) {
    return absl::FailedPreconditionError(absl::StrCat(
        "nodes/", wish.node, " was asked of pool ", facts.request->pool, ", and join token ",
        token.id, " is for ", token.pool.empty() ? "none" : absl::StrCat("pool ", token.pool)));
  }
  if (facts.request.has_value() && facts.request->state == NodeRequestState::kEnded) {
    return absl::FailedPreconditionError(
        absl::StrCat("nodes/", wish.node, " was asked of pool ", token.pool, " and is over"));
  }
  if (facts.holder.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("nodes/", wish.node, " joined with another key at ",
                     When(facts.holder->join_time), "; if that one is gone for good, revoke it ",
                     "with `trainyard node revoke ", wish.node, "`, or choose another --node"));
  }
  if (!facts.registered.value_or("").empty() && *facts.registered != wish.node_uid) {
    return absl::FailedPreconditionError(
        absl::StrCat("nodes/", wish.node,
                     " is another agent, with another state directory, and its "
                     "lease holds; choose another --node"));
  }
  if (token.joins >= token.most_joins) {
    return absl::FailedPreconditionError(
        absl::StrCat("join token ", token.id, " was used by as many nodes as it is for (",
                     token.most_joins, "); make another one with `trainyard admin join-token`"));
  }
  return Joined{.key = {.fingerprint = wish.fingerprint,
                        .node = wish.node,
                        .node_uid = wish.node_uid,
                        .pool = token.pool,
                        .token_id = token.id,
                        .join_time = now},
                .counts = true};
}

absl::Status NeverJoined(const std::string& node) {
  return absl::NotFoundError(
      absl::StrCat("nodes/", node, " has no key to revoke: it has not joined with a join token"));
}

absl::Status CheckNotRevoked(const NodeKey& key) {
  if (key.revoke_time == absl::InfiniteFuture()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the key of nodes/", key.node, " was revoked by ", key.revoked_by, " at ",
                   When(key.revoke_time), "; to let the machine in again, stop its agent, remove ",
                   "node.key from its state directory and give it a new join token"));
}

absl::Status CheckNameHasNoKey(const std::optional<NodeKey>& holder) {
  if (!holder.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "node: nodes/", holder->node,
      " has joined, and its agent shows its certificate at a server's ",
      "port for agents (--listen-agents); choose another --node, or revoke its key first"));
}

}  // namespace trainyard
