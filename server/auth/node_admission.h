#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/certificate.h"
#include "storage/node_key_store.h"

namespace trainyard {

// Lets machines into the yard as nodes, and knows them again by the certificates that it gave them.
// Thread-safe; may block on the store.
class NodeAdmission {
 public:
  // `authority` signs certificates of nodes.
  NodeAdmission(NodeKeyStore& store, TlsIdentity authority)
      : store_(store), authority_(std::move(authority)) {}

  struct NewToken {
    JoinToken token;
    std::string file;                   // a JoinTokenFile, as text; secret
    std::string authority_fingerprint;  // of the certificate that is in it
  };
  // Of `wanted` counts what people say: pool, creator and most_joins.
  absl::StatusOr<NewToken> MakeToken(const JoinToken& wanted, absl::Duration valid_for);

  // A node and its certificate, with that of the authority behind it, as PEM text.
  struct Admitted {
    NodeKey key;
    std::string certificate;
  };
  // As NodeKeyStore::Join; kInvalidArgument, too: `signing_request` cannot be used.
  absl::StatusOr<Admitted> Join(const std::string& token, const std::string& signing_request,
                                const std::string& node, const std::string& node_uid);

  // The node that shows `certificate`, as TLS found it to be signed and its key to be there.
  //   kUnauthenticated   there is none, or nobody joined with its key
  //   kPermissionDenied  the key was revoked
  absl::StatusOr<NodeKey> Recognize(const std::string& certificate);

  // A new certificate for the node that shows `certificate`, and for the same key.
  absl::StatusOr<Admitted> Renew(const std::string& certificate,
                                 const std::string& signing_request);

 private:
  absl::StatusOr<Admitted> Certify(NodeKey key, const std::string& signing_request) const;

  NodeKeyStore& store_;
  const TlsIdentity authority_;
};

}  // namespace trainyard
