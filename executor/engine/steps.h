#pragma once

// The steps of a run whose parts are all in place: trains, evaluates, saves, and decides when that
// is enough and what becomes of a step that is not finite.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/engine/checkpoint/checkpoint_writer.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/gang.h"
#include "executor/engine/rank_times.h"
#include "executor/engine/run.h"
#include "executor/engine/survivors.h"
#include "executor/engine/trainer.h"

namespace trainyard::engine {

// How a loader delivers the micro-batches of `spec` that this rank takes to `device`, from the step
// after `steps_done` on.
data::Loader::Options LoaderOptions(kernels::Device& device, const v1::JobSpec& spec,
                                    const plan::Plan& plan, const Gang& gang, int64_t threads,
                                    int64_t steps_done, const std::vector<data::Skip>& skips);

// Whether and when to evaluate.
struct EvaluationTimes {
  int64_t every = 0;
  bool at_end = false;
};

// Every rank of a gang makes the same steps and decisions; rank 0 reports and saves, and when the
// gang breaks the others may do so, too (LeaveAfterLoss).
class Steps {
 public:
  // All must outlive the Steps. `run` is the RunState that was saved with the trainer's state.
  struct Parts {
    kernels::Device& device;
    const Gang& gang;
    const Gang& data_gang;  // of its ranks: those that share out the logical ranks
    const v1::JobSpec& spec;
    const data::Dataset& dataset;
    const plan::Plan& plan;
    EvaluationTimes evaluation;
    Trainer& trainer;
    Evaluator& evaluator;
    data::Loader& loader;
    ObjectStore& store;
    CheckpointWriter& checkpoints;
    RunObserver& observer;
    std::string checkpoint_root;
    int64_t loader_threads = 1;
    // If the run goes on from a state that no checkpoint holds: what an evaluation of it found, if
    // there was one.
    std::optional<std::map<std::string, double>> from_memory;
    std::function<std::optional<RoomForState>()> room_for_state;  // as RunRequest has it
    absl::Duration keep_patience;                                 // likewise
    absl::Duration loss_patience;                                 // likewise
    decltype(RunRequest::meet_survivors) meet_survivors;          // likewise
  };
  Steps(const Parts& parts, RunState run);

  // As engine::Run. RolledBack(status): the newest checkpoint is where the run is to go on.
  absl::StatusOr<RunResult> Run(const std::atomic<bool>& stop);

  // After Run has failed with the fault kGang, `why`, with Parallel.second_owner: leaves the state
  // in memory, if this rank is to do so and can, and if it is asked to in time: by itself if it has
  // all of it, or else with the other ranks that are left.
  void LeaveAfterLoss(const absl::Status& why);

 private:
  int64_t done() const { return p_.trainer.steps_done(); }
  // Why the run is over although steps are left, or "".
  std::string StoppedEarly() const;
  bool Over() const { return done() >= p_.plan.total_steps || !StoppedEarly().empty(); }

  bool RollsBack() const { return p_.spec.training().on_non_finite() == v1::Training::ROLL_BACK; }

  absl::Status TrainOnce();
  // Returns the result of the next step; enqueues the one behind it first, if that is allowed.
  absl::StatusOr<StepResult> NextResult();
  bool EvaluatesAfter(int64_t step) const;
  bool SavesAfter(int64_t step) const;  // even if it is neither the last nor among the best
  // Whether a batch of the held-out split is tried: after the first step of an attempt, so that
  // what is wrong with that data is found before hours of training.
  bool TriesAfter(int64_t step) const;
  // Whether early stopping or the best checkpoints depend on evaluations.
  bool PoliciesNeedEvaluation() const;
  // Whether the next step follows step `step` at once: no evaluation, checkpoint or stop comes
  // between.
  bool NextStepFollowsAtOnce(int64_t step) const;
  // The metrics of a step that took so long, and of that waited for data.
  std::map<std::string, double> Measure(const StepResult& result, absl::Duration took,
                                        absl::Duration waited) const;
  // Rank 0 reports what was measured after the newest step; the others do nothing.
  absl::Status Tell(RunObserver::Split split, const std::map<std::string, double>& values);
  // Whether train metrics are reported after step `step`.
  bool ReportsAfter(int64_t step) const;
  // What this rank asks all ranks for before the next step, as bits.
  uint8_t Wishes(bool stop) const;
  // Where this rank is to leave the state in memory, if it was told to.
  std::optional<RoomForState> Room() const;
  // What all ranks measured since it was called last, at rank 0; it tells of a straggler. Every
  // rank calls it after the same steps.
  absl::StatusOr<std::map<std::string, double>> ReportRanks();
  // Passes on the warnings of the data set since the last call.
  absl::Status Warn();
  absl::Status CountSkipped();
  // Evaluates, and updates what the policies go by. Returns whether the step is among the best.
  absl::StatusOr<bool> Evaluate();
  // As Evaluate, but before it fails it writes a checkpoint from which the job can be resumed. It
  // is only a warning that no sample of the held-out split counts, unless PoliciesNeedEvaluation.
  absl::StatusOr<bool> EvaluateAndKeepWeights();
  absl::Status TryEvaluation();
  // Reverts run_.best to what it was before its newest entry, if the checkpoint of that could not
  // be written: it must name only checkpoints that exist.
  absl::Status RevertUnwrittenBest();
  // The value of the metric that `policy`, which is the spec's field `field`, goes by. Fault kData:
  // that metric is not defined on the held-out split.
  template <typename Policy>
  absl::StatusOr<Score> ScoreOf(const Policy& policy, const std::string& field,
                                const std::map<std::string, double>& values) const;
  // Rank 0 writes; every rank makes the same calls, since each has a share of what is written.
  absl::Status Save(const CheckpointWriter::Purpose& purpose);
  // What goes into a checkpoint beside the tensors.
  CheckpointContent Content() const;
  // Rank 0: with the optimizer state of `state` where it is sharded; null: that of all ranks.
  absl::Status SaveAndServe(const CheckpointWriter::Purpose& purpose);
  // Waits until rank 0 has written all, having saved once more or not; returns on every rank how
  // that went.
  absl::Status SaveNow(const CheckpointWriter::Purpose& purpose);
  absl::Status AwaitSaved();
  absl::StatusOr<RunResult> Suspend(bool nothing_new);
  // Leaves the state in memory, on all ranks or none; false: nobody asked for that, or it cannot
  // be.
  absl::StatusOr<bool> KeepState();
  absl::Status LeaveAlone(const absl::Status& why);
  // Where each rank has a share of the state: one of those that are left leaves all of it, the
  // others serve theirs. Whether this is the one.
  absl::StatusOr<bool> LeaveTogether(RoomForState room);
  // Meets room.survivors, or those that this rank is told of since.
  struct Met {
    std::unique_ptr<Communicator> links;  // null if this rank alone is left
    std::vector<Remains> remains;         // by rank of `links`
  };
  absl::StatusOr<Met> MeetSurvivors(RoomForState& room);
  absl::Status PackInto(const RoomForState& room);
  // Why a rank whose gang broke has nothing to leave; "": it has.
  std::string NothingToLeave() const;
  // Whether rank 0 has written the checkpoint of the newest entry of run_.best.
  bool BestIsWritten() const;
  // Keeps for LeaveAlone what rank 0 is to report: rank 0 until it has, the others the newest.
  void Remember(RunObserver::Split split, const std::map<std::string, double>& values);

  // Handles the step after done(), which was not finite: fails or rolls back, as
  // training.on_non_finite says.
  absl::Status NotFinite(const StepResult& result);
  // All ranks go back, since each may have a part of the state alone, and rank 0 writes what they
  // have gone back to; every rank returns how that went.
  absl::Status RollBack(const std::string& what);
  // Rank 0: to what the run goes back after `what`; none: to its start. Fails once all rollbacks
  // are used up.
  absl::Status FindTarget(const std::string& what, std::optional<Checkpoint>& target);
  // Draws the weights, or reads them, as before the first step.
  absl::Status BeginAnew();
  // To the checkpoint of `step`, which rank 0 has opened, or to the start.
  absl::Status GoBackTo(int64_t step, std::optional<Checkpoint>& target);
  // Rank 0, after `failed` steps, while the others serve their state. Writes the checkpoint that
  // the run has gone back to anew, with the data to leave out: whoever goes on from it needs to
  // know nothing else, and a rollback that is repeated gives the same.
  absl::Status WriteAnew(const std::string& what, const std::optional<Checkpoint>& target,
                         int64_t failed);
  // The newest whole checkpoint that a rollback may go back to, if any.
  absl::StatusOr<std::optional<Checkpoint>> RollbackTarget();

  const Parts p_;
  RunState run_;
  std::map<std::string, double> metrics_;  // finite ones of the last evaluation
  int64_t evaluated_step_ = -1;
  struct Begun {
    absl::Time at;
    absl::Duration waited;     // the loader's waited() at that time
    absl::Duration for_ranks;  // the trainer's
  };
  Begun begun_;  // when the step in flight began: when the one before was done, or else when it was
                 // enqueued
  absl::Time broke_;            // when this rank knew that its gang broke
  StepTimes times_;             // of a gang
  bool reports_ranks_ = false;  // after the next step
  absl::Time ranks_reported_ = absl::InfinitePast();
  StragglerWatch stragglers_;
  bool stopping_ = false;
  uint8_t wishes_ = 0;                              // of all ranks, before the newest step
  absl::Time keep_asked_ = absl::InfiniteFuture();  // when a rank was first told to keep the state
  bool keep_failed_ = false;                        // it is not tried again
  int64_t first_step_ = 0;                          // of this attempt
  bool evaluation_due_ = false;  // the one that follows the newest step is not complete
  struct Measured {
    int64_t step = 0;
    RunObserver::Split split;
    std::map<std::string, double> values;
  };
  std::deque<Measured> measured_;  // what Remember keeps
  int64_t forgotten_ = 0;          // of steps up to this one it has dropped some
  bool off_course_ = false;        // a step was not finite, and ranks may differ in what they have
  absl::Status failed_ahead_;      // the failure of EnqueueAhead, which the next step returns
  struct Entered {
    int64_t step = 0;
    std::vector<Score> before;  // run_.best without it
  };
  std::optional<Entered> entered_;  // newest entry of run_.best; its checkpoint may not be written
};

}  // namespace trainyard::engine
