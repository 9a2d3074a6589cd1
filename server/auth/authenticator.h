#pragma once

#include <string>

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
// much of a token is right. A found token is remembered for `remember`, so a revoked one works at
// most that much longer.
class Authenticator {
 public:
  Authenticator(TokenStore& tokens, Clock& clock, absl::Duration remember = absl::Seconds(3))
      : tokens_(tokens), clock_(clock), remember_(remember) {}

  // `authorization` is the value of that metadata key; empty when absent.
  //   kUnauthenticated   no token, another scheme, or a token that is not known
  //   kPermissionDenied  the role does not allow it
  //   kUnavailable       the store is away
  absl::StatusOr<Principal> Admit(absl::string_view authorization, Permission permission);

  // The principal of these credentials, if they were admitted before and are still remembered, be
  // it past `remember`; else "". Proves nothing: only to tell callers apart. Never blocks on the
  // store.
  std::string PrincipalIfKnown(absl::string_view authorization);

 private:
  absl::StatusOr<Principal> Authenticate(absl::string_view authorization);

  struct Remembered {
    Principal principal;
    absl::Duration until;  // on Clock::SinceBoot
  };

  TokenStore& tokens_;
  Clock& clock_;
  const absl::Duration remember_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Remembered> remembered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
