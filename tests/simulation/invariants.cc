// What must hold in a yard, checked against what really runs, not against what the store believes.
// What nobody changed since it was checked is not checked again.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/records/node_health.h"
#include "storage/records/reason_codes.h"
#include "tests/simulation/room.h"
#include "tests/simulation/yard.h"

namespace trainyard {
namespace {

bool IsWaitingReason(const std::string& code) {
  return code == reason::kWaitingForSlots || code == reason::kBehindOthers ||
         code == reason::kFitsNoNode || code == reason::kNoNodes || code == reason::kProjectLimit ||
         code == reason::kBackoff;
}

}  // namespace

void Yard::Breach(const std::string& what) {
  if (breach_.empty()) breach_ = what;
}

void Yard::CheckAlways() {
  int64_t moves = 0;
  for (const auto& agent : agents_) moves += agent->moves();
  const int64_t writes = stores_.writes();
  const bool written = writes != checked_writes_;
  if (written || moves != checked_moves_) {
    CheckProcesses();
    checked_moves_ = moves;
  }
  if (!away_ && written) {
    CheckRecords();
    checked_writes_ = writes;
  }
  for (const auto& job : jobs_) {
    if (!job->watcher.wrong.empty()) Breach(job->watcher.wrong);
  }
  if (!storage_.complaints.empty()) Breach(storage_.complaints.front());
}

// No slot runs two processes and no rank runs twice, whatever name their agents have; what the
// store calls gone is gone.
void Yard::CheckProcesses() {
  std::set<RankId> alive;
  for (const auto& agent : agents_) {
    std::vector<int> slots;
    for (const auto* ranks : {&agent->processes(), &agent->ghosts()}) {
      for (const auto& [rank, process] : *ranks) {
        if (!process.alive) continue;
        for (int slot : process.assignment.slots()) {
          if (std::count(slots.begin(), slots.end(), slot) > 0) {
            Breach(absl::StrCat("slot ", slot, " of ", agent->name(), " runs two processes"));
          }
          slots.push_back(slot);
        }
        if (!alive.insert(rank).second) {
          Breach(absl::StrCat(rank.job_uid, " attempt ", rank.attempt, " rank ", rank.rank,
                              " runs twice"));
        }
        CheckProcess(*agent, rank);
      }
    }
  }
}

// A worker of today steps on after its node was lost, and makes nothing visible: where it would,
// SimAgent complains.
void Yard::CheckProcess(const SimAgent& agent, const RankId& rank) {
  const auto record = stores_.fleet().FindRank(rank.job_uid, rank.attempt, rank.rank);
  if (!record.ok() || !IsOver(record->state)) return;
  const absl::string_view what = record->state == RankState::kGone
                                     ? " runs, but its slot was given back"
                                     : " runs without a lease, under an agent of before";
  if (record->state == RankState::kLost && agent.version() == SimVersion::kToday) {
    return CheckCancelled(rank, *record);
  }
  Breach(absl::StrCat(rank.job_uid, " attempt ", rank.attempt, " rank ", rank.rank, what));
}

// CANCELLED says that nothing of the job runs any more, unless the job was not CANCELLING before,
// or its rank had been lost for longer than an orphan may live.
void Yard::CheckCancelled(const RankId& rank, const RankRecord& record) {
  for (const auto& job : jobs_) {
    if (job->uid != rank.job_uid) continue;
    const absl::StatusOr<JobRecord> now = stores_.jobs().Get(job->name);
    if (!now.ok() || now->state != JobState::kCancelled || now->attempt != rank.attempt) return;
    const auto feed = stores_.jobs().ReadFeed(rank.job_uid, 0, 1 << 20);
    if (!feed.ok()) return;
    const StateChangeRecord* last = nullptr;
    for (const FeedRecord& item : *feed) {
      if (const auto* change = std::get_if<StateChangeRecord>(&item.what)) last = change;
    }
    const bool waited = now->end_time - record.gone_time > PlannerOptions().orphan_limit;
    if (last == nullptr || last->from != JobState::kCancelling || waited) return;
    Breach(absl::StrCat(rank.job_uid, " is CANCELLED and attempt ", rank.attempt, " rank ",
                        rank.rank, " runs"));
  }
}

// Gangs have all their slots, of one kind, large enough, each once; and as the rule of their
// arithmetic has it.
void Yard::CheckRecords() {
  const std::shared_ptr<const SchedulerSnapshot> snapshot = Records();
  if (snapshot == nullptr) return;
  std::map<absl::string_view, const JobRecord*> jobs;
  for (const JobRecord& job : snapshot->jobs) {
    jobs[job.uid] = &job;
    CheckBudget(job);
  }
  std::set<absl::string_view> lost;
  for (const NodeRecord& node : snapshot->nodes) {
    if (!node.reachable) lost.insert(node.name);
  }
  std::set<std::pair<absl::string_view, int>> held;
  for (const AttemptRecord& attempt : snapshot->attempts) {
    const JobRecord& job = *jobs.at(attempt.job_uid);
    CheckSlots(job, attempt);
    CheckArithmetic(*snapshot, job, attempt);
    // How much a slot had to hold in the layout of an attempt before is not known any more.
    std::optional<JobRecord> of_any_size;
    if (attempt.layout != job.layout) of_any_size.emplace(job).bytes_per_slot = 0;
    const JobRecord& served = of_any_size.has_value() ? *of_any_size : job;
    absl::string_view device;
    for (const RankRecord& rank : attempt.ranks) {
      for (int index : rank.slots) {
        const SlotRecord* slot = FindSlot(*snapshot, rank.node, index);
        if (slot == nullptr || !SlotServes(*slot, served)) {
          Breach(absl::StrCat(job.uid, " sits on a slot that does not serve it"));
        } else if (!device.empty() && device != slot->device) {
          Breach(absl::StrCat(job.uid, " mixes devices"));
        } else {
          device = slot->device;
        }
        if (!IsOver(rank.state) && !held.emplace(rank.node, index).second) {
          Breach(absl::StrCat("slot ", index, " of ", rank.node, " was given out twice"));
        }
      }
      if (!IsOver(rank.state) && lost.count(rank.node) > 0) {
        Breach(absl::StrCat(job.uid, " is thought to run on ", rank.node, ", which is lost"));
      }
    }
  }
}

// No gang computes in two ways unless it may; one that is bound, on no slot that computes
// otherwise, which SlotServes knows.
void Yard::CheckArithmetic(const SchedulerSnapshot& snapshot, const JobRecord& job,
                           const AttemptRecord& attempt) {
  std::set<std::string> kinds;
  for (const RankRecord& rank : attempt.ranks) {
    const SlotRecord* const slot = FindSlot(snapshot, rank.node, rank.slots.front());
    if (slot != nullptr) kinds.insert(ComputesWith(*slot));
  }
  const bool bound = !job.arithmetic.empty();
  if (bound) arithmetic_seen_.insert(job.uid);
  if (kinds.size() < 2) return;
  mixed_seen_.insert(job.uid);
  const bool may = job.arithmetic_rule == ArithmeticRule::kAny ||
                   job.arithmetic_rule == ArithmeticRule::kUnknown;
  if (!may) Breach(absl::StrCat(job.uid, " has slots that compute in ", kinds.size(), " ways"));
}

// A node that nobody hears of has been declared lost by a leader that has judged leases for long
// enough.
void Yard::CheckLosses(const SimServer& server, const std::vector<NodeRecord>& nodes) {
  constexpr double kFastest = 1 + SimClock::kMostDrift / 1000.0;
  for (const NodeRecord& node : nodes) {
    // An answer may be as old as the longest gap that the judge ignores, and so may the one before.
    const absl::Duration seen =
        std::max(server.judges_since(), truth_.renewed[node.name] + LeaseJudge::kMostGap) +
        LeaseJudge::kMostGap;
    if (node.reachable && seen + absl::Seconds(12) * kFastest <= server.judged_at()) {
      Breach(absl::StrCat(node.name, " is away and nobody noticed"));
    }
  }
}

// A start that hangs is ended by a leader that has looked on for long enough.
void Yard::CheckStarts(const SimServer& server, const SchedulerSnapshot& snapshot) {
  constexpr double kFastest = 1 + SimClock::kMostDrift / 1000.0;
  std::map<RankId, absl::Duration> seen;
  for (const AttemptRecord& attempt : snapshot.attempts) {
    const bool over =
        std::any_of(attempt.ranks.begin(), attempt.ranks.end(),
                    [](const RankRecord& rank) { return rank.outcome != RankOutcome::kNone; });
    if (over) continue;
    for (const JobRecord& job : snapshot.jobs) {
      if (job.uid != attempt.job_uid || job.state != JobState::kStarting) continue;
      const RankId id{attempt.job_uid, attempt.attempt, 0};
      const auto before = starts_seen_.find(id);
      const absl::Duration since =
          before == starts_seen_.end() ? server.judged_at() : before->second;
      seen[id] = since;
      const absl::Duration looked = server.judged_at() - std::max(since, server.judges_since());
      if (looked > kSimStartLimit * kFastest + StartJudge::kMostGap) {
        Breach(absl::StrCat(job.uid, " has been STARTING for too long"));
      }
    }
  }
  starts_seen_ = std::move(seen);
}

// `judged`: the nodes as the leader knew them last; `alone`: nobody else did anything meanwhile.
bool Yard::CheckCordons(const SchedulerSnapshot& before, const SchedulerSnapshot& after,
                        const std::vector<NodeRecord>& judged, bool alone) {
  size_t reachable = 0, cordoned = 0, cordoned_before = 0;
  for (const NodeRecord& node : before.nodes) cordoned_before += !node.cordon.empty();
  std::set<std::string> left;  // that are not cordoned now
  for (const NodeRecord& node : after.nodes) {
    reachable += node.reachable;
    cordoned += !node.cordon.empty();
    if (node.cordon.empty()) left.insert(node.name);
  }
  // As of before the turn, or as of when the leader looked last: since then all nodes may have been
  // lost, or their disks full.
  const auto any_takes_work = [&left](const std::vector<NodeRecord>& nodes) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const NodeRecord& node) {
      return left.count(node.name) > 0 && node.reachable && !GivesWorkAway(node) &&
             CordonReason(node).empty();
    });
  };
  if (cordoned <= cordoned_before) return false;
  ++faults_seen_["nodes cordoned for their failures"];
  if (cordoned * 4 > after.nodes.size()) {
    Breach(absl::StrCat(cordoned, " of ", reachable, " nodes are cordoned for their failures"));
  }
  if (alone && !any_takes_work(before.nodes) && !any_takes_work(judged))
    Breach("the last node that takes work was cordoned for its failures");
  return true;
}

// A job that takes its nodes down is charged for it, and ends when its restarts are spent.
void Yard::CheckBudget(const JobRecord& job) {
  if (storage_.poisoned.count(job.uid) == 0) return;
  if (job.losses > kFreeLosses + job.max_restarts + 1 || job.restarts > job.max_restarts) {
    Breach(absl::StrCat(job.uid, " has taken down ", job.losses, " nodes, with ", job.max_restarts,
                        " restarts to spend"));
  }
  if (job.state == JobState::kSucceeded) Breach(absl::StrCat(job.uid, " cannot have succeeded"));
}

// A rank that has not begun does not stay where it cannot begin.
void Yard::CheckDisks(const SchedulerSnapshot& after) {
  std::set<std::string> full;
  for (const NodeRecord& node : after.nodes) {
    if (node.report.disk_free_bytes.value_or(INT64_MAX) < 1000) full.insert(node.name);
  }
  if (full.empty()) return;
  std::map<std::string, JobState> states;
  for (const JobRecord& job : after.jobs) states[job.uid] = job.state;
  for (const AttemptRecord& attempt : after.attempts) {
    if (states[attempt.job_uid] != JobState::kStarting) continue;
    for (const RankRecord& rank : attempt.ranks) {
      if (rank.state != RankState::kAssigned || full.count(rank.node) == 0) continue;
      Breach(absl::StrCat(attempt.job_uid, " stays STARTING on ", rank.node,
                          ", whose disk is known to be full"));
    }
  }
}

// After a turn of the scheduler: reasons, order, and no idle slot that the first in line could use.
void Yard::CheckTurn(const SchedulerSnapshot& before, const SchedulerSnapshot& after,
                     const std::vector<NodeRecord>& judged) {
  CheckDisks(after);
  CheckLimits(before, after);
  CountResizes(after);
  const absl::Time time = ToMicroseconds(store_clock_.Now());
  std::map<std::string, const JobRecord*> now;
  for (const JobRecord& job : after.jobs) now[job.uid] = &job;
  const Room room(after, judged, time);
  const JobRecord* first = nullptr;
  for (const JobRecord& job : after.jobs) {
    if (job.state != JobState::kQueued) continue;
    if (!IsWaitingReason(job.reason.code) || job.reason.message.empty()) {
      Breach(absl::StrCat(job.uid, " waits with the reason '", job.reason.code, "'"));
    }
    if (job.not_before > time || (first != nullptr && !IsAhead(job, *first))) continue;
    const bool limited = job.reason.code == reason::kProjectLimit && MayBeLimited(after, job, true);
    if (room.CouldHold(job) && !limited) first = &job;
  }
  // It waits for slots or for its limit: one would have to plan to know.
  if (first != nullptr && MayBeLimited(after, *first, true)) first = nullptr;
  if (first != nullptr && room.HoldsNow(*first)) {
    Breach(absl::StrCat(first->uid, " is first, fits, and waits: ", first->reason.message));
  }
  if (first != nullptr) CheckSurplus(after, judged, *first);
  for (const JobRecord& placed : before.jobs) {
    const auto placed_now = now.find(placed.uid);
    if (placed.state != JobState::kQueued || placed_now == now.end() ||
        placed_now->second->attempt == placed.attempt || IsResizing(placed)) {
      continue;
    }
    for (const AttemptRecord& attempt : after.attempts) {
      if (attempt.job_uid == placed.uid) CheckOrder(before, judged, placed, attempt, now);
    }
  }
}

// No job that waits was ahead of `placed` and could use one of its slots; and `placed` is not on
// the node where it failed last unless it must be.
void Yard::CheckOrder(const SchedulerSnapshot& before, const std::vector<NodeRecord>& judged,
                      const JobRecord& placed, const AttemptRecord& attempt,
                      const std::map<std::string, const JobRecord*>& now) {
  const absl::Time time = store_clock_.Now();
  const Room room(before, judged, time);
  const std::string avoided = room.AvoidedBy(placed);
  for (const RankRecord& rank : attempt.ranks) {
    if (!avoided.empty() && rank.node == avoided) {
      Breach(absl::StrCat(placed.uid, " was placed again on ", avoided, ", which had failed it"));
    }
  }
  for (const JobRecord& waits : before.jobs) {
    const auto waits_now = now.find(waits.uid);
    if (waits.state != JobState::kQueued || waits_now == now.end() ||
        waits_now->second->state != JobState::kQueued ||
        waits_now->second->attempt != waits.attempt || !IsAhead(waits, placed) ||
        waits.not_before > time || MayBeLimited(before, waits, false)) {
      continue;
    }
    for (const RankRecord& rank : attempt.ranks) {
      if (rank.node == room.AvoidedBy(waits)) continue;
      const SlotRecord* slot = FindSlot(before, rank.node, rank.slots.front());
      if (slot != nullptr && SlotServes(*slot, waits) && room.CouldHold(waits, *slot)) {
        Breach(absl::StrCat(placed.uid, " overtook ", waits.uid, " on a slot that it could use"));
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

// What is wrong with a job that ended, or "": its feed and metrics must have no gap, and its
// watcher must have been told of the end.
std::string Yard::WrongAtTheEndOf(const SimJob& job, const JobRecord& record) {
  const auto feed = stores_.jobs().ReadFeed(job.uid, 0, 1000000);
  if (!feed.ok()) return feed.status().ToString();
  for (size_t i = 0; i < feed->size(); ++i) {
    if (feed->at(i).sequence != static_cast<int64_t>(i) + 1) return "a gap in a feed";
  }
  // The watcher may have been told of an earlier end, after which the job was resumed.
  if (job.watcher.ended && !EndsAt(*feed, job.watcher.cursor)) {
    return absl::StrCat("the watcher of ", job.uid, " was told the end at ", job.watcher.cursor,
                        " of ", feed->size());
  }
  if (!job.watcher.ended) {
    return absl::StrCat("the watcher of ", job.uid, " saw no end at ", job.watcher.cursor);
  }
  if (record.state != JobState::kSucceeded) return "";
  const auto rows = stores_.jobs().ReadMetrics(job.uid, {.limit = 100000});
  if (!rows.ok()) return rows.status().ToString();
  if (static_cast<int64_t>(rows->size()) != record.total_steps) {
    return absl::StrCat(job.uid, " has ", rows->size(), " points of ", record.total_steps);
  }
  for (size_t i = 0; i < rows->size(); ++i) {
    if (rows->at(i).point.step != static_cast<int64_t>(i) + 1) {
      return absl::StrCat(job.uid, " has a gap or a duplicate in its metrics");
    }
  }
  return "";
}

int64_t Yard::RejoinsOf(const SimJob& job) {
  const auto feed = stores_.jobs().ReadFeed(job.uid, 0, 1000000);
  if (!feed.ok()) return 0;
  return std::count_if(feed->begin(), feed->end(), [](const FeedRecord& item) {
    const auto* change = std::get_if<StateChangeRecord>(&item.what);
    return change != nullptr && change->from == JobState::kQueued &&
           change->to == JobState::kRunning;
  });
}

std::string Yard::LeftToDo() {
  const std::shared_ptr<const SchedulerSnapshot> snapshot = Records();
  if (snapshot == nullptr) return "the store is away";
  const Room room(*snapshot, snapshot->nodes, ToMicroseconds(store_clock_.Now()));
  for (const auto& job : jobs_) {
    const absl::StatusOr<JobRecord> record = stores_.jobs().Get(job->name);
    if (!record.ok()) return record.status().ToString();
    if (IsTerminal(record->state)) {
      if (std::string wrong = WrongAtTheEndOf(*job, *record); !wrong.empty()) return wrong;
    } else if (room.CouldHold(*record) || record->state != JobState::kQueued) {
      std::string where;
      for (const AttemptRecord& attempt : snapshot->attempts) {
        if (attempt.job_uid != job->uid) continue;
        for (const RankRecord& rank : attempt.ranks) {
          absl::StrAppend(&where, "; ", RankStateName(rank.state), " on ", rank.node, " of ",
                          rank.claim.instance);
        }
      }
      return absl::StrCat(job->uid, " starved: ", JobStateName(record->state), ", ",
                          record->reason.message, where);
    }
  }
  for (const auto& agent : agents_) {
    for (const auto& [rank, process] : agent->processes()) {
      if (process.alive) return absl::StrCat("a process of ", rank.job_uid, " is left");
    }
  }
  return "";
}

}  // namespace trainyard
