#include "server/scheduler/scheduler_state.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "server/scheduler/elastic.h"
#include "server/scheduler/health.h"
#include "server/scheduler/pass_steps.h"

namespace trainyard {
namespace {

// The jobs of one demand, in order, whatever their stored reasons.
class ClassCursor {
 public:
  ClassCursor(const DemandClass& demand, const WaitingQueue::JobsByReason& jobs)
      : demand_(&demand) {
    for (const auto& [reason, of_reason] : jobs) {
      parts_.push_back({&reason, &of_reason, of_reason.begin()});
    }
    FindFirst();
  }

  bool done() const { return first_ == parts_.size(); }
  const DemandClass& demand() const { return *demand_; }
  const JobRecord& job() const { return **parts_[first_].next; }
  void Advance() {
    ++parts_[first_].next;
    FindFirst();
  }

  // Calls `tell` with each job from here on whose stored reason is another, until it returns
  // kEnough, but for those that keep one with the code `kept`. kTooYoung: so are all others of the
  // same reason and priority that were created later but not after `now`, and they are passed over
  // without being looked at.
  template <typename Tell>
  void ForOtherReasons(const Reason& reason, const char* kept, absl::Time now,
                       const Tell& tell) const {
    for (const Part& part : parts_) {
      if (*part.reason == reason || part.reason->code == kept) continue;
      for (auto it = part.next; it != part.jobs->end();) {
        const Told told = tell(**it);
        if (told == Told::kEnough) return;
        if (told == Told::kTooYoung) {
          it = part.jobs->lower_bound(CreatedUntil{(*it)->priority, now});
        } else {
          ++it;
        }
      }
    }
  }

 private:
  struct Part {
    const Reason* reason;
    const JobsInOrder* jobs;
    JobsInOrder::const_iterator next;
  };

  void FindFirst() {
    first_ = parts_.size();
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].next == parts_[i].jobs->end()) continue;
      if (first_ == parts_.size() || RunsBefore(**parts_[i].next, job())) first_ = i;
    }
  }

  const DemandClass* demand_;
  std::vector<Part> parts_;
  size_t first_ = 0;
};

struct ServedLater {
  bool operator()(const ClassCursor& a, const ClassCursor& b) const {
    return RunsBefore(b.job(), a.job());
  }
};

// The jobs that wait: the first of all demands in turn, until every demand waits or is served.
class QueuePass {
 public:
  // `slots`: of nodes that take work.
  QueuePass(const WaitingQueue& queue, SlotTable slots, SlotLedger ledger, const Cluster& cluster,
            const PlannerOptions& options, Pass& pass, WaitingClasses& waiting)
      : queue_(queue),
        slots_(std::move(slots)),
        ledger_(std::move(ledger)),
        now_(cluster.now),
        options_(options),
        pass_(pass),
        waiting_(waiting),
        elastic_(cluster, options, slots_, ledger_, pass) {}

  void Run() {
    for (const auto& job : queue_.untold_backoffs()) {
      if (TellJob(*job, ReasonForBackoff(*job)) == Told::kEnough) break;
    }
    pass_.next = std::min(pass_.next, queue_.next_backoff_end());
    std::priority_queue<ClassCursor, std::vector<ClassCursor>, ServedLater> heads;
    for (const auto& [demand, jobs] : queue_.classes()) heads.emplace(demand, jobs);
    while (!heads.empty()) {
      if (pass_.decisions.placements.size() >= options_.most_placements) {
        pass_.next = now_;
        return;
      }
      ClassCursor head = heads.top();
      heads.pop();
      if (!Serve(head)) continue;
      head.Advance();
      if (!head.done()) heads.push(std::move(head));
    }
    elastic_.GiveOut();
  }

 private:
  // Gives the first job its slots, or has them come free; false: all of this demand wait, and are
  // told why.
  bool Serve(const ClassCursor& head) {
    const JobRecord& job = head.job();
    if (elastic_.Placed(job)) return true;
    const SlotDemand demand = slots_.DemandOf(job);
    const int left = ledger_.Left(job);
    Reason reason;
    if (!slots_.CouldHold(demand)) {
      reason = ReasonForNoFit(slots_, demand);
    } else if (std::optional<Reason> limited = ledger_.WaitsFor(job, demand)) {
      reason = *std::move(limited);
      if (demand.count <= ledger_.Limit(job) &&
          elastic_.MakeRoomInLimit(job, demand.count - left)) {
        return Await(job, reason);
      }
    } else if (auto ranks = slots_.Find(demand); ranks.has_value()) {
      slots_.Take(*ranks);
      ledger_.Take(job, SlotsIn(*ranks));
      Reason placed = ReasonForPlacement(*ranks, job);
      pass_.decisions.placements.push_back({.job_uid = job.uid,
                                            .job_version = job.version,
                                            .ranks = *std::move(ranks),
                                            .reason = std::move(placed)});
      elastic_.Took(job, pass_.decisions.placements.back().ranks);
      return true;
    } else {
      reason = ReasonForWait(slots_, demand);
      slots_.Keep(demand);
      ledger_.Take(job, demand.count);
      if (elastic_.MakeRoom(job)) return Await(job, reason);
    }
    const char* const kept = KeptBehind(head.demand(), reason);
    if (job.reason.code == kept) TellJob(job, reason);
    head.ForOtherReasons(reason, kept, now_, [&](const JobRecord& other) {
      return elastic_.Placed(other) ? Told::kYes : TellJob(other, reason);
    });
    waiting_.push_back({&head.demand(), std::move(reason)});
    return false;
  }

  // What the job needs comes free: others of its demand may have to be helped, too.
  bool Await(const JobRecord& job, const Reason& reason) {
    pass_.awaited.push_back(job.uid);
    if (reason != job.reason) TellJob(job, reason);
    return true;
  }

  Told TellJob(const JobRecord& job, const Reason& reason) {
    return Tell(job, reason, now_, options_, pass_);
  }

  const WaitingQueue& queue_;
  SlotTable slots_;
  SlotLedger ledger_;
  const absl::Time now_;
  const PlannerOptions& options_;
  Pass& pass_;
  WaitingClasses& waiting_;
  Elastic elastic_;
};

}  // namespace

void SchedulerState::UpdateSlotsOf(const AttemptRecord& attempt) {
  if (!slots_.has_value()) return;
  for (const RankRecord& rank : attempt.ranks) {
    const std::multiset<int>& held = held_.On(rank.node);
    const auto node = fold_.nodes().find(rank.node);
    for (const int slot : rank.slots) {
      const bool lost = node != fold_.nodes().end() && LostRankOn(node->second, slot) != nullptr;
      slots_->SetTaken(rank.node, slot, lost || held.count(slot) > 0);
    }
  }
}

void SchedulerState::Forget(const std::string& uid) {
  starting_.erase(uid);
  ending_.erase(uid);
  elastic_.erase(uid);
  resized_.erase(uid);
  if (const auto job = fold_.FindWaiting(uid); job != nullptr) queue_.Remove(job);
  const auto holder = fold_.holders().find(uid);
  if (holder == fold_.holders().end()) return;
  held_.Remove(holder->second.attempt);
  held_by_projects_.Remove(*holder->second.job, holder->second.attempt);
  UpdateSlotsOf(holder->second.attempt);
}

void SchedulerState::Learn(const std::string& uid) {
  if (const auto job = fold_.FindWaiting(uid); job != nullptr) {
    queue_.Add(job);
    if (IsResizing(*job)) resized_.insert(uid);
  }
  const auto holder = fold_.holders().find(uid);
  if (holder == fold_.holders().end()) return;
  const JobState state = holder->second.job->state;
  if (state == JobState::kStarting) starting_.insert(uid);
  if (state == JobState::kRunning && IsElastic(*holder->second.job, holder->second.attempt)) {
    elastic_.insert(uid);
  }
  if (state == JobState::kSuspending || state == JobState::kCancelling) ending_.insert(uid);
  held_.Add(holder->second.attempt);
  held_by_projects_.Add(*holder->second.job, holder->second.attempt);
  UpdateSlotsOf(holder->second.attempt);
}

void SchedulerState::Fold(SnapshotChanges changes) {
  waiting_.clear();
  if (changes.whole) {
    queue_.Clear();
    held_.Clear();
    held_by_projects_.Clear();
    starting_.clear();
    ending_.clear();
    elastic_.clear();
    resized_.clear();
  }
  if (changes.whole || !changes.nodes.empty()) slots_.reset();
  std::set<std::string> touched(changes.gone.begin(), changes.gone.end());
  for (const JobRecord& job : changes.jobs) touched.insert(job.uid);
  if (!changes.whole) {
    for (const std::string& uid : touched) Forget(uid);
  }
  fold_.Fold(std::move(changes));
  queue_.SetLimits(fold_.slot_limits());
  for (const std::string& uid : touched) Learn(uid);
}

void SchedulerState::Judge(LeaseJudge& judge, absl::Duration now) {
  std::vector<NodeRecord*> nodes;
  for (auto& [name, node] : fold_.nodes()) nodes.push_back(&node);
  judge.Judge(now, fold_.now(), nodes);
}

void SchedulerState::Judge(StartJudge& judge, absl::Duration now) {
  std::vector<AttemptRecord*> starting;
  for (const std::string& uid : starting_) starting.push_back(fold_.FindAttempt(uid));
  judge.Judge(now, fold_.now(), starting);
}

bool SchedulerState::AnyLeaseIsOver() const {
  return std::any_of(fold_.nodes().begin(), fold_.nodes().end(), [this](const auto& node) {
    return node.second.reachable && node.second.lease_end <= now();
  });
}

// Made anew only when a node comes, goes or changes: a rank that comes or goes is marked in it.
const SlotTable& SchedulerState::Slots(const std::vector<const NodeRecord*>& nodes) {
  std::vector<bool> take_work;
  take_work.reserve(nodes.size());
  for (const NodeRecord* node : nodes) take_work.push_back(TakesWorkNow(*node, now()));
  if (!slots_.has_value() || take_work != take_work_) {
    slots_.emplace(nodes, held_, now());
    take_work_ = std::move(take_work);
  }
  return *slots_;
}

// What a pass has to look at. All running jobs only if a node gives its work away or is cordoned,
// or if one of them may show that the loss of its node has to be paid for (MayBeCharged); else
// those that start or end.
Cluster SchedulerState::ToLookAt() const {
  Cluster cluster;
  cluster.now = now();
  cluster.nodes.reserve(fold_.nodes().size());
  for (const auto& [name, node] : fold_.nodes()) cluster.nodes.push_back(&node);
  const bool all =
      std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [](const NodeRecord* node) {
        return (node->reachable && GivesWorkAway(*node)) || !CordonReason(*node).empty() ||
               MayBeCharged(*node);
      });
  const auto look_at = [&cluster](const SchedulerFold::Holder& holder) {
    cluster.running.push_back({holder.job.get(), &holder.attempt});
  };
  if (all) {
    for (const auto& [uid, holder] : fold_.holders()) look_at(holder);
  } else {
    std::set<std::string> some = starting_;
    some.insert(ending_.begin(), ending_.end());
    for (const std::string& uid : some) look_at(fold_.holders().at(uid));
  }
  for (const std::string& uid : elastic_) {
    const SchedulerFold::Holder& holder = fold_.holders().at(uid);
    cluster.elastic.push_back({holder.job.get(), &holder.attempt});
  }
  for (const std::string& uid : resized_) cluster.resized.push_back(fold_.FindWaiting(uid).get());
  std::sort(cluster.resized.begin(), cluster.resized.end(),
            [](const JobRecord* a, const JobRecord* b) { return RunsBefore(*a, *b); });
  cluster.find_job = [this](const std::string& uid) -> const JobRecord* {
    if (const auto waiting = fold_.FindWaiting(uid); waiting != nullptr) return waiting.get();
    const auto holder = fold_.holders().find(uid);
    return holder == fold_.holders().end() ? nullptr : holder->second.job.get();
  };
  return cluster;
}

// Jobs for which there are spare slots still, or anew.
void SchedulerState::NoteSpare(const std::vector<std::string>& uids) {
  std::map<std::string, absl::Time> since;
  for (const std::string& uid : uids) {
    const auto before = spare_since_.find(uid);
    since[uid] = before == spare_since_.end() ? now() : std::min(before->second, now());
  }
  spare_since_ = std::move(since);
}

Pass SchedulerState::Plan(const PlannerOptions& options) {
  Pass pass;
  waiting_.clear();
  for (const std::string& uid : elastic_) {
    const auto since = spare_since_.find(uid);
    fold_.FindAttempt(uid)->spare_since =
        since == spare_since_.end() ? absl::InfiniteFuture() : since->second;
  }
  const Cluster cluster = ToLookAt();
  if (!LookAtCluster(cluster, options, pass)) return pass;
  queue_.SetTime(now());
  SlotTable slots = Slots(cluster.nodes);
  for (const NodeCordon& cordon : pass.decisions.cordons) slots.SetAside(cordon.name);
  SlotLedger ledger(*fold_.slot_limits(), held_by_projects_);
  QueuePass(queue_, std::move(slots), std::move(ledger), cluster, options, pass, waiting_).Run();
  if (pass.spare.has_value()) NoteSpare(*pass.spare);
  return pass;
}

}  // namespace trainyard
