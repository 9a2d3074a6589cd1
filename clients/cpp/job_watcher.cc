#include "clients/cpp/job_watcher.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/backoff.h"

namespace trainyard {
namespace {

// An item that so many streams in a row skip counts as lost for good.
constexpr int kMaxGaps = 3;

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

JobWatcher::Outcome JobWatcher::RunOnce(const Handlers& handlers, Stop& stop, v1::Job& end,
                                        absl::Status& status) {
  v1::WatchJobRequest request;
  request.set_name(name_);
  request.set_after_sequence(cursor_);
  heard_ = false;
  bool ended = false;
  bool gap = false;
  bool refused = false;
  status =
      client_.WatchJob(request, options_.silence, stop, [&](const v1::WatchJobResponse& response) {
        heard_ = true;
        if (lost_) {
          lost_ = false;
          if (handlers.on_back) handlers.on_back();
        }
        if (response.has_end()) {
          end = response.end().job();
          ended = true;
          return false;
        }
        if (response.has_heartbeat()) {
          gap = response.heartbeat().sequence() > cursor_;
          return !gap;
        }
        const v1::FeedItem& item = response.item();
        if (item.sequence() <= cursor_) return true;  // sent twice around a reconnect
        gap = item.sequence() > cursor_ + 1;
        if (gap) return false;
        cursor_ = item.sequence();
        refused = !handlers.on_item(item);
        return !refused;
      });
  if (ended) return Outcome::kEnded;
  if (gap) return Outcome::kGap;
  if (stop.requested() || refused) {
    status = absl::CancelledError("stopped watching");
    return Outcome::kRefused;
  }
  // A stream that ends without `end` was cut, whatever status it carries.
  if (status.ok()) status = absl::UnavailableError("the stream ended early");
  return IsTransient(status) ? Outcome::kLost : Outcome::kRefused;
}

absl::StatusOr<v1::Job> JobWatcher::Run(const Handlers& handlers, Stop& stop) {
  int gaps = 0;
  absl::Time last_heard = absl::Now();
  Backoff backoff(absl::Milliseconds(30), absl::Seconds(2));
  while (true) {
    v1::Job end;
    absl::Status status;
    const int64_t before = cursor_;
    const Outcome outcome = RunOnce(handlers, stop, end, status);
    if (outcome == Outcome::kEnded) return end;
    if (outcome == Outcome::kRefused) return status;
    if (heard_) {
      last_heard = absl::Now();
      backoff = Backoff(absl::Milliseconds(30), absl::Seconds(2));
    }
    if (outcome == Outcome::kGap) {
      gaps = cursor_ > before ? 1 : gaps + 1;
      if (gaps >= kMaxGaps) {
        return absl::DataLossError(
            absl::StrCat("the server skips what follows item ", cursor_, " of ", name_));
      }
      continue;
    }
    if (absl::Now() - last_heard > options_.patience) return status;
    if (!lost_) {
      lost_ = true;
      if (handlers.on_lost) handlers.on_lost(status);
    }
    if (stop.WaitFor(backoff.Next())) return absl::CancelledError("stopped watching");
  }
}

}  // namespace trainyard
