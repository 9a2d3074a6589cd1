#include "clients/cpp/log_follower.h"

#include "absl/time/clock.h"
#include "clients/cpp/backoff.h"

namespace trainyard {

void LogFollower::Take(const v1::TailLogsResponse& response, const Handlers& handlers) {
  const int64_t end = response.offset() + static_cast<int64_t>(response.data().size());
  if (!started_) {
    started_ = true;
    next_ = response.offset();
    // Reconnects stay with this attempt and ask for enough to overlap what was read.
    request_.set_attempt(response.attempt());
    request_.set_last_bytes(16 << 20);
  }
  if (end <= next_) return;
  if (response.offset() > next_) {
    handlers.on_missing(response.offset() - next_);
    next_ = response.offset();
  }
  handlers.on_data(response.data().substr(next_ - response.offset()));
  next_ = end;
}

absl::Status LogFollower::Run(const Handlers& handlers, Stop& stop) {
  absl::Time last_heard = absl::Now();
  Backoff backoff(absl::Milliseconds(30), absl::Seconds(2));
  while (true) {
    const absl::Status status =
        client_.TailLogs(request_, stop, [&](const v1::TailLogsResponse& response) {
          last_heard = absl::Now();
          backoff = Backoff(absl::Milliseconds(30), absl::Seconds(2));
          Take(response, handlers);
          return true;
        });
    if (stop.requested()) return absl::CancelledError("stopped reading");
    if (!absl::IsUnavailable(status) || absl::Now() - last_heard > patience_) return status;
    if (stop.WaitFor(backoff.Next())) return absl::CancelledError("stopped reading");
  }
}

}  // namespace trainyard
