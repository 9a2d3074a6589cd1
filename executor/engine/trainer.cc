#include "executor/engine/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/checkpoint/layout.h"
#include "executor/engine/fault.h"
#include "executor/engine/initialize.h"
#include "executor/engine/load_weights.h"
#include "executor/engine/look_ups.h"
#include "executor/engine/restore_tensors.h"
#include "executor/plan/spec/learning_rate.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// Below this scale steps are no longer skipped: a loss that overflows fp16 in the forward pass does
// so at any scale.
constexpr float kLowestLossScale = 0x1p-24f;

// Among plan.folds[p]: that of losses and targets; the others are those of gradients.
constexpr size_t kFoldOfSums = 0;

std::vector<StepPart> PartsOf(const Session& session, const Gang& gang) {
  const plan::Plan& plan = session.plan();
  const plan::LeafRange run = plan::HostedBy(plan.logical_ranks, gang.size(), gang.rank());
  if (plan.gradients_sharded) return PartsInTurn(run.size(), session.Asynchronous());
  return StepParts(plan.logical_ranks, run, plan.micro_batches);
}

// Where the moments of each micro-batch of the step are kept, by its number among those of all
// logical ranks: those of a rank side by side, by rank.
std::vector<int64_t> PlacesOfMoments(const plan::Plan& plan, int64_t ranks) {
  std::vector<int64_t> next;  // by rank
  for (int64_t rank = 0; rank < ranks; ++rank) {
    next.push_back(plan::HostedBy(plan.logical_ranks, ranks, rank).first * plan.micro_batches);
  }
  std::vector<int64_t> places;
  for (const int64_t rank : HostsOf(plan, ranks)) {
    for (int64_t i = 0; i < plan.micro_batches; ++i) places.push_back(next[rank]++);
  }
  return places;
}

}  // namespace

Trainer::Trainer(Session& session, const v1::JobSpec& spec, const Groups& groups)
    : session_(session), groups_(groups), spec_(spec), parts_(PartsOf(session, groups.data())) {
  const plan::Plan& plan = session.plan();
  const Gang& data = groups.data();
  for (const int64_t logical : HostedRanks(plan, data.size(), data.rank())) {
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      micro_batches_.push_back(logical * plan.micro_batches + i);
    }
  }
  places_of_moments_ = PlacesOfMoments(plan, data.size());
  if (plan.sharded) shares_.emplace(session, data);
  if (!groups.shards().alone() || plan.state_by_parameter()) {
    hosted_.emplace(session, groups, shares_ ? &*shares_ : nullptr);
  }
  for (InFlight& flight : flights_) {
    flight = {.states = session.AllocateHost(micro_batches() * sizeof(kernels::StepState)),
              .scalars = session.AllocateHost(plan.scalar_region.bytes + plan.sums_region.bytes),
              .done = session.MakeEvent()};
  }
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Session& session, const v1::JobSpec& spec,
                                                         const Groups& groups) {
  std::unique_ptr<Trainer> trainer(new Trainer(session, spec, groups));
  TY_RETURN_IF_ERROR(trainer->Prepare());
  // Optimizer state starts at zero, and kernels that sweep a region read its padding.
  TY_RETURN_IF_ERROR(session.Zero({.offset = 0, .bytes = session.plan().arena_bytes}));
  return trainer;
}

absl::Status Trainer::Prepare() {
  const plan::Plan& plan = session_.plan();
  if (groups_.all().links() != nullptr) session_.WaitBy(*groups_.all().links());
  if (!groups_.data().alone()) {
    TY_ASSIGN_OR_RETURN(across_, AcrossRanks::Make(session_, groups_.data()));
  }
  if (!groups_.shards().alone()) {
    ShardsAcrossRanks::InOrder in_order;
    const bool by_hosts = groups_.shards().links() == nullptr;
    if (across_ && by_hosts)
      in_order = [this](const auto& exchange) { return across_->InOrder(exchange); };
    shards_.emplace(session_, groups_.shards(), std::move(in_order));
  }
  const auto with_exchanges = [this](const std::vector<plan::ShardExchange>& exchanges,
                                     int64_t partial, kernels::Kernels& kernels) {
    if (!shards_) return;
    kernels = shards_->WithExchanges(std::move(kernels), exchanges, {.partial = partial});
  };
  TY_ASSIGN_OR_RETURN(copy_, session_.Prepare(plan.copy));
  TY_ASSIGN_OR_RETURN(begin_, session_.Prepare(plan.begin));
  int64_t places = 0;
  for (const StepPart& part : parts_) places = std::max(places, part.partial + 1);
  for (int64_t partial = 0; partial < places; ++partial) {
    TY_ASSIGN_OR_RETURN(zero_.emplace_back(), session_.Prepare(plan.zero, {.partial = partial}));
    TY_ASSIGN_OR_RETURN(micro_.emplace_back(), session_.Prepare(plan.micro, {.partial = partial}));
    with_exchanges(plan.micro_exchanges, partial, micro_.back());
    if (partial == 0) continue;
    TY_ASSIGN_OR_RETURN(folds_.emplace_back(), session_.Prepare(plan.folds[partial - 1]));
  }
  TY_ASSIGN_OR_RETURN(clear_padding_, session_.Prepare(plan.clear_padding));
  TY_ASSIGN_OR_RETURN(norm_leaves_, session_.Prepare(plan.norm_leaves));
  TY_ASSIGN_OR_RETURN(norm_, session_.Prepare(plan.norm));
  with_exchanges(plan.norm_exchanges, 0, norm_);
  TY_ASSIGN_OR_RETURN(end_, session_.Prepare(plan.end));
  if (!plan.tables.empty()) end_.insert(end_.begin(), OwnRowsAlone(session_));
  TY_ASSIGN_OR_RETURN(gathered_, session_.Prepare(plan.gathered));
  TY_ASSIGN_OR_RETURN(move_buffers_, session_.Prepare(plan.move_buffers));
  if (plan.host.stages > 1) {
    TY_ASSIGN_OR_RETURN(stage_, Stage::Create(session_, *shards_, micro_, parts_));
  }
  session_.Tune(begin_);
  for (const kernels::Kernels& micro : micro_) session_.Tune(micro);
  session_.Tune(norm_);
  session_.Tune(end_);
  for (const StepPart& part : parts_) {
    if (stage_) break;  // which has its own
    Program& program = programs_[part];
    if (program.empty()) program = MakeProgram(part);
  }
  kernels::Kernels end = norm_;
  end.insert(end.end(), end_.begin(), end_.end());
  end_of_gang_ = Program(std::move(end));
  return absl::OkStatus();
}

Program Trainer::MakeProgram(const StepPart& part) {
  kernels::Kernels kernels;
  const auto append = [&](const kernels::Kernels& more) {
    kernels.insert(kernels.end(), more.begin(), more.end());
  };
  if (part.begins_step) append(begin_);
  if (part.begins_logical_rank) append(zero_[part.partial]);
  kernels::Kernels micro = micro_[part.partial];
  if (part.begins_step && across_) micro = across_->WithArrivals(micro);
  append(part.meets ? across_->WithExchanges(micro, part) : micro);
  for (int64_t fold = 0; fold < part.folds; ++fold) {
    const kernels::Kernels& of_all = folds_[part.partial - 1 - fold];
    // Of gradients that are exchanged already, each bucket was folded before it was.
    append(part.meets ? kernels::Kernels{of_all[kFoldOfSums]} : of_all);
  }
  if (part.ends_step) append(norm_), append(end_);
  return Program(std::move(kernels));
}

absl::Status Trainer::Initialize() {
  steps_done_ = enqueued_ = next_micro_batch_ = 0;
  updating_ = can_finish_ = ungathered_ = false;
  loss_scale_.reset();
  if (session_.plan().loss_scaling) {
    loss_scale_ = {.scale = static_cast<float>(spec_.precision().loss_scale().initial())};
  }
  TY_RETURN_IF_ERROR(session_.Zero(session_.plan().optimizer_region));
  if (spec_.fine_tune().from().empty()) {
    TY_RETURN_IF_ERROR(InitializeModel(session_, spec_.training().seed()));
  } else {
    TY_ASSIGN_OR_RETURN(loaded_, LoadWeights(session_, spec_));
  }
  return TakeParameters();
}

absl::Status Trainer::TakeParameters() {
  const plan::Plan& plan = session_.plan();
  TY_RETURN_IF_ERROR(session_.Zero(plan.ema_region));  // averages of 0 become the weights exactly
  TY_ASSIGN_OR_RETURN(const kernels::Kernels start, session_.Prepare(plan.start));
  session_.Launch(copy_);
  session_.Launch(start);
  return session_.Synchronize();
}

absl::Status Trainer::Restore(const Checkpoint& checkpoint) {
  TY_RETURN_IF_ERROR(RestoreTensors(checkpoint, session_));
  if (session_.plan().loss_scaling && !checkpoint.run.loss_scale) {
    return absl::DataLossError(absl::StrCat(checkpoint.uri, "/", kStateFile, ": no loss_scale"));
  }
  steps_done_ = enqueued_ = checkpoint.step;
  next_micro_batch_ = 0;
  updating_ = can_finish_ = ungathered_ = false;
  loss_scale_ = checkpoint.run.loss_scale;
  session_.Launch(copy_);
  return absl::OkStatus();
}

absl::Status Trainer::Load(const BatchSource& next, int64_t step, int64_t i,
                           const plan::Instance& place) {
  const plan::Plan& plan = session_.plan();
  TY_RETURN_IF_ERROR(session_.WaitForRoom());
  const absl::StatusOr<data::Loader::Batch> loaded = next();
  if (!loaded.ok()) return WithDataFault(loaded.status());
  const data::Loader::Batch& batch = *loaded;
  TY_CHECK(batch.step == step, "micro-batch of step ", batch.step, " in step ", step);
  const double rate = plan::LearningRate(spec_.schedule(), step, plan.total_steps);
  const kernels::StepState state = {.seed = spec_.training().seed(),
                                    .step = step,
                                    .first_sample = batch.first_sample,
                                    .learning_rate = static_cast<float>(rate),
                                    .loss_scale = loss_scale_ ? loss_scale_->scale : 1,
                                    .updates = UpdatesOf(step)};
  char* const kept = FlightOf(step).states.get() + i * sizeof(state);
  memcpy(kept, &state, sizeof(state));
  session_.Upload({.state = plan.state,
                   .input = plan.input,
                   .ids = plan.ids,
                   .target = plan.target,
                   .of_state = kept,
                   .inputs = batch.inputs,
                   .targets = batch.targets,
                   .place = place});
  return absl::OkStatus();
}

StepResult Trainer::ReadResult(const InFlight& flight) const {
  const plan::Plan& plan = session_.plan();
  const auto scalar = [&](plan::TensorId id, auto value) {
    const int64_t at = plan.offsets[id] >= plan.sums_region.offset
                           ? plan.offsets[id] - plan.sums_region.offset + plan.scalar_region.bytes
                           : plan.offsets[id] - plan.scalar_region.offset;
    memcpy(&value, flight.scalars.get() + at, sizeof(value));
    return static_cast<double>(value);
  };
  const double targets = std::max(1.0, scalar(plan.target_count, double{}));
  StepResult result;
  result.loss = scalar(plan.loss_sum, double{}) / targets;
  if (plan.z_loss_sum != plan::kNone) {
    result.z_loss = scalar(plan.z_loss_sum, double{}) / targets;
  }
  result.grad_norm = scalar(plan.grad_norm, float{});
  result.learning_rate = plan::LearningRate(spec_.schedule(), steps_done_, plan.total_steps);
  result.finite = !std::isnan(scalar(plan.grad_scale, float{}));
  return result;
}

void Trainer::ClearRejectedStep() {
  const float scale = 0;
  session_.Write(session_.plan().grad_scale, &scale, sizeof(scale));
}

absl::StatusOr<StepResult> Trainer::Step(const BatchSource& next) {
  TY_RETURN_IF_ERROR(Enqueue(next));
  return Finish();
}

absl::Status Trainer::Enqueue(const BatchSource& next) {
  TY_CHECK(on_their_way() == 0, on_their_way(), " steps on their way");
  return EnqueueTo(micro_batches(), next);
}

absl::Status Trainer::EnqueueAhead(const BatchSource& next) {
  TY_CHECK(CanGoAhead() && on_their_way() == 1, on_their_way(), " steps on their way");
  const plan::Plan& plan = session_.plan();
  const int64_t ranks = groups_.data().size();
  int64_t ahead = PartsAhead(plan.logical_ranks, ranks, plan.micro_batches, micro_batches(),
                             session_.BatchesInUse());
  // Where each part has exchanges, all ranks enqueue as many, or the whole step.
  if (plan.gradients_sharded && ahead < micro_batches()) {
    ahead = std::min(ahead, plan.logical_ranks / ranks - 1);
  }
  // The passes of a stage are in an order of their own.
  if (stage_ && ahead < micro_batches()) return absl::OkStatus();
  return EnqueueTo(ahead, next);
}

absl::Status Trainer::EnqueueTo(int64_t end, const BatchSource& next) {
  const plan::Plan& plan = session_.plan();
  if (shards_ && next_micro_batch_ == 0) shards_->BeginStep();
  if (next_micro_batch_ < end) TY_RETURN_IF_ERROR(GatherParameters());
  if (stage_) {
    TY_RETURN_IF_ERROR(RunStage(next));
    next_micro_batch_ = end;
  }
  for (; next_micro_batch_ < end; ++next_micro_batch_) {
    TY_RETURN_IF_ERROR(Load(next, enqueued_, next_micro_batch_));
    const absl::Status ran = session_.Run(programs_.at(parts_[next_micro_batch_]));
    if (shards_) TY_RETURN_IF_ERROR(shards_->status());
    if (across_) TY_RETURN_IF_ERROR(across_->Started());  // which may be why it did not run
    TY_RETURN_IF_ERROR(ran);
    if (move_buffers_.empty()) continue;
    session_.Copy(plan.pending_region.offset, MomentsOf(micro_batches_[next_micro_batch_]),
                  plan.pending_region.bytes);
  }
  if (next_micro_batch_ < micro_batches()) return absl::OkStatus();
  if (across_ || stage_) TY_RETURN_IF_ERROR(EndOfGang());
  return EndStep();
}

absl::Status Trainer::EndStep() {
  const plan::Plan& plan = session_.plan();
  if (shards_) {
    shards_->EndStep();
    TY_RETURN_IF_ERROR(shards_->status());
  }
  if (!move_buffers_.empty()) MoveBuffers();
  const InFlight& flight = FlightOf(enqueued_);
  session_.ReadRegion(plan.scalar_region, flight.scalars.get());
  session_.ReadRegion(plan.sums_region, flight.scalars.get() + plan.scalar_region.bytes);
  session_.RecordEvent(*flight.done);
  ++enqueued_;
  next_micro_batch_ = 0;
  return absl::OkStatus();
}

absl::Status Trainer::Await(absl::FunctionRef<absl::Status()> exchange) {
  const absl::Time begun = absl::Now();
  const absl::Status exchanged = exchange();
  waited_ += absl::Now() - begun;
  return exchanged;
}

// Averages, and copies in 16 bits that a step keeps, are made of all parameters at once, and with
// what is uploaded for the step that stepped them. Ranks that share a logical rank exchange within
// its first layer, behind all that is on the lane.
absl::Status Trainer::GatherParameters() {
  if (shards_ || !session_.plan().gathered.empty()) return AwaitParameters();
  if (!std::exchange(ungathered_, false)) return absl::OkStatus();
  return across_->GatherParameters();
}

absl::Status Trainer::AwaitParameters() {
  if (!ungathered_) return absl::OkStatus();
  TY_RETURN_IF_ERROR(Await([&] {
    const absl::Status begun = across_->GatherParameters();
    return begun.ok() ? across_->AwaitParameters() : begun;
  }));
  session_.Launch(gathered_);
  ungathered_ = false;
  return absl::OkStatus();
}

absl::Status Trainer::RunStage(const BatchSource& next) {
  const auto launch = [this](const kernels::Kernels& kernels, const plan::Run& some) {
    for (int64_t k = some.first; k < some.end; ++k) session_.Launch(kernels[k]);
  };
  const auto launch_folds = [&](int64_t i, const plan::StageChunk& chunk) {
    for (int64_t fold = 0; fold < parts_[i].folds; ++fold) {
      launch(folds_[parts_[i].partial - 1 - fold], chunk.fold);
    }
  };
  return stage_->Run(
      {.load = [&](int64_t i,
                   const plan::Instance& place) { return Load(next, enqueued_, i, place); },
       .resume =
           [this](int64_t i) {
             const char* const states = FlightOf(enqueued_).states.get();
             constexpr size_t kBytes = sizeof(kernels::StepState);
             session_.Write(session_.plan().state, states + i * kBytes, kBytes);
           },
       .before_sums =
           [&](int64_t i, const plan::StageChunk& chunk) {
             if (parts_[i].begins_logical_rank) launch(zero_[parts_[i].partial], chunk.zero);
           },
       .after_sums = launch_folds});
}

absl::Status Trainer::Drain() {
  enqueued_ = steps_done_;
  next_micro_batch_ = 0;
  return session_.Synchronize();
}

absl::StatusOr<StepResult> Trainer::Finish() {
  TY_CHECK(on_their_way() > 0, "no step is on its way");
  const InFlight& flight = FlightOf(steps_done_);
  TY_RETURN_IF_ERROR(session_.Wait(*flight.done));
  StepResult result = ReadResult(flight);
  if (loss_scale_) {
    const LossScale after =
        AfterStep(*loss_scale_, result.finite, spec_.precision().loss_scale().growth_interval());
    result.skipped = !result.finite && after.scale >= kLowestLossScale;
    if (result.finite || result.skipped) loss_scale_ = after;
  }
  if (result.finite || result.skipped) ++steps_done_;
  updating_ = false;
  if (!result.finite) {
    ungathered_ = false;  // no rank changed anything
    TY_RETURN_IF_ERROR(Drain());
    ClearRejectedStep();
  }
  return result;
}

bool Trainer::HasItsState() const {
  const bool hosts_a_part = stage_ || shards_ || hosted_;
  return !hosts_a_part && !session_.Asynchronous() && !updating_ && on_their_way() == 0;
}

absl::Status Trainer::CopyTo(Snapshot& snapshot) {
  const plan::Plan& plan = session_.plan();
  TY_CHECK(on_their_way() == 0, on_their_way(), " steps on their way");
  TY_CHECK(!ungathered_, "parameters are not awaited after step ", steps_done_);
  const Snapshot::Room room = snapshot.Own();
  session_.ReadRegion(plan.parameter_region, room.parameters);
  plan::Region here = plan.optimizer_region;
  if (shares_) here.bytes = plan.whole_state_bytes;
  session_.ReadRegion(here, room.optimizer);
  session_.ReadRegion(plan.ema_region, room.averages);
  session_.ReadRegion(plan.buffer_region, room.buffers);
  snapshot.SetBatches(UpdatesOf(steps_done_) * plan.micro_batches * plan.logical_ranks);
  if (shares_ && !plan.state_by_parameter()) {
    TY_RETURN_IF_ERROR(snapshot.ReadStateInto(room, StateOfRanks()));
  }
  if (hosted_) TY_RETURN_IF_ERROR(snapshot.ReadElsewhere(ShardsOfRanks()));
  return session_.Synchronize();
}

absl::Status Trainer::LendTo(Snapshot& snapshot) {
  const plan::Plan& plan = session_.plan();
  const Snapshot::Places places = {.parameters = session_.HostView(plan.parameter_region),
                                   .optimizer = session_.HostView(plan.optimizer_region),
                                   .averages = session_.HostView(plan.ema_region),
                                   .buffers = session_.HostView(plan.buffer_region)};
  if (places.parameters == nullptr) return CopyTo(snapshot);
  TY_CHECK(!ungathered_, "parameters are not awaited after step ", steps_done_);
  snapshot.Borrow(places, hosted_ ? ShardsOfRanks() : nullptr);
  if (shares_ && !plan.state_by_parameter()) snapshot.BorrowState(StateOfRanks());
  snapshot.SetBatches(UpdatesOf(steps_done_) * plan.micro_batches * plan.logical_ranks);
  return session_.Synchronize();
}

Snapshot::ReadState Trainer::StateOfRanks() {
  return [this](int64_t what, int64_t first, absl::Span<float> to) {
    return shares_->Read(what, first, to);
  };
}

Snapshot::ReadShard Trainer::ShardsOfRanks() {
  return [this](int64_t what, size_t position, int64_t first, absl::Span<float> to) {
    return hosted_->Read(what, position, first, to);
  };
}

absl::Status Trainer::ServeState() {
  // Those of the first group read what others have of their own shares for rank 0.
  if (groups_.data().rank() != 0) return shares_ ? shares_->Serve() : absl::OkStatus();
  if (hosted_) TY_RETURN_IF_ERROR(groups_.all().leads() ? hosted_->End() : hosted_->Serve());
  return shares_ ? shares_->End() : absl::OkStatus();
}

}  // namespace trainyard::engine
