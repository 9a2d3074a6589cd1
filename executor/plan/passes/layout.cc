#include "executor/plan/passes/layout.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/passes/flights.h"
#include "executor/plan/passes/residual_norm.h"
#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/passes/shard_parameters.h"
#include "executor/plan/passes/share_gradients.h"
#include "executor/plan/passes/stages.h"

namespace trainyard::plan {

namespace {

// They lie as the parameters do, at half the distances. Returns the end.
int64_t PlaceCopies(int64_t end, Plan& plan) {
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    if (plan.copies[i] == kNone) continue;
    plan.offsets[plan.copies[i]] = end;
    end += BytesInRun(plan.tensors[plan.copies[i]]);
  }
  return Align(end);
}

// Those of each type side by side, as the parameters do in numbers of elements. Returns the end.
int64_t PlaceGradients(int64_t end, Plan& plan) {
  for (const ElementType type : {ElementType::kBF16, ElementType::kF32}) {
    for (const TensorId id : plan.gradients) {
      if (plan.tensors[id].type != type) continue;
      plan.offsets[id] = end;
      end += BytesInRun(plan.tensors[id]);
    }
    end = Align(end);
  }
  return end;
}

// What lies among the activations of a micro-batch for some of its ops.
std::vector<TensorRun> RunsInMicro(const Plan& plan) {
  std::vector<TensorRun> runs = GradientRuns(plan);
  for (TensorRun& run : ParameterRuns(plan)) runs.push_back(std::move(run));
  return runs;
}

// The most bytes that `runs` need at once.
int64_t PackedAlone(const std::vector<TensorRun>& runs, const Plan& plan) {
  std::vector<int64_t> offsets(plan.tensors.size());
  return PackActivations(plan.tensors, {}, {}, offsets, {}, runs);
}

// What stays of each micro-batch in flight, one behind the other. Returns the end.
int64_t PlaceFlights(const std::vector<int64_t>& stays, int64_t end, Plan& plan) {
  std::vector<int64_t> within(plan.tensors.size(), -1);
  plan.flight_bytes = PackFlight(FlightsIn(plan), plan.tensors, plan.micro, stays, within);
  for (size_t i = 0; i < within.size(); ++i) {
    if (within[i] >= 0) plan.offsets[i] = end + within[i];
  }
  return end + plan.in_flight.flights * plan.flight_bytes;
}

// What is uploaded of each, likewise, where it stays for all chunks.
int64_t PlaceBatches(const std::vector<int64_t>& stays, int64_t begin, Plan& plan) {
  std::vector<TensorId> ids;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i] == kForAllPasses) ids.push_back(static_cast<TensorId>(i));
  }
  plan.batch_bytes = PlaceInOrder(plan.tensors, ids, begin, plan.offsets) - begin;
  return begin + plan.in_flight.batches * plan.batch_bytes;
}

// Packs the activations of lists of ops that take turns.
class Activations {
 public:
  // `stays`: what has its place elsewhere.
  Activations(const std::vector<int64_t>& stays, Plan& plan)
      : plan_(plan),
        tensors_(PackedWhere(plan.tensors, stays, kForOnePass)),
        gradients_(plan.gradients_sharded ? plan.share_region : plan.gradient_region),
        within_(plan.tensors.size(), -1) {}

  // Returns the bytes beyond the gradients.
  int64_t Place() {
    const int64_t micro = Pack(plan_.micro, {}, GradientsInMicro(plan_), {}, RunsInMicro(plan_));
    const int64_t evaluation = PackEvaluation();
    const auto last = static_cast<int64_t>(plan_.end.size());
    const int64_t optimizer =
        Pack(plan_.end, {}, {{.bytes = gradients_.bytes, .first = -1, .last = last}});
    for (size_t i = 0; i < within_.size(); ++i) {
      if (within_[i] >= 0) plan_.offsets[i] = gradients_.offset + within_[i];
    }
    return std::max({int64_t{0}, micro, evaluation, optimizer});
  }

 private:
  // What is cast when an evaluation begins is there to its end.
  int64_t PackEvaluation() {
    std::vector<Op> ops = plan_.evaluate_begin;
    std::vector<TensorId> results = EvaluationResults(plan_);
    for (const Op& op : ops) results.push_back(std::get<Cast>(op).y);
    ops.insert(ops.end(), plan_.evaluate.begin(), plan_.evaluate.end());
    return Pack(ops, results, GradientsInEvaluation(plan_), GatheredIn(plan_, ops, within_));
  }

  // `of_gradients`: when which of their bytes are needed; `others`: what else has its place.
  int64_t Pack(const std::vector<Op>& ops, const std::vector<TensorId>& results,
               const std::vector<ReservedRange>& of_gradients,
               const std::vector<ReservedRange>& others = {},
               const std::vector<TensorRun>& runs = {}) {
    const int64_t gradients = gradients_.bytes;
    const auto pack = [&](std::vector<ReservedRange> reserved) {
      reserved.insert(reserved.end(), others.begin(), others.end());
      return PackActivations(tensors_, ops, results, within_, reserved, runs);
    };
    const int64_t alone = pack({});
    const int64_t end = pack(of_gradients);
    if (end - gradients <= alone) return end - gradients;
    const auto last = static_cast<int64_t>(ops.size());
    return pack({{.bytes = gradients, .first = -1, .last = last}}) - gradients;
  }

  Plan& plan_;
  const std::vector<Tensor> tensors_;
  const Region gradients_;       // of which activations may take what is not needed yet
  std::vector<int64_t> within_;  // offsets from their start; -1: not an activation
};

// But for what stays in flight.
int64_t BytesOfActivations(const Plan& plan) {
  std::vector<int64_t> offsets(plan.tensors.size());
  const std::vector<int64_t> stays = StaysInFlight(FlightsIn(plan), plan.tensors, plan.micro);
  const std::vector<Tensor> tensors = PackedWhere(plan.tensors, stays, kForOnePass);
  const auto packed = [&](const std::vector<Op>& ops, const std::vector<TensorId>& results) {
    return PackActivations(tensors, ops, results, offsets);
  };
  return std::max({packed(plan.micro, {}), packed(plan.evaluate, EvaluationResults(plan)),
                   packed(plan.end, {})});
}

// Copies that a step casts last from pass to pass, unless that takes more than gradients leave
// them, and to cast them twice takes less.
void LayOutWithCopies(const std::vector<TensorId>& scalars, const std::vector<StepCopy>& copies,
                      size_t forward, Plan& plan) {
  FindPasses(forward, plan);
  plan.activation_bytes = BytesOfActivations(plan);
  Plan before = plan;
  const auto lay_out = [&](bool again) {
    FindPasses(CastInStep(copies, forward, again, plan), plan);
    LayOut(scalars, plan);
  };
  lay_out(/*again=*/false);
  if (copies.empty() || plan.activation_region.bytes == 0) return;
  Plan once = std::exchange(plan, std::move(before));
  lay_out(/*again=*/true);
  if (plan.arena_bytes >= once.arena_bytes) plan = std::move(once);
}

}  // namespace

std::vector<TensorId> EvaluationResults(const Plan& plan) {
  if (plan.host.stages > 1) return {};  // which have places of their own
  std::vector<TensorId> results = {plan.eval_losses, plan.eval_correct};
  if (plan.eval_logits != kNone) results.insert(results.begin(), plan.eval_logits);
  return results;
}

void LayOut(const std::vector<TensorId>& scalars, Plan& plan) {
  plan.offsets.assign(plan.tensors.size(), 0);
  int64_t end = 0;
  const std::vector<TensorId> sums = {plan.loss_sum, plan.z_loss_sum, plan.target_count};
  const auto place = [&](std::vector<TensorId> ids) {
    ids.erase(std::remove(ids.begin(), ids.end(), kNone), ids.end());
    end = PlaceInOrder(plan.tensors, ids, end, plan.offsets);
  };
  const auto region = [&](auto&& fill) {
    const int64_t begin = end;
    fill();
    return Region{.offset = begin, .bytes = end - begin};
  };
  plan.parameter_region = region([&] {
    const auto shared_out = plan.parameters_sharded ? plan.shared_out() : size_t{0};
    place({plan.parameters.begin() + shared_out, plan.parameters.end()});
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      plan.offsets[plan.parameters[plan.gradients.size() + t]] = kNoPlace;
    }
  });
  plan.weight_region = region([&] {
    for (const OwnedRun& run : plan.owned) place({run.weights});
    for (const OwnedRun& rows : plan.owned_rows) place({rows.weights});
  });
  plan.copy_region = region([&] { end = PlaceCopies(end, plan); });
  plan.optimizer_region = region([&] {
    const int64_t begin = end;
    for (const std::vector<TensorId>& kind : plan.optimizer_state) place(kind);
    if (plan.sharded) plan.whole_state_bytes = end - begin;
    for (const OwnedRun& run : plan.owned) place(run.state);
    for (size_t kind = 0; kind < plan.optimizer_state_names.size(); ++kind) {
      for (const OwnedRun& rows : plan.owned_rows) place({rows.state[kind]});  // as the tables lie
    }
  });
  plan.ema_region = region([&] { place(plan.averages); });
  plan.buffer_region = region([&] { place(plan.buffers); });
  plan.pending_region = region([&] { place(plan.pending); });
  plan.moments_region = region([&] { place({plan.moments}); });
  plan.scalar_region = region([&] {
    std::vector<TensorId> others = scalars;
    std::erase_if(others, [&](TensorId id) { return absl::c_linear_search(sums, id); });
    place(others);
  });
  plan.unread_region = region([&] { place(plan.unread); });
  plan.leaves_region = region([&] {
    place({plan.leaves});
    place(plan.received);
  });
  plan.rows_region = region([&] { place({plan.row_gradient, plan.row_ids}); });
  const std::vector<int64_t> stays = StaysInFlight(FlightsIn(plan), plan.tensors, plan.micro);
  plan.flight_region = region([&] { end = PlaceFlights(stays, end, plan); });
  plan.batch_region = region([&] { end = PlaceBatches(stays, end, plan); });
  plan.partial_region = region([&] {
    for (size_t p = plan.partial_sums.size(); p > 0; --p) {
      place({plan.partial_sums[p - 1].sums, plan.partial_sums[p - 1].gradients});
    }
  });
  plan.sums_region = region([&] { place(sums); });
  plan.share_region = region([&] {
    std::vector<TensorId> shares;
    for (const GradientShare& share : plan.gradient_shares) shares.push_back(share.sum);
    const int64_t begin = end;
    place(shares);
    end = begin + plan.share_places * plan.share_bytes;
  });
  plan.gradient_region = region([&] {
    if (!plan.gradients_sharded) end = PlaceGradients(end, plan);
  });
  plan.activation_region = region([&] { end += Activations(stays, plan).Place(); });
  if (plan.gradients_sharded) plan.exchanged_gradient_bytes = PackedAlone(GradientRuns(plan), plan);
  plan.gathered_parameter_bytes = PackedAlone(ParameterRuns(plan), plan);
  for (const Alias& alias : plan.aliases) {
    plan.offsets[alias.tensor] = plan.offsets[alias.of] + alias.offset;
  }
  plan.arena_bytes = end;
}

void LayOutSmallest(const std::vector<TensorId>& scalars, const std::vector<StepCopy>& copies,
                    size_t forward, Plan& plan) {
  const Plan before = plan;
  LayOutWithCopies(scalars, copies, forward, plan);
  size_t tried = 0;
  for (const ResidualNorms which : {ResidualNorms::kAll, ResidualNorms::kWithoutMore}) {
    Plan joined = before;
    const JoinedNorms in_micro =
        JoinResidualNorms(which, joined.tensors, {}, forward, joined.micro);
    const JoinedNorms in_evaluation = JoinResidualNorms(
        which, joined.tensors, EvaluationResults(joined), joined.evaluate.size(), joined.evaluate);
    const size_t count = in_micro.count + in_evaluation.count;
    if (count == std::exchange(tried, count) || count == 0) return;
    if (in_micro.count > 0) {
      v1::PassSummary& pass = *joined.summary.add_passes();
      pass.set_name("residual_norm");
      pass.set_ops_before(static_cast<int32_t>(before.micro.size()));
      pass.set_ops_after(static_cast<int32_t>(joined.micro.size()));
    }
    LayOutWithCopies(scalars, copies, forward - in_micro.in_forward, joined);
    if (joined.activation_bytes > plan.activation_bytes || joined.arena_bytes > plan.arena_bytes) {
      continue;
    }
    if (in_micro.count > 0) {
      v1::PassSummary& pass = *joined.summary.mutable_passes()->rbegin();
      pass.set_bytes_before(plan.activation_bytes);
      pass.set_bytes_after(joined.activation_bytes);
    }
    plan = std::move(joined);
    return;
  }
}

}  // namespace trainyard::plan
