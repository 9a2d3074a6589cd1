#include "executor/engine/evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "executor/data/loader.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/fault.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kPrefetch = 2;  // batches
constexpr char kNothingCounts[] = "trainyard/nothing_counts";

}  // namespace

bool NothingCounts(const absl::Status& status) {
  return status.GetPayload(kNothingCounts).has_value();
}

Evaluator::Evaluator(Session& session, const data::Dataset& dataset, int64_t threads,
                     const Groups& groups)
    : session_(session),
      dataset_(dataset),
      threads_(threads),
      groups_(groups),
      gang_(groups_.data()) {
  if (!groups_.shards().alone()) shards_.emplace(session, groups_.shards());
}

absl::Status Evaluator::Tune() { return PrepareOnce(true); }

absl::Status Evaluator::PrepareOnce(bool tune) {
  if (!program_.empty()) return absl::OkStatus();
  const plan::Plan& plan = session_.plan();
  TY_ASSIGN_OR_RETURN(begin_, session_.Prepare(plan.evaluate_begin));
  TY_ASSIGN_OR_RETURN(kernels::Kernels program, session_.Prepare(plan.evaluate));
  if (shards_) program = shards_->WithExchanges(std::move(program), plan.evaluate_exchanges);
  if (across_ != nullptr) program = across_->WithGathers(program);
  for (int64_t i = 0; i < session_.BatchesInUse(); ++i) {
    InFlight& flight = flights_.emplace_back();
    flight.losses = session_.AllocateHost(plan.tensors[plan.eval_losses].bytes());
    flight.correct = session_.AllocateHost(plan.tensors[plan.eval_correct].bytes());
    if (plan.binary) flight.logits = session_.AllocateHost(plan.tensors[plan.eval_logits].bytes());
    flight.done = session_.MakeEvent();
  }
  if (tune) session_.Tune(begin_), session_.Tune(program);
  program_ = Program(std::move(program));
  return absl::OkStatus();
}

absl::Status Evaluator::Enqueue(data::Loader& loader, InFlight& flight) {
  const plan::Plan& plan = session_.plan();
  TY_RETURN_IF_ERROR(session_.WaitForRoom());
  const absl::StatusOr<data::Loader::Batch> batch = loader.Next();
  absl::Status loaded = WithDataFault(batch.status());
  // The ranks that share shards compute a batch together, or none of them does; those that share
  // parameters, a round of them.
  if (shards_) loaded = groups_.shards().Agree(loaded);
  if (across_ != nullptr) loaded = gang_.Agree(loaded);
  TY_RETURN_IF_ERROR(loaded);
  flight.targets = static_cast<const int32_t*>(batch->targets);
  session_.Upload({.input = plan.eval_input,
                   .ids = plan.eval_ids,
                   .target = plan.eval_target,
                   .inputs = batch->inputs,
                   .targets = batch->targets});
  const absl::Status ran = session_.Run(program_);
  if (shards_) TY_RETURN_IF_ERROR(shards_->status());  // which may be why it did not run
  if (across_ != nullptr) TY_RETURN_IF_ERROR(across_->Started());
  TY_RETURN_IF_ERROR(ran);
  const auto read = [&](plan::TensorId id, char* to) {
    session_.Read(id, to, plan.tensors[id].bytes());
  };
  read(plan.eval_losses, flight.losses.get());
  read(plan.eval_correct, flight.correct.get());
  if (plan.binary) read(plan.eval_logits, flight.logits.get());
  session_.RecordEvent(*flight.done);
  return absl::OkStatus();
}

absl::Status Evaluator::TakePart() {
  if (across_ == nullptr) return absl::OkStatus();
  TY_RETURN_IF_ERROR(gang_.Agree(absl::OkStatus()));
  return across_->GatherForOthers();
}

void Evaluator::Add(const Rows& rows, const data::Tokenizer* tokenizer, Sums& sums) const {
  const plan::Plan& plan = session_.plan();
  for (int64_t row = 0; row < plan.tensors[plan.eval_losses].elements(); ++row) {
    const int32_t target = rows.targets[row];
    if (target < 0) continue;
    sums.loss += rows.losses[row];
    sums.correct += rows.correct[row];
    if (tokenizer != nullptr) sums.text_bytes += tokenizer->BytesOf(target).size();
    if (plan.binary) sums.scored.push_back({.score = rows.logits[row], .click = target == 1});
    ++sums.rows;
  }
}

absl::Status Evaluator::Finish(int64_t round, int64_t batches, const absl::Status& enqueued,
                               const data::Tokenizer* tokenizer, Sums& sums) {
  const plan::Plan& plan = session_.plan();
  const InFlight& flight = FlightOf(round);
  const bool mine = Mine(round) < batches;
  const absl::Status done = enqueued.ok() && mine ? session_.Wait(*flight.done) : enqueued;
  TY_RETURN_IF_ERROR(gang_.Agree(done));
  const Rows own = {.losses = reinterpret_cast<const float*>(flight.losses.get()),
                    .correct = reinterpret_cast<const float*>(flight.correct.get()),
                    .logits = reinterpret_cast<const float*>(flight.logits.get()),
                    .targets = flight.targets};
  if (gang_.alone()) {
    Add(own, tokenizer, sums);
    return absl::OkStatus();
  }
  const int64_t n = plan.tensors[plan.eval_losses].elements();
  const int64_t bytes = 4 * n * (plan.binary ? 4 : 3);
  gathered_.resize(gang_.size() * bytes);
  std::vector<absl::Span<char>> parts;
  std::vector<Rows> rows;
  for (int rank = 0; rank < gang_.size(); ++rank) {
    char* const at = gathered_.data() + rank * bytes;
    parts.emplace_back(at, bytes);
    const auto* const values = reinterpret_cast<const float*>(at);
    rows.push_back({.losses = values + n,
                    .correct = values + 2 * n,
                    .logits = values + 3 * n,
                    .targets = reinterpret_cast<const int32_t*>(at)});
  }
  if (mine) {
    char* to = parts[gang_.rank()].data();
    for (const void* from :
         {static_cast<const void*>(own.targets), static_cast<const void*>(own.losses),
          static_cast<const void*>(own.correct),
          static_cast<const void*>(plan.binary ? own.logits : nullptr)}) {
      if (from != nullptr) memcpy(to, from, 4 * n);
      to += 4 * n;
    }
  }
  TY_RETURN_IF_ERROR(gang_.AllGather(parts));
  for (int rank = 0; rank < gang_.size(); ++rank) {
    if (round * gang_.size() + rank < batches) Add(rows[rank], tokenizer, sums);
  }
  return absl::OkStatus();
}

data::Loader& Evaluator::LoaderOf(int64_t samples) {
  const int64_t batch = session_.plan().evaluation_batch;
  if (loader_ != nullptr) {
    loader_->Restart(samples);
  } else {
    loader_ = std::make_unique<data::Loader>(
        dataset_, data::Loader::Options{
                      .batch_size = batch * gang_.size(),
                      .first_sample = batch * gang_.rank(),
                      .samples = batch,
                      .micro_batch = batch,
                      .prefetch = kPrefetch,
                      .threads = threads_,
                      .held_out = samples,
                      .in_use = session_.BatchesInUse(),
                      .allocate = [this](size_t bytes) { return session_.AllocateHost(bytes); }});
  }
  return *loader_;
}

absl::StatusOr<Evaluator::Sums> Evaluator::Evaluate(int64_t samples) {
  TY_RETURN_IF_ERROR(PrepareOnce(false));
  const plan::Plan& plan = session_.plan();

  // A masked model predicts only some of the tokens, which are no text: it has no bits per byte.
  const bool text = dataset_.facts().kind == plan::DataFacts::Kind::kTokens;
  const data::Tokenizer* const tokenizer = text ? dataset_.tokenizer() : nullptr;
  Sums sums;
  data::Loader& loader = LoaderOf(samples);
  // A device may still read batches when an evaluation fails.
  const absl::Cleanup drain = [&] { session_.Synchronize().IgnoreError(); };
  session_.Launch(begin_);
  const int64_t batches = (samples + plan.evaluation_batch - 1) / plan.evaluation_batch;
  const int64_t rounds = (batches + gang_.size() - 1) / gang_.size();
  const auto in_use = static_cast<int64_t>(flights_.size());
  absl::Status enqueued;
  for (int64_t round = 0; round < rounds + in_use; ++round) {
    if (round >= in_use) {
      TY_RETURN_IF_ERROR(Finish(round - in_use, batches, enqueued, tokenizer, sums));
    }
    if (!enqueued.ok() || round >= rounds) continue;
    enqueued = Mine(round) < batches ? Enqueue(loader, FlightOf(round)) : TakePart();
  }
  return sums;
}

absl::Status Evaluator::Try(int64_t max_samples) {
  int64_t samples =
      std::min<int64_t>(dataset_.size(data::Split::kValidation), session_.plan().evaluation_batch);
  if (max_samples > 0) samples = std::min(samples, max_samples);
  return Evaluate(samples).status();
}

absl::StatusOr<std::map<std::string, double>> Evaluator::Run(int64_t max_samples) {
  int64_t samples = dataset_.size(data::Split::kValidation);
  const int64_t all = samples;
  if (max_samples > 0) samples = std::min(samples, max_samples);
  if (samples == 0) return absl::FailedPreconditionError("the data has no held-out split");
  TY_ASSIGN_OR_RETURN(Sums sums, Evaluate(samples));
  const plan::Plan& plan = session_.plan();
  if (sums.rows == 0) {
    const std::string among =
        samples < all
            ? absl::StrCat("the first ", samples, " of ", all,
                           " held-out samples, all that spec.evaluation.max_samples leaves")
            : absl::StrCat("the ", all, " held-out samples");
    absl::Status nothing = absl::FailedPreconditionError(
        absl::StrCat("found no row that counts in ", among,
                     ": they are too short to be masked, or none of their images can "
                     "be read; use more, or other held-out data"));
    nothing.SetPayload(kNothingCounts, absl::Cord());
    return WithFault(Fault::kData, nothing);
  }
  const double mean = sums.loss / static_cast<double>(sums.rows);
  std::map<std::string, double> values = {
      {"loss", mean}, {"accuracy", sums.correct / static_cast<double>(sums.rows)}};
  if (plan.tokens) values["perplexity"] = std::exp(mean);
  if (sums.text_bytes > 0) {
    values["bits_per_byte"] = sums.loss / std::log(2.0) / static_cast<double>(sums.text_bytes);
  }
  if (plan.binary) {
    if (const auto auc = data::Auc(sums.scored)) values["auc"] = *auc;
    if (const auto best = dataset_.BestAuc(samples)) values["best_auc"] = *best;
  }
  return values;
}

}  // namespace trainyard::engine
