#include "server/fleet/event_committer.h"

#include <limits>
#include <utility>

namespace trainyard {
namespace {

constexpr size_t kLargestGroup = 256;
constexpr size_t kMostEvents = 4096;  // in one group, unless the first entry alone has more

}  // namespace

void EventCommitter::Append(RankEvents events, Done done) {
  {
    absl::MutexLock lock(&mu_);
    waiting_.push_back({std::move(events), std::move(done)});
  }
  Poke();
}

std::vector<EventCommitter::Waiting> EventCommitter::TakeGroup(size_t most_entries) {
  std::vector<Waiting> group;
  absl::MutexLock lock(&mu_);
  for (size_t events = 0; !waiting_.empty() && group.size() < most_entries;) {
    events += waiting_.front().events.events.size();
    if (!group.empty() && events > kMostEvents) break;
    group.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return group;
}

void EventCommitter::Work() {
  std::vector<Waiting> group = TakeGroup(kLargestGroup);
  if (group.empty()) return;
  std::vector<RankEvents> entries;
  entries.reserve(group.size());
  for (Waiting& one : group) entries.push_back(std::move(one.events));
  std::vector<absl::StatusOr<AppendResult>> answers = store_.AppendGroup(entries);
  for (size_t i = 0; listener_ && i < answers.size(); ++i) {
    if (!answers[i].ok() || answers[i]->items == nullptr) continue;
    listener_(entries[i].rank.job_uid, answers[i]->items);
  }
  absl::Status away;
  for (size_t i = 0; i < group.size(); ++i) {
    if (absl::IsUnavailable(answers[i].status())) away = answers[i].status();
    group[i].done(std::move(answers[i]));
  }
  // Entries behind those that failed must not overtake them. Whoever was just answered with
  // kUnavailable sends no more, so this ends.
  while (!away.ok()) {
    const std::vector<Waiting> behind = TakeGroup(std::numeric_limits<size_t>::max());
    if (behind.empty()) return;
    for (const Waiting& one : behind) one.done(away);
  }
  Poke();
}

}  // namespace trainyard
