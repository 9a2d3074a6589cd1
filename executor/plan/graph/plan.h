#pragma once

// The compiled training step as a value: every kernel and every byte, known before step 0.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/plan/graph/graph.h"
#include "executor/plan/graph/pipeline.h"
#include "executor/plan/graph/shares.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

inline constexpr int64_t kNoPlace = -1;

// A run of bytes in the arena.
struct Region {
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t end() const { return offset + bytes; }
};

// A place for a partial sum, as two tensors: f64, with the padding between the sums, and f32, all
// gradients with theirs.
struct PartialSum {
  TensorId sums = kNone, gradients = kNone;
};

// A tensor that is a run of another one, or of those that lie behind it.
struct Alias {
  TensorId tensor = kNone, of = kNone;
  int64_t offset = 0;  // bytes from the start of `of`
};

// Parameters that this rank steps: a run that one rule of the optimizer treats alike.
struct OwnedRun {
  ElementRange elements;
  std::vector<TensorId> state;  // by kind, as Plan::optimizer_state, of these elements
  TensorId weights = kNone;     // where parameters are sharded: these elements of them
};

// Where gradients are sharded: what this rank keeps of the sum of a bucket, its slice and the rest
// of the leaf of the norm that begins in it last.
struct GradientShare {
  ElementRange elements;
  TensorId sum = kNone;
};

// Which of the `ranks` ranks that share a logical rank: `stages` stages of as many ranks, which
// share the shards of the stage's layers. A stage has one chunk of the layers, or several.
struct ShardHost {
  int64_t rank = 0, ranks = 1;
  int64_t stages = 1, chunks = 1;

  int64_t in_stage() const { return ranks / stages; }  // ranks that share shards
  int64_t stage() const { return rank / in_stage(); }
  int64_t place() const { return rank % in_stage(); }  // among the ranks of the stage
  Pipeline pipeline() const { return {.stages = stages, .chunks = chunks}; }
  // Of the ranks at the same place of the stages, the one whose stage has the piece behind those
  // of this rank, and the one before them.
  int64_t after() const { return (rank + in_stage()) % ranks; }
  int64_t before() const { return (rank + ranks - in_stage()) % ranks; }

  // Of a stage's ranks, which all have what is no shard, the first counts as its host.
  int64_t HostOf(const Tensor& parameter) const {
    const int64_t place = parameter.shard ? parameter.shard->HostOf(in_stage()) : 0;
    return pipeline().stage_of(parameter.piece) * in_stage() + place;
  }
  bool hosts(const Tensor& parameter) const {
    if (pipeline().stage_of(parameter.piece) != stage()) return false;
    return !parameter.shard || parameter.shard->HostOf(in_stage()) == place();
  }
  // Whether some ranks may have a part of it, or none.
  bool Divides(const Tensor& parameter) const { return parameter.shard || stages > 1; }
};

// Before an op, or after the last: each of these tensors goes from the rank that makes it
// (Tensor::made_by) to the others of `ranks`.
struct ShardExchange {
  int64_t before_op = 0;
  std::vector<TensorId> tensors;
  std::vector<int64_t> ranks = {};  // none: all that share a logical rank
  // Where rows are shared out among `ranks` (passes/share_rows.h), and this rank sends some: which
  // of them each has. Of what it makes, a rank sends to another the rows of that one; where it is
  // to gather all rows, it sends the only tensor, its own rows, to the others, and is sent theirs
  // into `gathered`.
  std::vector<Run> rows = {};
  TensorId gathered = kNone;
};

// What goes to and from a piece of a pipeline in a micro-batch; kNone at the ends of the pipeline.
struct StageLinks {
  TensorId from_before = kNone, to_after = kNone;  // activations
  TensorId from_after = kNone, to_before = kNone;  // their gradients
};

// A chunk of the layers of a stage of a pipeline. Runs of ops:
struct StageChunk {
  StageLinks links;
  Run forward, backward;  // of Plan::micro; of the last piece, which makes both at once, the first
  Run zero, fold;         // of Plan::zero, and of each of Plan::folds: what is of its gradients
};

// Of a tensor that has several places, the one that is worked on: which partial sum, which of what
// a stage keeps of micro-batches in flight, and which of what is uploaded of these.
struct Instance {
  int64_t partial = 0, flight = 0, batch = 0;
  friend auto operator<=>(const Instance&, const Instance&) = default;
};

// Where parameters are sharded: one exchange of a bucket of them, for some ops of a list.
struct Gather {
  size_t bucket = 0;         // of Plan::buckets
  int64_t start_before = 0;  // the op before which the exchange begins
  OpRange read;              // from the first op that reads them, and so waits, to the last

  // When their memory is theirs.
  OpRange live() const { return {start_before, read.last}; }
};

// Where tables are shared out: what the ids of a batch name of them comes from the ranks that have
// it.
struct LookUp {
  TensorId ids = kNone;    // i32 [batch, tables]
  TensorId rows = kNone;   // f32 [batch, tables, width]; kNone: nothing is looked up so
  int64_t read_first = 0;  // the op that reads them first
  int64_t was_before = 0;  // the op before which the look-up stood in a list that has one
};

struct Plan {
  std::vector<Tensor> tensors;
  std::vector<Alias> aliases;
  // By TensorId, into one arena; of kAlignment, of copies and gradients in 16 bits half of it. A
  // table that is shared out has kNoPlace: what a rank has of it is in owned_rows.
  std::vector<int64_t> offsets;

  // Parameters are contiguous in one order (those that the optimizer treats alike side by side, of
  // these those with a gradient in 16 bits first, then those with a copy; then tables whose
  // gradient is kept by row, then frozen ones); copies, gradients of one type, optimizer state and
  // averages follow the same order, so that optimizer ops run over whole regions. Where they are
  // sharded (parameters_sharded), a rank keeps of the trained ones what it owns, in that order.
  std::vector<TensorId> parameters;  // in arena order
  size_t trained = 0;                // how many are not frozen
  // Where several ranks share each logical rank: what this one hosts is in `parameters`; these are
  // those of all of them, in the same order, and how many are trained.
  ShardHost host;
  std::vector<TensorId> of_group;
  size_t trained_of_group = 0;
  // In 16 bits, by position; kNone: the parameter has none, or one that a step casts for itself.
  std::vector<TensorId> copies;
  // By position, fp32 or, of passes/narrow_gradients.h, bf16; tables kept by row and frozen ones
  // have none.
  std::vector<TensorId> gradients;
  // Per kind, by position; kNone: the parameter has no state of this kind.
  std::vector<std::vector<TensorId>> optimizer_state;
  // Of those of the whole group, by place in of_group: whether there is any, whoever has it.
  std::vector<std::vector<bool>> has_state;
  std::vector<std::string> optimizer_state_names;  // "momentum_buffer", "exp_avg", "exp_avg_sq"
  std::vector<TensorId> averages;  // with training.ema_decay, by position; frozen ones have none
  std::vector<Adapter> adapters;   // of low-rank adaptation; `evaluate` takes them too
  // How many ranks, or groups of ranks that share logical ranks, the logical ranks are shared out
  // among, and how these share out the dense gradients: of a job of one rank no buckets.
  int64_t data_ranks = 1;
  std::vector<Bucket> buckets;
  // Where the optimizer's state is sharded: what rank `rank` steps. Then optimizer_state is kNone
  // but for tables kept by row that are not shared out, and the state lies in these.
  bool sharded = false;
  // Whether each rank is given the sums of all gradients that it hosts, and not of its slices
  // alone: where nothing is sharded, and where the norm is one of shards (passes/norm_of_shards.h),
  // which is made of whole gradients.
  bool sums_for_all = true;
  // Whether whoever writes a checkpoint reads the state of each parameter by itself, from the ranks
  // that host the parameter and have shares of its state; else shares are read by element.
  bool state_by_parameter() const { return sharded && sums_for_all; }
  // Where the gradients are sharded too, those of a logical rank, of which a step has one
  // micro-batch, are no longer than it takes to hand them out: `gradients` lie among the
  // activations, those of a bucket side by side, from the first op that touches one of them until
  // the bucket is exchanged (passes/bucket_order.h). What a rank keeps of the sums is here, by
  // bucket. Sums that wait for their sibling in the tree lie in as many more places, number p (from
  // 1) at p * share_bytes.
  bool gradients_sharded = false;
  std::vector<GradientShare> gradient_shares;
  int64_t share_bytes = 0;
  int64_t share_places = 0;
  int64_t exchanged_gradient_bytes = 0;  // of gradients that are not handed out yet, at most
  std::vector<Op> clear_padding;         // in gradient_shares: after a step's sums, before its norm
  // Where the parameters that are trained are sharded too, a rank keeps those that it steps alone
  // (OwnedRun::weights). All of a bucket lie side by side among the activations while ops read them
  // (passes/shard_parameters.h): so much of it at once, in a micro-batch.
  bool parameters_sharded = false;
  int64_t gathered_parameter_bytes = 0;
  std::vector<Gather> micro_gathers, evaluate_gathers;  // in the order in which they begin
  // So are tables that are kept by row: each rank has some rows of every one, with their state, and
  // steps these alone. By table: which elements those are of each rank, counted on behind the dense
  // gradients (of what pads a table nobody has any), and what this rank has of it.
  std::vector<Bucket> tables;
  std::vector<OwnedRun> owned_rows;
  LookUp micro_look_up, evaluate_look_up;
  // How many of `parameters`, from the first on, are shared out by element: those with a gradient,
  // and such tables.
  size_t shared_out() const { return tables.empty() ? gradients.size() : trained; }
  // What this rank has of the table `id`; null: that is no table that is shared out.
  const OwnedRun* RowsOf(TensorId id) const {
    for (size_t t = 0; t < owned_rows.size(); ++t) {
      if (parameters[gradients.size() + t] == id) return &owned_rows[t];
    }
    return nullptr;
  }
  int64_t owners = 1;             // at least, of each slice of what is sharded (CutBuckets)
  int64_t most_weight_bytes = 0;  // of OwnedRun::weights, of the rank that has most
  int64_t all_weight_bytes = 0;   // of these, of all ranks, each once
  int64_t rank = 0;
  std::vector<OwnedRun> owned;
  int64_t most_optimizer_bytes = 0;  // of these, of the rank that has most
  int64_t all_optimizer_bytes = 0;   // of these, of all ranks, each once
  int64_t whole_state_bytes = 0;   // then, at the start of optimizer_region: of tables kept by row
  TensorId leaves = kNone;         // f64 [leaves of the norm of the dense gradients]
  std::vector<TensorId> received;  // of gradients that several shards have: those of other ranks
  // Of tables kept by row, over the samples of all logical ranks: f32 [samples, tables, width], and
  // their rows, i32 [samples, tables]; after a step these are distinct or -1, and where tables are
  // shared out counted from the first that this rank has, or -1.
  TensorId row_gradient = kNone, row_ids = kNone;
  std::vector<TensorId> buffers;  // in order of the forward pass
  // By position. Of one logical rank: what a step makes of the buffers before it is taken. Of
  // several: what one micro-batch says of them (its means and variances), of which all of the step
  // are kept in `moments`, by micro-batch: they move the buffers in that order, whoever found them.
  std::vector<TensorId> pending;
  TensorId moments = kNone;  // f32 [micro-batches of all logical ranks, all of `pending`]
  // Where parameters are sharded, parameter_region has those that are not trained alone, and
  // weight_region what this rank keeps of the others.
  Region parameter_region, weight_region, copy_region, optimizer_region, ema_region, buffer_region,
      pending_region, moments_region, scalar_region, unread_region, leaves_region, rows_region,
      partial_region, share_region;
  // Of a stage of a pipeline: what the backward pass of a micro-batch, or a neighbour, still needs
  // of its forward pass, for each of the micro-batches of which that is so at once (where there are
  // several chunks, of each of these: what they keep begins at the same place). Number f lies at
  // f * flight_bytes from the first. Where there are several chunks, what is uploaded of a
  // micro-batch is kept until the last of them is done with it.
  Region flight_region, batch_region;
  int64_t flight_bytes = 0, batch_bytes = 0;
  MostInFlight in_flight;
  // loss_sum, z_loss_sum and target_count, and right behind them the gradients (where these are
  // sharded: share_region, and no gradients).
  Region sums_region, gradient_region;
  // Both together are a partial sum of the step: of one logical rank, or of several that were added
  // up. Those that wait for their sibling in the tree (fold_tree.h) are kept in as many more
  // places, number p (from 1) at -p * partial_bytes() from the regions above, which are number 0.
  // There the step's sum is in the end.
  std::vector<PartialSum> partial_sums;  // number p is [p - 1]
  int64_t partial_bytes() const { return sums_region.bytes + gradient_region.bytes; }
  // Of the parameters of all ranks together.
  int64_t whole_parameter_bytes() const { return parameter_region.bytes + all_weight_bytes; }
  // Of the state of all ranks together, but for what is found by parameter (BytesElsewhere).
  int64_t whole_optimizer_bytes() const {
    if (state_by_parameter()) return 0;
    return sharded ? whole_state_bytes + all_optimizer_bytes : optimizer_region.bytes;
  }
  // Where a tensor is.
  int64_t offset(TensorId id, const Instance& of) const {
    const int64_t at = offsets[id];
    if (at >= flight_region.offset && at < flight_region.offset + flight_bytes) {
      return at + of.flight * flight_bytes;
    }
    if (at >= batch_region.offset && at < batch_region.offset + batch_bytes) {
      return at + of.batch * batch_bytes;
    }
    const bool in_partial = at >= sums_region.offset && at < gradient_region.end();
    return in_partial ? at - of.partial * partial_bytes() : at;
  }
  // What activations and copies of weights that do not outlive a step need beyond the gradients, in
  // whose memory they lie where they can.
  Region activation_region;
  int64_t activation_bytes = 0;  // what activations would need apart from gradients
  int64_t step_copy_bytes = 0;   // of those copies
  int64_t arena_bytes =
      0;  // the end of the last region; every byte below is used by some tensor or its padding

  // Writes the copies: after parameters were set other than by `end`.
  std::vector<Op> copy;
  // Once, when the parameters are what training starts from: the averages become them.
  std::vector<Op> start;

  // One optimizer step: begin; for each logical rank zero, then `micro_batches` times micro, then
  // what the tree says of folds; then norm, end and, for several logical ranks, move_buffers. Where
  // it is sharded: norm_leaves, then the ranks exchange leaves (neither if sums_for_all), norm,
  // end, then they exchange what they stepped of the parameters, at once or, if gathered is empty,
  // while the next step's micro reads them (passes/bucket_order.h), gathered. What follows norm
  // alone changes parameters, their copies, optimizer state, averages and buffers: and none of them
  // when the loss or the norm is not finite (grad_scale).
  std::vector<Op> begin;               // takes buffers to be moved
  std::vector<Op> zero;                // zeroes what the micro-batches of a logical rank add to
  std::vector<Op> micro;               // forward and backward of one micro-batch
  std::vector<std::vector<Op>> folds;  // [p] adds partial sum p + 1 to partial sum p
  std::vector<Op> norm_leaves;         // of what this rank has of the gradient
  std::vector<Op> norm;                // of the whole gradient, and what the update scales it by
  std::vector<Op> end;                 // optimizer, averages, moved buffers
  std::vector<Op> gathered;            // where it is sharded: copies and averages
  // After `end`, for each micro-batch of all logical ranks with its moments in `pending`.
  std::vector<Op> move_buffers;
  // What goes between the ranks that share a logical rank, in order.
  std::vector<ShardExchange> micro_exchanges, norm_exchanges, evaluate_exchanges;
  // Of a stage of a pipeline. In `micro` the forward passes of all chunks come first, then their
  // backward passes, from the last to the first; this is the op with which these begin. The last
  // stage of stages of one chunk makes both passes at once, and has all of them in the first: there
  // it is micro.size().
  std::vector<StageChunk> chunks = std::vector<StageChunk>(1);
  int64_t backward_from = 0;
  // Before the first batch of an evaluation: the copies of weights that it reads.
  std::vector<Op> evaluate_begin;
  // Forward of one evaluation batch, no dropout, on the averages where there are some; activations
  // share the region.
  std::vector<Op> evaluate;

  double flops_elsewhere = 0;    // of a micro-batch, on the other ranks that share it
  int64_t micro_batch = 0;       // samples
  int64_t micro_batches = 0;     // of a logical rank, per step
  int64_t logical_ranks = 1;     // fixed shares of the global batch
  int64_t evaluation_batch = 0;  // samples
  int64_t rows_per_sample = 1;   // loss rows: `context` for language models, else 1
  int64_t total_steps = 0;
  bool loss_scaling = false;  // by StepState.loss_scale
  bool tokens = false;        // inputs are ids [batch, context] with targets [batch, context]
  bool binary = false;        // one logit per row, targets 0 and 1

  // Where the loader writes. Images: u8 [batch, height, width, channels], labels i32 [batch].
  // Clicks: f32 [batch, dense] and i32 [batch, categorical], labels i32 [batch]. Documents: i32
  // [batch, context] and, as `ids`, their lengths i32 [batch], hidden ids i32 [batch, context].
  TensorId input = kNone, ids = kNone, target = kNone;
  TensorId eval_input = kNone, eval_ids = kNone, eval_target = kNone;

  // kScalar and kSum tensors. The sums are f64 [1], of a logical rank and, once the logical ranks
  // are added up, of the step.
  TensorId state = kNone;         // kernels::StepState, 40 bytes
  TensorId loss_sum = kNone;      // over the rows
  TensorId z_loss_sum = kNone;    // alike: the part of training.z_loss; kNone without it
  TensorId target_count = kNone;  // how many rows count
  TensorId grad_norm = kNone;  // f32 [1], of the mean gradient over those, of the loss without its
                               // scale; before clipping
  // f32 [1]: what the update multiplies the gradient by. NaN: the step was not taken, nor is any
  // after it until 0 is written here.
  TensorId grad_scale = kNone;

  // Of those, what no op of this rank reads.
  std::vector<TensorId> unread;

  // Evaluation results of one batch; rows whose target is -1 do not count.
  TensorId eval_losses = kNone;   // f32 [evaluation_batch * rows_per_sample]
  TensorId eval_correct = kNone;  // f32, alike
  // f32 [rows, classes], valid after `evaluate`; kNone where they are cut into shards.
  TensorId eval_logits = kNone;

  v1::PlanSummary summary;
};

}  // namespace trainyard::plan
