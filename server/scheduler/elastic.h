#pragma once

// Jobs that run on any number of slots within a range: what a pass gives them beyond their minimum,
// and what it takes back for jobs that wait. Pure.
//
// A resize ends an attempt and begins another, which costs a start, and perhaps a checkpoint. So a
// job that waits is served by as few resizes as can be, and a job grows only after slots have been
// of use to nobody else for a while, seldom, and where it has run for long against what a start
// takes.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/scheduler/pass_steps.h"
#include "server/scheduler/planner.h"
#include "server/scheduler/slot_limits.h"
#include "server/scheduler/slots.h"

namespace trainyard {

// Below so many it does not run.
int LeastSlots(const JobRecord& job);

// How many of `slots` make the job faster than fewer would: the rank that hosts most logical ranks
// sets the pace. Whole steps of the job (slot_step).
int UsefulSlots(const JobRecord& job, int slots);

// Whether the slots of a running job may change: it has more or fewer than it should or could, or
// is to share its work out among them in another layout.
bool IsElastic(const JobRecord& job, const AttemptRecord& attempt);

// From when on a running job may take slots that nobody else can use: they have been there for
// PlannerOptions::grow_after, and the job has run so long, and ten times as long as its start took;
// and it has grown less than PlannerOptions::most_growths times in the last hour.
absl::Time MayGrowFrom(const JobRecord& job, const AttemptRecord& attempt, absl::Time now,
                       const PlannerOptions& options);

// Ranks of a job are on nodes that give their work away.
struct GivenAway {
  std::set<std::string> nodes;  // all that do
  std::string why;              // "nodes/a is drained"
  absl::Duration grace;         // for what the ranks have to save
  bool leaves = false;          // one of them goes for good
};

// The gang of a RUNNING job without these ranks of its; nothing: too few would stay, or it should
// write a checkpoint first. Nodes that leave often leave together, and those that would keep its
// state in memory may be the next.
std::optional<Resize> StayElsewhere(const JobRecord& job, const AttemptRecord& attempt,
                                    const GivenAway& given);

class Elastic {
 public:
  // `slots` without what this pass sets aside; they, `ledger` and `pass` outlive this. Takes the
  // slots that are kept for resizes under way, places the jobs whose gangs have left, and shrinks
  // those that have more than they should.
  Elastic(const Cluster& cluster, const PlannerOptions& options, SlotTable& slots,
          SlotLedger& ledger, Pass& pass);

  // Whether the waiting job got the slots that were kept for it.
  bool Placed(const JobRecord& job) const { return placed_.count(job.uid) > 0; }

  // The pass gives the job, whose placement is the last, these slots.
  void Took(const JobRecord& job, const std::vector<Placement::Rank>& ranks);

  // `job` waits for its least number of slots: whether they come free without further ado, or
  // because running jobs of no higher priority have more than their least, and give them up.
  bool MakeRoom(const JobRecord& job);

  // `job` waits because its project may hold no more slots, and lacks so many: whether they come
  // free of themselves, or because running jobs of its project, of no higher priority, have more
  // than their least, and give them up.
  bool MakeRoomInLimit(const JobRecord& job, int missing);

  // Gives what no waiting job could use to jobs that the pass has placed, and to running ones. Only
  // after the whole queue.
  void GiveOut();

 private:
  struct Gang {
    const JobRecord* job = nullptr;
    const AttemptRecord* attempt = nullptr;
    std::vector<Placement::Rank> ranks;  // as decided so far
    std::optional<size_t> decision;      // among the resizes of the pass
    std::string first;                   // for whom it shrinks
    int others = 0;                      // for how many more
  };
  // Whether it runs in the layout that its job is to have.
  static bool IsLaidOut(const Gang& gang) { return gang.attempt->layout == gang.job->layout; }
  struct Gift {
    Gang* gang = nullptr;
    std::vector<size_t> ranks;  // that could go, the best to go first
    int serve = 0;              // so many of them, the first, have slots of use to whom it is for
  };

  void KeepForResizes(const Cluster& cluster);
  void TakeWhatIsTooMuch(Gang& gang);
  // Whether the rank of a gang may go on where it is with what its job needs now.
  bool MayStay(const SlotDemand& demand, const Placement::Rank& rank) const;
  void ChangeLayout(Gang& gang);
  void PlaceResized(const Cluster& cluster);
  void FindGangs(const Cluster& cluster);
  void LookAhead(const Cluster& cluster);
  void FindWhatLeaves(const Cluster& cluster);
  // That `gang` shrinks for `job`, too, which is told with the others for whom it does.
  void DecideFor(Gang& gang, const JobRecord& job);
  Gift ThatCouldGo(Gang& gang, const SlotDemand& demand, const SlotTable::Pool& pool) const;
  bool MakeRoomIn(const SlotTable::Pool& pool, const SlotTable::Counts& counts,
                  const SlotDemand& demand, const JobRecord& job);
  void Drop(Gang& gang, std::vector<size_t> ranks);
  void Decide(Gang& gang, bool grows, std::string why);
  // How many slots the gang may have in all, by the limit of its project.
  int MostOf(const Gang& gang) const;
  void Grow(Gang& gang);
  void MoveWhole(Gang& gang, const SlotDemand& demand);

  const absl::Time now_;
  const PlannerOptions& options_;
  SlotTable& slots_;
  SlotLedger& ledger_;
  Pass& pass_;
  std::vector<Gang> gangs_;  // that run, in the order of RunsBefore
  // The slots once all ranks that are leaving have left; of these, jobs that wait take theirs in
  // turn. Only while a gang could shrink.
  std::optional<SlotTable> ahead_;
  std::map<std::string, int> leaving_;  // slots that come free, by project; less those waited for
  std::set<std::string> placed_;
  struct Start {
    size_t placement = 0;  // among those of the pass
    const JobRecord* job = nullptr;
  };
  std::vector<Start> starts_;  // that could take more
};

}  // namespace trainyard
