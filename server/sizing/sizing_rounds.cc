#include "server/sizing/sizing_rounds.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/time.h"

namespace trainyard {
namespace {

using std::chrono::steady_clock;

}  // namespace

std::shared_ptr<SizingRounds::Round> SizingRounds::Join(const std::string& key, SteadyTime until) {
  absl::MutexLock lock(&mu_);
  Line& line = lines_[key];  // stays as long as somebody shares its next round
  if (line.next == nullptr) line.next = std::make_shared<Round>();
  std::shared_ptr<Round> round = line.next;
  ++round->sharers;
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return round->done || (!round->begun && !line.under_way);
  };
  const absl::Duration left = absl::FromChrono(until - steady_clock::now());
  if (!mu_.AwaitWithTimeout(absl::Condition(&ready), std::max(left, absl::ZeroDuration()))) {
    --round->sharers;
    return nullptr;
  }
  if (!round->done) {
    round->begun = line.under_way = true;
    line.next = nullptr;
  }
  return round;
}

void SizingRounds::Finish(const std::string& key, Round& round) {
  absl::MutexLock lock(&mu_);
  round.done = true;
  const auto line = lines_.find(key);
  line->second.under_way = false;
  if (line->second.next == nullptr || line->second.next->sharers == 0) lines_.erase(line);
}

absl::StatusOr<Sizing> SizingRounds::Ask(const std::string& key, SteadyTime until,
                                         absl::FunctionRef<absl::StatusOr<Sizing>()> ask) {
  for (;;) {
    const std::shared_ptr<Round> round = Join(key, until);
    if (round == nullptr) {
      return absl::UnavailableError(
          "the server is busy reading the same files for others; try again");
    }
    if (!round->done) {
      round->sizing = ask();
      round->cut = absl::IsUnavailable(round->sizing.status()) && steady_clock::now() >= until;
      Finish(key, *round);
      return round->sizing;
    }
    if (!round->cut) return round->sizing;
  }
}

}  // namespace trainyard
