// What must hold in a yard, checked against what really runs, not against what the store believes.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/records/reason_codes.h"
#include "tests/simulation/yard.h"

namespace trainyard {

bool SlotServes(const SlotRecord& slot, const JobRecord& job) {
  return (job.device.empty() || job.device == slot.device) &&
         slot.memory_bytes >= job.bytes_per_slot;
}

bool IsAhead(const JobRecord& a, const JobRecord& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return std::tie(a.create_time, a.uid) < std::tie(b.create_time, b.uid);
}

bool NodeTakesWork(const NodeRecord& node, absl::Time now) {
  return node.reachable && !node.draining && node.lease_end > now && CordonReason(node).empty();
}

namespace {

// By device: how many slots could serve the job, and how many of those nobody holds.
struct Room {
  std::map<std::string, int> present, free;
  bool CouldHold(const JobRecord& job) const { return Most(present) >= job.min_slots; }
  bool HoldsNow(const JobRecord& job) const { return Most(free) >= job.min_slots; }
  static int Most(const std::map<std::string, int>& counts) {
    int most = 0;
    for (const auto& [device, count] : counts) most = std::max(most, count);
    return most;
  }
};

Room RoomFor(const JobRecord& job, const SchedulerSnapshot& snapshot) {
  std::set<std::pair<std::string, int>> held;
  for (const AttemptRecord& attempt : snapshot.attempts) {
    for (const RankRecord& rank : attempt.ranks) {
      if (rank.state == RankState::kGone) continue;
      for (int slot : rank.slots) held.emplace(rank.node, slot);
    }
  }
  Room room;
  for (const NodeRecord& node : snapshot.nodes) {
    if (!NodeTakesWork(node, snapshot.now)) continue;
    for (const SlotRecord& slot : node.slots) {
      if (!SlotServes(slot, job)) continue;
      ++room.present[slot.device];
      if (held.count({node.name, slot.index}) == 0) ++room.free[slot.device];
    }
  }
  return room;
}

bool IsWaitingReason(const std::string& code) {
  return code == reason::kWaitingForSlots || code == reason::kBehindOthers ||
         code == reason::kFitsNoNode || code == reason::kNoNodes || code == reason::kBackoff;
}

}  // namespace

void Yard::Breach(const std::string& what) {
  if (breach_.empty()) breach_ = what;
}

void Yard::CheckAlways() {
  CheckProcesses();
  if (!away_) CheckRecords();
  for (const auto& watcher : watchers_) {
    if (!watcher->wrong.empty()) Breach(watcher->wrong);
  }
  if (!disk_.complaints.empty()) Breach(disk_.complaints.front());
}

// No slot runs two processes; no job runs two attempts; what the store calls gone is gone.
void Yard::CheckProcesses() {
  std::map<std::string, int64_t> attempts;
  for (const auto& agent : agents_) {
    std::set<int> slots;
    for (const auto& [rank, process] : agent->processes()) {
      if (!process.alive) continue;
      for (int slot : process.assignment.slots()) {
        if (!slots.insert(slot).second) {
          Breach(absl::StrCat("slot ", slot, " of ", agent->name(), " runs two processes"));
        }
      }
      const auto record = stores_.fleet().FindRank(rank.job_uid, rank.attempt, rank.rank);
      if (record.ok() && record->state == RankState::kGone) {
        Breach(absl::StrCat(rank.job_uid, " attempt ", rank.attempt, " rank ", rank.rank,
                            " runs, but its slot was given back"));
      }
      const auto [known, fresh] = attempts.emplace(rank.job_uid, rank.attempt);
      if (!fresh && known->second != rank.attempt) {
        Breach(absl::StrCat(rank.job_uid, " runs attempts ", known->second, " and ", rank.attempt));
      }
    }
  }
}

// Gangs have all their slots, of one kind, large enough, each once.
void Yard::CheckRecords() {
  const absl::StatusOr<SchedulerSnapshot> snapshot = stores_.scheduler().ReadSnapshot();
  if (!snapshot.ok()) return Breach(snapshot.status().ToString());
  std::map<std::string, const NodeRecord*> nodes;
  for (const NodeRecord& node : snapshot->nodes) nodes[node.name] = &node;
  std::map<std::string, const JobRecord*> jobs;
  for (const JobRecord& job : snapshot->jobs) jobs[job.uid] = &job;
  std::set<std::pair<std::string, int>> held;
  for (const AttemptRecord& attempt : snapshot->attempts) {
    const JobRecord& job = *jobs.at(attempt.job_uid);
    if (static_cast<int>(attempt.ranks.size()) != job.min_slots) {
      Breach(absl::StrCat(job.uid, " has ", attempt.ranks.size(), " of ", job.min_slots, " ranks"));
    }
    std::set<std::string> devices;
    for (const RankRecord& rank : attempt.ranks) {
      for (int index : rank.slots) {
        for (const SlotRecord& slot : nodes.at(rank.node)->slots) {
          if (slot.index != index) continue;
          devices.insert(slot.device);
          if (!SlotServes(slot, job))
            Breach(absl::StrCat(job.uid, " sits on a slot that does not serve it"));
        }
        if (rank.state != RankState::kGone && !held.emplace(rank.node, index).second) {
          Breach(absl::StrCat("slot ", index, " of ", rank.node, " was given out twice"));
        }
      }
    }
    if (devices.size() > 1) Breach(absl::StrCat(job.uid, " mixes devices"));
  }
}

// After a turn of the scheduler: reasons, order, and no idle slot that the first in line could use.
void Yard::CheckTurn(const SchedulerSnapshot& before, const SchedulerSnapshot& after) {
  std::map<std::string, const JobRecord*> now;
  for (const JobRecord& job : after.jobs) now[job.uid] = &job;
  std::map<std::string, const AttemptRecord*> attempts;
  for (const AttemptRecord& attempt : after.attempts) attempts[attempt.job_uid] = &attempt;

  const absl::StatusOr<std::vector<NodeRecord>> nodes = stores_.fleet().ListNodes();
  for (const NodeRecord& node : *nodes) {
    const absl::Time renewed = node.lease_end - absl::Seconds(10);
    const absl::Time seen = std::max(judged_since_, renewed + LeaseJudge::kMostGap);
    if (node.reachable && seen + absl::Seconds(12) <= after.now) {
      Breach(absl::StrCat(node.name, " is away and nobody noticed"));
    }
  }
  const JobRecord* first = nullptr;
  for (const JobRecord& job : after.jobs) {
    if (job.state != JobState::kQueued) continue;
    if (!IsWaitingReason(job.reason.code) || job.reason.message.empty()) {
      Breach(absl::StrCat(job.uid, " waits with the reason '", job.reason.code, "'"));
    }
    const bool ready = job.not_before <= after.now && RoomFor(job, after).CouldHold(job);
    if (ready && (first == nullptr || IsAhead(job, *first))) first = &job;
  }
  if (first != nullptr && RoomFor(*first, after).HoldsNow(*first)) {
    Breach(absl::StrCat(first->uid, " is first, fits, and waits: ", first->reason.message));
  }
  for (const JobRecord& placed : before.jobs) {
    const auto placed_now = now.find(placed.uid);
    if (placed.state != JobState::kQueued || placed_now == now.end() ||
        placed_now->second->attempt == placed.attempt) {
      continue;
    }
    for (const JobRecord& waits : before.jobs) {
      const auto waits_now = now.find(waits.uid);
      if (waits.state != JobState::kQueued || waits_now == now.end() ||
          waits_now->second->state != JobState::kQueued ||
          waits_now->second->attempt != waits.attempt || !IsAhead(waits, placed) ||
          waits.not_before > before.now) {
        continue;
      }
      const Room room = RoomFor(waits, before);
      for (const RankRecord& rank : attempts.at(placed.uid)->ranks) {
        for (const NodeRecord& node : before.nodes) {
          for (const SlotRecord& slot : node.slots) {
            const auto kind = room.present.find(slot.device);
            const bool could = kind != room.present.end() && kind->second >= waits.min_slots;
            if (node.name == rank.node && slot.index == rank.slots.front() && could &&
                SlotServes(slot, waits)) {
              Breach(absl::StrCat(placed.uid, " overtook ", waits.uid,
                                  " on a slot that it could use"));
            }
          }
        }
      }
    }
  }
}

namespace {

// Whether item `sequence` of a feed is the end of its job, for good or until somebody resumes it.
bool EndsAt(const std::vector<FeedRecord>& feed, int64_t sequence) {
  if (sequence < 1 || sequence > static_cast<int64_t>(feed.size())) return false;
  const auto* const change = std::get_if<StateChangeRecord>(&feed[sequence - 1].what);
  return change != nullptr && IsTerminal(change->to);
}

}  // namespace

// Everything that can run has run to its end, left nothing behind, and told it all once.
void Yard::CheckEnd() {
  const absl::StatusOr<SchedulerSnapshot> snapshot = stores_.scheduler().ReadSnapshot();
  for (const JobName& name : names_) {
    const absl::StatusOr<JobRecord> job = stores_.jobs().Get(name);
    if (!job.ok()) return Breach(job.status().ToString());
    if (!IsTerminal(job->state)) {
      if (RoomFor(*job, *snapshot).CouldHold(*job)) {
        Breach(absl::StrCat(job->uid, " starved: ", JobStateName(job->state), ", ",
                            job->reason.message));
      }
      continue;
    }
    const auto feed = stores_.jobs().ReadFeed(job->uid, 0, 1000000);
    for (size_t i = 0; i < feed->size(); ++i) {
      if (feed->at(i).sequence != static_cast<int64_t>(i) + 1) Breach("a gap in a feed");
    }
    if (job->state != JobState::kSucceeded) continue;
    ++succeeded_;
    const auto rows = stores_.jobs().ReadMetrics(job->uid, {.limit = 100000});
    if (static_cast<int64_t>(rows->size()) != job->total_steps) {
      Breach(absl::StrCat(job->uid, " has ", rows->size(), " points of ", job->total_steps));
    }
    for (size_t i = 0; i < rows->size(); ++i) {
      if (rows->at(i).point.step != static_cast<int64_t>(i) + 1)
        Breach("a gap or duplicate in metrics");
    }
  }
  for (const auto& agent : agents_) {
    for (const auto& [rank, process] : agent->processes()) {
      const bool waits =
          std::any_of(snapshot->jobs.begin(), snapshot->jobs.end(),
                      [&uid = rank.job_uid](const JobRecord& job) { return job.uid == uid; });
      if (process.alive && !waits) Breach(absl::StrCat("a process of ", rank.job_uid, " is left"));
    }
  }
  for (const auto& watcher : watchers_) {
    const absl::StatusOr<JobRecord> job =
        stores_.jobs().Get(names_[std::stoi(watcher->uid.substr(3))]);
    const auto feed = stores_.jobs().ReadFeed(job->uid, 0, 1000000);
    // The end of a job that was resumed later is one that it had.
    if (watcher->ended && !EndsAt(*feed, watcher->cursor)) {
      Breach(absl::StrCat("the watcher of ", job->uid, " was told the end at ", watcher->cursor,
                          " of ", feed->size()));
    }
    if (IsTerminal(job->state) && !watcher->ended) {
      Breach(absl::StrCat("the watcher of ", job->uid, " saw no end at ", watcher->cursor));
    }
  }
}

}  // namespace trainyard
