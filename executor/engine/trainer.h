#pragma once

// Trains: one optimizer step after the other.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/data/loader.h"
#include "executor/engine/across_ranks.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/checkpoint/snapshot.h"
#include "executor/engine/gang.h"
#include "executor/engine/groups.h"
#include "executor/engine/hosted_state.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/loss_scale.h"
#include "executor/engine/session.h"
#include "executor/engine/sharded_state.h"
#include "executor/engine/shards_across_ranks.h"
#include "executor/engine/stage.h"
#include "executor/engine/step_parts.h"
#include "kernels/step_state.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::engine {

class NonFiniteSearch;

// What a step did.
struct StepResult {
  double loss = 0;    // mean over the targets of the global batch that count; 0 when none does
  double z_loss = 0;  // the part of it that training.z_loss adds
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping, without the loss scale
  bool finite = true;    // loss and norm are; if not, the step was not taken
  // With fp16: they are not finite, which the loss scale may have caused. The step counts as done
  // but changed no parameter, optimizer state or buffer, and the loss scale is smaller from then
  // on.
  bool skipped = false;
};

// Delivers micro-batches in order (data::Loader::Next); each stays valid until
// Session::BatchesInUse more were asked for.
using BatchSource = std::function<absl::StatusOr<data::Loader::Batch>()>;

// The state of training lives in the session's arena. Everything is a function of the spec, the
// data and the steps done: a trainer restored from a checkpoint goes on with the same bits.
// Thread-compatible.
class Trainer {
 public:
  // Zeroes the arena and prepares the step. `spec` must come from ResolveSpec. `groups`: the ranks
  // that share its logical ranks and their shards, each with a trainer of its own.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Session& session, const v1::JobSpec& spec,
                                                         const Groups& groups = Gang());
  // Waits until the device reads and writes no host memory any more.
  ~Trainer() { session_.Synchronize().IgnoreError(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Step 0: draws the parameters from the seed, or reads them from fine_tune.from.
  absl::Status Initialize();

  // What Initialize read, if anything.
  const std::optional<LoadedWeights>& loaded() const { return loaded_; }

  // Recomputes what is made from the parameters: their copies in 16 bits, and the averages, which
  // become equal to them. Initialize does this; call it after writing other parameters into the
  // session, and where parameters are sharded, after ParameterShares::Keep.
  absl::Status TakeParameters();

  // The state of `checkpoint`, read straight into the arena; kDataLoss when a tensor does not fit.
  absl::Status Restore(const Checkpoint& checkpoint);

  // Steps whose result was seen.
  int64_t steps_done() const { return steps_done_; }
  // The loss scale after the last step; only with fp16.
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }

  // One step. When loss or gradient norm are not finite it is not taken: steps done, parameters,
  // optimizer state and buffers are as before. With fp16 it is skipped instead (see StepResult),
  // until the scale is so low that it cannot be what makes them overflow. Enqueue and Finish in
  // one.
  absl::StatusOr<StepResult> Step(const BatchSource& next);

  // Enqueues the next step, or what EnqueueAhead left of it.
  absl::Status Enqueue(const BatchSource& next);
  // Only if CanGoAhead: enqueues the first micro-batches of the step behind the one in flight, so
  // that the device has work at hand when that one is done. A step behind one that is not taken is
  // not taken either. Waits at most until the one in flight is almost done.
  absl::Status EnqueueAhead(const BatchSource& next);
  // Waits for the oldest step in flight. If it is not taken, no step is left in flight.
  absl::StatusOr<StepResult> Finish();
  // What goes between the ranks of a gang that shares out logical ranks.
  AcrossRanks& across() { return *across_; }
  // How long it has waited for other ranks in its steps so far, and added up what came from them.
  absl::Duration waited() const {
    return waited_ + (across_ ? across_->waited() : absl::ZeroDuration()) +
           (shards_ ? shards_->waited() : absl::ZeroDuration());
  }
  int64_t on_their_way() const { return enqueued_ - steps_done_; }
  // After a failure: whether what this rank has of the state, all of it if nothing is sharded, is
  // that after steps_done(). On a device that computes while the host goes on that is not known.
  bool HasItsState() const;
  // After a failure, of a gang that shards its state: whether this rank can make the next step once
  // it has the norm. It has told the others what it has of that. Since a rank makes a step only
  // after all others have told it this, every rank that is left can make a step that any rank has
  // made.
  bool CanFinishStep() const { return can_finish_; }

  // After a failure, of a gang that shards its state: those of its ranks go on that are left, so
  // that CopyTo, LendTo and ServeState read from these what they have after step `step`. A rank
  // that is a step behind makes it, and returns its result. If that is not finite, no rank takes
  // the step, and steps_done() stays. All survivors call it. ranks[i]: the number that rank i of
  // `left` had in the gang that broke. What `left` stands for must stay until the last call of
  // those three.
  absl::StatusOr<std::optional<StepResult>> GoOnAmong(const Gang& left,
                                                      const std::vector<int64_t>& ranks,
                                                      int64_t step);
  // Whether anything is enqueued whose result Finish has not returned.
  bool busy() const { return on_their_way() > 0 || next_micro_batch_ > 0; }
  // Whether one step may be enqueued behind another: not with fp16, where the loss scale is known
  // only once the step before is done.
  bool CanGoAhead() const { return session_.Asynchronous() && !loss_scale_; }

  // Of a gang that shards the optimizer's state each rank steps a part of the parameters. Unless
  // this was called before, the next step gathers them while its forward pass runs. Every rank
  // calls it at the same places, before anything but a step reads parameters, what is made from
  // them, or averages.
  absl::Status AwaitParameters();

  // Called after a step that was not taken: runs it again, up to the update, from the same
  // micro-batches (`next` delivers them anew), and names the first value that is not finite. ""
  // when there is none this time: a step always gives the same bits, so the machine is at fault.
  absl::StatusOr<std::string> FindNonFinite(const BatchSource& next);

  // Copies parameters, which must be awaited, optimizer state, averages and buffers to the host.
  // What is sharded, or hosted by others, is read from all ranks, which must ServeState.
  absl::Status CopyTo(Snapshot& snapshot);

  // As CopyTo, but without a copy where the host can read the device's memory. No step may be made
  // while `snapshot` is read.
  absl::Status LendTo(Snapshot& snapshot);

  // Every rank calls it at the same places, after rank 0 was to copy or lend what all of them have:
  // the others hand out their share until rank 0 calls it. Does nothing if every rank has all.
  absl::Status ServeState();

 private:
  Trainer(Session& session, const v1::JobSpec& spec, const Groups& groups);

  // Host memory that belongs to a step in flight.
  struct InFlight {
    std::shared_ptr<char[]> states;   // kernels::StepState per micro-batch
    std::shared_ptr<char[]> scalars;  // the plan's scalar region after the step, then its sums
    std::unique_ptr<kernels::Event> done;
  };
  InFlight& FlightOf(int64_t step) { return flights_[step % flights_.size()]; }

  // Micro-batches of this rank per step.
  int64_t micro_batches() const { return static_cast<int64_t>(parts_.size()); }
  // Prepares the kernels of every part of the step.
  absl::Status Prepare();
  // Enqueues more of step enqueued_, up to but not including micro-batch `end`.
  absl::Status EnqueueTo(int64_t end, const BatchSource& next);
  // Starts to gather what every rank stepped of the parameters, if that is still to be done.
  absl::Status GatherParameters();
  // Calls what waits for other ranks, and counts how long that took.
  absl::Status Await(absl::FunctionRef<absl::Status()> exchange);
  // Only of a gang: once the sums of all ranks are added up, makes the step that they make
  // together.
  absl::Status EndOfGang();
  // Of that, the norm with its exchanges, and the update.
  absl::Status RunEnd();
  // What is left of step enqueued_ once it is made.
  absl::Status EndStep();
  // Where the moments of micro-batch `i` of the step, counted over all logical ranks, are kept.
  int64_t MomentsOf(int64_t i) const {
    const plan::Plan& plan = session_.plan();
    return plan.moments_region.offset + places_of_moments_[i] * plan.pending_region.bytes;
  }
  // The rows of tables that each logical rank has looked up, and their gradients, go to all ranks,
  // which step the tables alike.
  absl::Status GatherRows();
  // The moments of all micro-batches of the step go to all ranks. Each moves its buffers by them.
  absl::Status GatherMoments();
  void MoveBuffers();
  // Waits for the device and forgets the steps in flight.
  absl::Status Drain();
  absl::StatusOr<std::string> Search(const BatchSource& next);
  // Uploads the next micro-batch, number `i` of step `step`, to the place that it has in flight.
  absl::Status Load(const BatchSource& next, int64_t step, int64_t i,
                    const plan::Instance& place = {});
  // Of a stage of a pipeline: all of a step up to its update.
  absl::Status RunStage(const BatchSource& next);
  StepResult ReadResult(const InFlight& flight) const;
  // Read what is sharded, or hosted, from the ranks that have it.
  Snapshot::ReadState StateOfRanks();
  Snapshot::ReadShard ShardsOfRanks();
  Program MakeProgram(const StepPart& part);
  // Called by Search: runs what goes with micro-batch `i`.
  absl::Status SearchPart(int64_t i, const BatchSource& next, NonFiniteSearch& search);
  // Called after a step that was not taken: lets the device take steps again.
  void ClearRejectedStep();
  // How many of the first `steps` steps changed the weights.
  int64_t UpdatesOf(int64_t steps) const {
    return steps - (loss_scale_ ? loss_scale_->skipped : 0);
  }

  Session& session_;
  Groups groups_;
  const v1::JobSpec spec_;
  const std::vector<StepPart> parts_;        // by micro-batch
  std::vector<int64_t> micro_batches_;       // their numbers among those of all logical ranks
  std::vector<int64_t> places_of_moments_;   // by such a number
  std::unique_ptr<AcrossRanks> across_;      // of a gang that shares out logical ranks
  std::optional<ShardsAcrossRanks> shards_;  // of a gang of which several ranks share each of these
  std::unique_ptr<Stage> stage_;             // of a pipeline
  std::optional<ShardedState> shares_;       // of a gang whose optimizer state is sharded
  std::optional<HostedState> hosted_;        // where several share each logical rank, or state is
                                             // found by parameter
  kernels::Kernels copy_, begin_, clear_padding_, norm_leaves_, norm_, end_, gathered_,
      move_buffers_;
  std::vector<kernels::Kernels> zero_, micro_;  // by partial sum
  std::vector<kernels::Kernels> folds_;         // as plan::Plan::folds
  std::map<StepPart, Program> programs_;
  Program end_of_gang_;  // norm and end
  std::array<InFlight, 2> flights_;
  absl::Duration waited_;
  int64_t steps_done_ = 0, enqueued_ = 0;
  int64_t next_micro_batch_ = 0;         // of step enqueued_
  bool updating_ = false;                // a step has begun to change the state
  bool can_finish_ = false;              // as CanFinishStep
  bool ungathered_ = false;              // what this rank has not stepped of the parameters is old
  std::optional<LossScale> loss_scale_;  // with fp16
  std::optional<LoadedWeights> loaded_;  // with fine_tune.from
};

}  // namespace trainyard::engine
