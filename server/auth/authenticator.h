#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/auth/permissions.h"
#include "storage/base/clock.h"
#include "storage/token_store.h"

namespace trainyard {

// Turns the credentials of a call into a principal. Thread-safe; may block on the store.
//
// Tokens are looked up by their SHA-256 only, so the time that this takes does not depend on how
// much of a token is right. A found token is remembered for `remember`, so one that is revoked, or
// has ended, works at most that much longer; streams that it opened end when LookAgain finds that.
class Authenticator {
 public:
  Authenticator(TokenStore& tokens, Clock& clock,
                absl::Duration remember = absl::Milliseconds(500));

  // `authorization` is the value of that metadata key; empty when absent.
  //   kUnauthenticated   no token, another scheme, or a token that is not known
  //   kPermissionDenied  the role does not allow it
  //   kUnavailable       the store is away
  absl::StatusOr<Principal> Admit(absl::string_view authorization, Permission permission);

  // As Admit, for a stream, which `end` ends, called once, from any thread, should the token not
  // count any more. It must not block, and may yet be called while `guard` goes: it holds nothing
  // that the stream needs to end.
  using End = std::function<void(const absl::Status&)>;
  struct Guarded {
    Principal principal;
    std::shared_ptr<void> guard;
  };
  absl::StatusOr<Guarded> AdmitStream(absl::string_view authorization, Permission permission,
                                      End end);

  // Looks whether the tokens that opened streams still count. Call it about twice a second; may
  // block on the store.
  void LookAgain();

  // The principal of these credentials, if they were admitted before and are still remembered, be
  // it past `remember`. Proves nothing: only to tell callers apart. Never blocks on the store.
  std::optional<Principal> PrincipalIfKnown(absl::string_view authorization);

 private:
  absl::StatusOr<Principal> Authenticate(absl::string_view authorization);

  struct Remembered {
    Principal principal;
    absl::Duration until;  // on Clock::SinceBoot
  };

  struct Stream;
  // Shared with the guards of streams, which may outlive this.
  struct Streams;

  TokenStore& tokens_;
  Clock& clock_;
  const absl::Duration remember_;
  const std::shared_ptr<Streams> streams_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Remembered> remembered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
