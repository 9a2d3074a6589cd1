#pragma once

#include "absl/time/time.h"

namespace trainyard {

// How long one store call on this thread may take, waiting for a connection included: infinite
// unless a CallLimit lives on this thread. A store that cannot answer within it returns
// kUnavailable; a write that got this answer may still be committed.
absl::Duration CurrentCallLimit();

// Bounds the store calls of this thread while it lives. The smallest of nested limits holds.
class CallLimit {
 public:
  explicit CallLimit(absl::Duration limit);
  ~CallLimit();
  CallLimit(const CallLimit&) = delete;
  CallLimit& operator=(const CallLimit&) = delete;

 private:
  const absl::Duration outer_;
};

// The limit for calls on behalf of users. They are told within 5 s that the store is away, which
// includes the wait for a thread and for one more try of the store.
inline constexpr absl::Duration kUserCallLimit = absl::Milliseconds(3500);

}  // namespace trainyard
