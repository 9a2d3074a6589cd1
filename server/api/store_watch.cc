#include "server/api/store_watch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/call_limit.h"

namespace trainyard {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(500);
constexpr absl::Duration kLongestProbe = absl::Seconds(1);
constexpr absl::Duration kShortestProbe = absl::Milliseconds(100);

}  // namespace

StoreWatch::StoreWatch(std::function<absl::Status()> probe, Clock& clock,
                       std::function<void(const absl::Status&)> tell)
    : probe_(std::move(probe)), clock_(clock), tell_(std::move(tell)) {
  thread_ = std::thread([this] { Run(); });
}

void StoreWatch::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool StoreWatch::StopsWithin(absl::Duration pause) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
}

void StoreWatch::Run() {
  absl::Duration answered = clock_.SinceBoot();
  bool away = false;
  absl::Duration pause = absl::ZeroDuration();
  while (!StopsWithin(pause)) {
    // The last probe before kMostSilence is over ends at that time.
    const absl::Duration left = answered + kMostSilence - clock_.SinceBoot();
    const CallLimit limit(std::clamp(left, kShortestProbe, kLongestProbe));
    const absl::Status status = probe_();
    const absl::Duration now = clock_.SinceBoot();
    if (status.ok()) answered = now;
    if (status.ok() && away) {
      away = false;
      spdlog::info("the store answers again: serves agents and watchers");
      tell_(absl::OkStatus());
    } else if (!away && now - answered >= kMostSilence) {
      away = true;
      const absl::Status why = absl::UnavailableError(
          absl::StrCat("this server has not reached its store for ",
                       absl::FormatDuration(kMostSilence), "; another may: ", status.message()));
      spdlog::warn("{}", std::string(why.message()));
      tell_(why);
    }
    pause =
        away ? kPeriod : std::clamp(answered + kMostSilence - now, absl::ZeroDuration(), kPeriod);
  }
}

}  // namespace trainyard
