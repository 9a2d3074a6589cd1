#pragma once

// How machines come to be nodes of a yard: tokens that let them in, and the keys by which they are
// known from then on.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/records/node_request.h"

namespace trainyard {

// The label of a node that says to which pool it belongs.
inline constexpr char kPoolLabel[] = "pool";

// A token with which machines may join. Of the token itself only the digest is kept.
struct JoinToken {
  std::string id;      // 16 hex digits by which people name it; no secret
  std::string sha256;  // of the token, in hex
  std::string pool;    // that the nodes belong to; empty: none
  std::string creator;
  int most_joins = 1;
  int joins = 0;  // so far; one for each key
  absl::Time create_time;
  absl::Time expire_time;
  absl::Time revoke_time = absl::InfiniteFuture();  // infinite: it was not
};

// The key of a node. Whoever has its private half speaks for the node, until it is revoked.
struct NodeKey {
  std::string fingerprint;  // CertificateFacts::key_fingerprint
  std::string node;         // the one name under which it may register
  std::string node_uid;     // and the one uid
  std::string pool;
  std::string token_id;  // with which it joined, the last time
  absl::Time join_time;
  absl::Time revoke_time = absl::InfiniteFuture();  // infinite: it was not
  std::string revoked_by;
};

// kInvalidArgument names what `trainyard admin join-token` cannot make.
absl::Status CheckJoinToken(const JoinToken& token, absl::Duration valid_for);

// What a machine asks for that wants to join.
struct JoinWish {
  std::string token_sha256;
  std::string fingerprint;  // of its key
  std::string node;
  std::string node_uid;
};

// What the store knows about a wish.
struct JoinFacts {
  std::optional<JoinToken> token;         // with this digest
  std::optional<NodeKey> known;           // the key itself, if it joined before
  std::optional<NodeKey> holder;          // another key that is not revoked and has this name
  std::optional<std::string> registered;  // uid of the agent that is registered under it right now
  std::optional<NodeRequest> request;     // by which an engine was asked for a node of this name
};

struct Joined {
  NodeKey key;
  bool counts = false;  // it is one more join of the token
};

// Whether anybody may join with the token.
//   kUnauthenticated     there is none, or it was revoked
//   kFailedPrecondition  it is over
absl::Status CheckJoinTokenHolds(const std::optional<JoinToken>& token, absl::Time now);

// Who has joined once may ask again with the same token, and gets the same answer. What
// CheckJoinTokenHolds says, and:
//   kFailedPrecondition  the token is used up, the key is another node's, or the name another's; a
//                        node of this name was asked of another pool, or is wanted no more
//   kPermissionDenied    the key was revoked
absl::StatusOr<Joined> DecideJoin(const JoinWish& wish, const JoinFacts& facts, absl::Time now);

// kNotFound: there is no key of this name to revoke.
absl::Status NeverJoined(const std::string& node);

// kPermissionDenied: the key was revoked.
absl::Status CheckNotRevoked(const NodeKey& key);

// Whether an agent that shows no key may register under a name. kFailedPrecondition: a key has it.
absl::Status CheckNameHasNoKey(const std::optional<NodeKey>& holder);

}  // namespace trainyard
