#include "executor/plan/memory/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "executor/plan/ops/op.h"
#include "executor/plan/passes/bucket_order.h"
#include "executor/plan/passes/shard_gradients.h"
#include "executor/plan/passes/shard_parameters.h"
#include "tests/unit/plan/memory/small_models.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

constexpr int64_t kLine = 64;  // every tensor begins with one, and most with every second

struct Touch {
  TensorId id;
  Access access;
};

std::vector<Touch> TouchesOf(const Op& op) {
  std::vector<Touch> touches;
  VisitOperands(op, [&](TensorId id, Access a) { touches.push_back({id, a}); });
  return touches;
}

// Bytes that an op sweeps when it names the first tensor of a run.
int64_t BytesTouched(const Plan& plan, const Op& op, TensorId id) {
  int64_t n = plan.tensors[id].bytes() / SizeOf(plan.tensors[id].type);
  const auto run = [&](TensorId named, int64_t length) {
    if (named == id) n = length;
  };
  if (const auto* o = std::get_if<Zero>(&op)) run(o->x, o->n);
  if (const auto* o = std::get_if<SquaredNorm>(&op)) run(o->x, o->n);
  if (const auto* o = std::get_if<SgdStep>(&op)) {
    for (const TensorId t : {o->w, o->grad, o->velocity, o->copy}) run(t, o->n);
  }
  if (const auto* o = std::get_if<Cast>(&op)) run(o->x, o->n), run(o->y, o->n);
  if (const auto* o = std::get_if<AdamWStep>(&op)) {
    for (const TensorId t : {o->w, o->grad, o->m, o->v, o->copy}) run(t, o->n);
  }
  if (const auto* o = std::get_if<LambStep>(&op)) {
    for (const TensorId t : {o->w, o->grad, o->m, o->v}) run(t, o->offset + o->n);
  }
  if (const auto* o = std::get_if<CopyIfTaken>(&op)) run(o->x, o->n), run(o->y, o->n);
  if (const auto* o = std::get_if<EmaStep>(&op)) {
    for (const TensorId t : {o->average, o->w}) run(t, o->n);
  }
  return n * SizeOf(plan.tensors[id].type);
}

// Follows who wrote each line of the arena last: knows nothing of lives or of packing. Aliases
// write for the tensors that they are runs of.
class Ownership {
 public:
  explicit Ownership(const Plan& plan) : plan_(plan), owner_(plan.arena_bytes / kLine, kNone) {
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const TensorKind kind = plan.tensors[i].kind;
      if (kind != TensorKind::kActivation && kind != TensorKind::kInput &&
          kind != TensorKind::kReceived && kind != TensorKind::kAlias &&
          plan.offsets[i] != kNoPlace) {
        Take(static_cast<TensorId>(i));
      }
    }
  }

  void Take(TensorId id) {
    for (int64_t line : Lines(id)) owner_[line] = id;
  }

  void ExpectOwns(TensorId id, const std::string& where) const {
    for (int64_t line : Lines(id)) {
      ASSERT_EQ(owner_[line], id) << where << ": " << plan_.tensors[id].name
                                  << " was overwritten by "
                                  << (owner_[line] == kNone ? "nobody"
                                                            : plan_.tensors[owner_[line]].name);
    }
  }

  void Run(const std::vector<Op>& ops, const char* list) {
    for (size_t i = 0; i < ops.size(); ++i) {
      const std::string where = absl::StrCat(list, " op ", i);
      std::vector<Touch> touches = TouchesOf(ops[i]);
      std::erase_if(touches,
                    [&](const Touch& t) { return plan_.tensors[t.id].kind == TensorKind::kAlias; });
      for (const Touch& t : touches) {
        if (t.access != Access::kWrite) ExpectOwns(t.id, where);
      }
      for (const Touch& t : touches) {
        if (t.access != Access::kRead) Take(t.id);
      }
      if (const auto* zero = std::get_if<Zero>(&ops[i])) TakeRun(*zero);
    }
  }

 private:
  void TakeRun(const Zero& zero) {
    if (plan_.gradients_sharded) return;  // each is zeroed by itself
    const int64_t end = plan_.offsets[zero.x] + BytesTouched(plan_, zero, zero.x);
    for (const TensorId id : plan_.gradients) {
      if (plan_.offsets[id] >= plan_.offsets[zero.x] && plan_.offsets[id] < end) Take(id);
    }
  }

  std::vector<int64_t> Lines(TensorId id) const {
    std::vector<int64_t> lines;
    const int64_t end = plan_.offsets[id] + plan_.tensors[id].bytes();
    EXPECT_LE(end, plan_.arena_bytes) << plan_.tensors[id].name;
    for (int64_t at = plan_.offsets[id]; at < end; at += kLine) lines.push_back(at / kLine);
    return lines;
  }

  const Plan& plan_;
  std::vector<TensorId> owner_;
};

bool Overlap(const Plan& plan, TensorId a, TensorId b) {
  return plan.offsets[a] < plan.offsets[b] + plan.tensors[b].bytes() &&
         plan.offsets[b] < plan.offsets[a] + plan.tensors[a].bytes();
}

// What the headers in kernels/ops/ allow, written down a second time.
bool MayShare(const Op& op, TensorId read, TensorId written) {
  const auto is = [&](TensorId r, TensorId w) { return read == r && written == w; };
  if (const auto* o = std::get_if<ActivationForward>(&op)) {
    return o->kind == ActivationKind::kRelu && is(o->x, o->y);
  }
  if (const auto* o = std::get_if<ActivationBackward>(&op)) return is(o->dy, o->dx);
  if (const auto* o = std::get_if<Add>(&op)) return is(o->a, o->y) || is(o->b, o->y);
  if (const auto* o = std::get_if<AddProduct>(&op)) return is(o->base, o->y);
  if (const auto* o = std::get_if<BatchNormBackward>(&op)) {
    return is(o->x, o->dx) || is(o->dy, o->dresidual);
  }
  if (const auto* o = std::get_if<AddBias>(&op)) return is(o->x, o->y);
  if (const auto* o = std::get_if<BatchNormForward>(&op)) return is(o->residual, o->y);
  if (const auto* o = std::get_if<BatchNormInference>(&op)) {
    return is(o->x, o->y) || is(o->residual, o->y);
  }
  if (const auto* o = std::get_if<Dropout>(&op)) return is(o->x, o->y);
  if (const auto* o = std::get_if<Rotary>(&op)) return is(o->x, o->y);
  if (const auto* o = std::get_if<SwiGluBackward>(&op)) return is(o->x, o->dx);
  if (const auto* o = std::get_if<LayerNormForward>(&op)) {
    return o->residual != kNone &&
           (is(o->x, o->sum) || is(o->residual, o->sum) || is(o->residual, o->y));
  }
  if (const auto* o = std::get_if<LayerNormBackward>(&op))
    return !o->accumulate_dx && is(o->dy, o->dx);
  if (const auto* o = std::get_if<CrossEntropy>(&op)) return is(o->logits, o->dlogits);
  if (const auto* o = std::get_if<BinaryCrossEntropy>(&op)) return is(o->logits, o->dlogits);
  return false;
}

void ExpectOperandsShareOnlyWhatOpsAllow(const Plan& plan, const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    const std::vector<Touch> touches = TouchesOf(op);
    for (const Touch& w : touches) {
      if (w.access == Access::kRead) continue;
      for (const Touch& other : touches) {
        if (other.id == w.id || !Overlap(plan, other.id, w.id)) continue;
        EXPECT_EQ(other.access, Access::kRead);
        EXPECT_TRUE(MayShare(op, other.id, w.id))
            << plan.tensors[other.id].name << " and " << plan.tensors[w.id].name;
        EXPECT_EQ(plan.offsets[other.id], plan.offsets[w.id]);
        EXPECT_EQ(plan.tensors[other.id].bytes(), plan.tensors[w.id].bytes());
      }
    }
  }
}

using Span = std::pair<int64_t, int64_t>;

std::map<TensorId, Span> LivesOf(const Plan& plan, const std::vector<Op>& ops) {
  std::map<TensorId, Span> lives;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const Touch& t : TouchesOf(ops[i])) {
      const TensorKind kind = plan.tensors[t.id].kind;
      if (kind != TensorKind::kActivation && kind != TensorKind::kInput &&
          kind != TensorKind::kReceived) {
        continue;
      }
      const auto at = static_cast<int64_t>(i);
      lives.try_emplace(t.id, at, at).first->second.second = at;
    }
  }
  return lives;
}

// No layout can be smaller: what lives at the fullest op, less what that op may do in place.
int64_t LeastBytes(const Plan& plan, const std::vector<Op>& ops) {
  const std::map<TensorId, Span> lives = LivesOf(plan, ops);
  int64_t least = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    int64_t live = 0;
    for (const auto& [id, span] : lives) {
      if (span.first <= at && at <= span.second) live += Align(plan.tensors[id].bytes());
    }
    std::set<TensorId> left;
    for (const Touch& out : TouchesOf(ops[i])) {
      for (const Touch& in : TouchesOf(ops[i])) {
        const bool passes = lives.contains(in.id) && lives.contains(out.id) &&
                            lives.at(in.id).second == at && lives.at(out.id).first == at;
        if (!passes || !MayShare(ops[i], in.id, out.id) || left.contains(in.id)) continue;
        if (plan.tensors[in.id].bytes() != plan.tensors[out.id].bytes()) continue;
        live -= Align(plan.tensors[in.id].bytes());
        left.insert(in.id);
        break;
      }
    }
    least = std::max(least, live);
  }
  return least;
}

// Before op number `op` of those that `gathers` are for: parameters that are sharded come while the
// ops before them are run, and stay until the last that reads them is through.
void GatherBefore(const Plan& plan, const std::vector<Gather>& gathers, size_t op,
                  Ownership& ownership) {
  const auto at = static_cast<int64_t>(op);
  for (const Gather& gather : gathers) {
    if (at < gather.live().first || at > gather.live().last) continue;
    for (const TensorId id : GatheredWith(plan, gather.bucket)) {
      if (at == gather.start_before) ownership.Take(id);
      ownership.ExpectOwns(id, "parameters that are gathered");
    }
  }
}

// What is looked up of tables that are shared out comes right before the first op that reads it.
void LookUpBefore(const LookUp& look_up, size_t op, Ownership& ownership) {
  if (look_up.rows == kNone || static_cast<int64_t>(op) > look_up.read_first) return;
  ownership.ExpectOwns(look_up.ids, "ids of what is looked up");
  if (static_cast<int64_t>(op) == look_up.read_first) ownership.Take(look_up.rows);
}

void RunEvaluation(const Plan& plan, Ownership& ownership) {
  const std::vector<Gather>& gathers = plan.evaluate_gathers;
  for (size_t i = 0; i < plan.evaluate.size(); ++i) {
    GatherBefore(plan, gathers, i, ownership);
    LookUpBefore(plan.evaluate_look_up, i, ownership);
    ownership.Run({plan.evaluate[i]}, "evaluate");
  }
}

// Gradients that are sharded are there until their bucket is exchanged, and no others longer.
void RunMicro(const Plan& plan, Ownership& ownership) {
  const std::vector<ElementRange> elements = ElementsOfGradients(plan, plan.gradients.size());
  const std::vector<Gather>& gathers = plan.micro_gathers;
  for (size_t i = 0; i < plan.micro.size(); ++i) {
    GatherBefore(plan, gathers, i, ownership);
    LookUpBefore(plan.micro_look_up, i, ownership);
    ownership.Run({plan.micro[i]}, "micro");
    if (!plan.gradients_sharded) continue;
    for (const ReadyBucket& ready : BucketOrder(plan)) {
      const auto at = static_cast<int64_t>(i);
      if (at < ready.after_op) continue;
      // From now on what other ranks have made of it may be added to this rank's share.
      const TensorId sum = plan.gradient_shares[ready.bucket].sum;
      if (sum != kNone && at == ready.after_op) ownership.Take(sum);
      if (sum != kNone) ownership.ExpectOwns(sum, "sum of a bucket");
      if (at > ready.free_after_op) continue;
      for (size_t g = 0; g < plan.gradients.size(); ++g) {
        if (Common(plan.buckets[ready.bucket].elements, elements[g]).size() == 0) continue;
        ownership.ExpectOwns(plan.gradients[g], "gradients of a bucket");
      }
    }
  }
}

TEST(Memory, NothingIsOverwrittenBeforeItsLastReader) {
  for (const ModelCase& c : SmallModels()) {
    SCOPED_TRACE(absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString()));
    const Plan plan = PlanOf(c.spec, c.facts);
    Ownership ownership(plan);
    for (int step = 0; step < 2; ++step) {
      ownership.Run(plan.copy, "copy");
      ownership.Run(plan.begin, "begin");
      ownership.Run(plan.zero, "zero");
      for (int i = 0; i < plan.micro_batches; ++i) {
        ownership.Take(plan.input);
        if (plan.ids != kNone) ownership.Take(plan.ids);
        ownership.Take(plan.target);
        RunMicro(plan, ownership);
      }
      for (const TensorId id : plan.gradients) {
        if (!plan.gradients_sharded) ownership.ExpectOwns(id, "all gradients");
      }
      ownership.Run(plan.norm, "norm");
      ownership.Run(plan.end, "end");
      ownership.Run(plan.gathered, "gathered");
      ownership.Run(plan.evaluate_begin, "begin of an evaluation");
      for (int batch = 0; batch < 2; ++batch) {
        ownership.Take(plan.eval_input);
        if (plan.ids != kNone) ownership.Take(plan.eval_ids);
        ownership.Take(plan.eval_target);
        RunEvaluation(plan, ownership);
        for (const TensorId id : {plan.eval_losses, plan.eval_correct, plan.eval_logits}) {
          ownership.ExpectOwns(id, "results");
        }
      }
    }
  }
}

TEST(Memory, OperandsShareOnlyWhatTheirOpAllows) {
  for (const ModelCase& c : SmallModels()) {
    SCOPED_TRACE(absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString()));
    const Plan plan = PlanOf(c.spec, c.facts);
    for (const auto* ops : {&plan.copy, &plan.begin, &plan.zero, &plan.micro, &plan.norm, &plan.end,
                            &plan.evaluate_begin, &plan.evaluate}) {
      ExpectOperandsShareOnlyWhatOpsAllow(plan, *ops);
    }
  }
}

TEST(Memory, OpsStayWithinTheirRegions) {
  for (const ModelCase& c : SmallModels()) {
    SCOPED_TRACE(absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString()));
    const Plan plan = PlanOf(c.spec, c.facts);
    const auto within = [&](TensorId id, int64_t bytes, const Region& region) {
      return plan.offsets[id] >= region.offset && plan.offsets[id] + bytes <= region.end();
    };
    // What activations share with gradients, or with their sums.
    const int64_t begin =
        plan.gradients_sharded ? plan.share_region.offset : plan.gradient_region.offset;
    const Region shared = {.offset = begin, .bytes = plan.activation_region.end() - begin};
    // What an alias names is of the kind of the tensors that it is a run of.
    const auto kind = [&](TensorId id) {
      for (const Alias& alias : plan.aliases) {
        if (alias.tensor == id) return plan.tensors[alias.of].kind;
      }
      return plan.tensors[id].kind;
    };
    for (const auto* ops :
         {&plan.copy, &plan.begin, &plan.zero, &plan.micro, &plan.clear_padding, &plan.norm_leaves,
          &plan.norm, &plan.end, &plan.gathered, &plan.evaluate_begin, &plan.evaluate}) {
      for (const Op& op : *ops) {
        for (const Touch& t : TouchesOf(op)) {
          const int64_t bytes = BytesTouched(plan, op, t.id);
          bool ok = false;
          switch (kind(t.id)) {
            case TensorKind::kAlias:
              break;
            case TensorKind::kParameter:
              ok = within(t.id, bytes, plan.parameter_region) ||
                   within(t.id, bytes, plan.weight_region) ||
                   (plan.parameters_sharded && within(t.id, bytes, shared));
              break;
            case TensorKind::kWeightCopy:
              ok = within(t.id, bytes, plan.copy_region);
              break;
            case TensorKind::kGradient:
              ok = within(t.id, bytes, plan.gradients_sharded ? shared : plan.gradient_region) ||
                   within(t.id, bytes, plan.rows_region);
              break;
            case TensorKind::kOptimizerState:
              ok = within(t.id, bytes, plan.optimizer_region);
              break;
            case TensorKind::kAverage:
              ok = within(t.id, bytes, plan.ema_region);
              break;
            case TensorKind::kBuffer:
              ok = within(t.id, bytes, plan.buffer_region);
              break;
            case TensorKind::kPendingBuffer:
              ok = within(t.id, bytes, plan.pending_region);
              break;
            case TensorKind::kScalar:
              ok = within(t.id, bytes, plan.scalar_region) ||
                   within(t.id, bytes, plan.leaves_region);
              break;
            case TensorKind::kSum:
              ok = within(t.id, bytes, plan.sums_region);
              break;
            case TensorKind::kPartialSum:
              ok = within(t.id, bytes, plan.partial_region) ||
                   within(t.id, bytes, plan.share_region);
              break;
            case TensorKind::kInput:
            case TensorKind::kReceived:
            case TensorKind::kActivation:
              ok = within(t.id, bytes, shared);
              break;
          }
          EXPECT_TRUE(ok) << plan.tensors[t.id].name;
        }
      }
    }
  }
}

// From the start of the first to the end of the last.
Region NarrowGradients(const Plan& plan) {
  Region region{.offset = plan.gradient_region.offset};
  for (const TensorId id : plan.gradients) {
    if (plan.tensors[id].type != ElementType::kBF16) continue;
    const int64_t end = plan.offsets[id] + BytesInRun(plan.tensors[id]);
    region.bytes = std::max(region.bytes, end - region.offset);
  }
  return region;
}

TEST(Memory, RegionsFollowOneAnotherAndEveryByteBelongsToATensor) {
  for (const ModelCase& c : SmallModels()) {
    SCOPED_TRACE(absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString()));
    const Plan plan = PlanOf(c.spec, c.facts);
    int64_t end = 0;
    for (const Region& region :
         {plan.parameter_region, plan.weight_region, plan.copy_region, plan.optimizer_region,
          plan.ema_region, plan.buffer_region, plan.pending_region, plan.moments_region,
          plan.scalar_region, plan.unread_region, plan.leaves_region, plan.rows_region,
          plan.partial_region, plan.sums_region, plan.share_region, plan.gradient_region,
          plan.activation_region}) {
      EXPECT_EQ(region.offset, end);
      EXPECT_EQ(region.offset % kAlignment, 0);
      end = region.end();
    }
    EXPECT_EQ(plan.arena_bytes, end);
    EXPECT_EQ(plan.arena_bytes % kLine, 0);
    std::vector<bool> covered(plan.arena_bytes / kLine + 1);
    covered.back() = true;
    for (const Region& narrow : {plan.copy_region, NarrowGradients(plan)}) {
      if (narrow.bytes > 0) covered[Align(narrow.end()) / kLine - 1] = true;
    }
    // As much as the rank that has most, in as many places as the tree needs.
    for (int64_t at = plan.share_region.offset; at < plan.share_region.end(); at += kLine) {
      covered[at / kLine] = true;
    }
    for (size_t i = 0; i < plan.tensors.size(); ++i) {
      const Tensor& tensor = plan.tensors[i];
      if (tensor.kind == TensorKind::kAlias || plan.offsets[i] == kNoPlace) continue;
      const bool halved =
          tensor.kind == TensorKind::kWeightCopy ||
          (tensor.kind == TensorKind::kGradient && tensor.type == ElementType::kBF16);
      EXPECT_EQ(plan.offsets[i] % (halved ? kLine : kAlignment), 0) << tensor.name;
      const int64_t last = plan.offsets[i] + Align(plan.tensors[i].bytes());
      for (int64_t at = plan.offsets[i]; at < last; at += kLine) covered[at / kLine] = true;
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), false), 0);
  }
}

TEST(Memory, ActivationsTakeLittleMoreThanTheyMust) {
  for (ModelCase& c : SmallModels()) {
    SCOPED_TRACE(absl::StrCat(c.name, " ", c.spec.precision().ShortDebugString()));
    c.spec.mutable_evaluation()->clear_batch_size();
    const Plan plan = PlanOf(c.spec, c.facts);
    const int64_t least = std::max({LeastBytes(plan, plan.micro), LeastBytes(plan, plan.evaluate),
                                    LeastBytes(plan, plan.end)});
    const double slack = c.spec.training().has_recompute() ? 1.08 : 1.02;
    EXPECT_LE(static_cast<double>(plan.activation_bytes - kAlignment),
              slack * static_cast<double>(least));
    EXPECT_LE(plan.activation_region.bytes, plan.activation_bytes + plan.step_copy_bytes +
                                                plan.exchanged_gradient_bytes +
                                                plan.gathered_parameter_bytes);
  }
  const Plan gpt2 = PlanOf(Gpt2Spec(), TokenFacts(50257));
  EXPECT_LE(static_cast<double>(gpt2.activation_bytes),
            1.02 * static_cast<double>(LeastBytes(gpt2, gpt2.micro)));
}

// Norm and optimizer sweep whole runs of gradients.
TEST(Memory, WhatPadsAGradientIsNobodyElses) {
  int padded = 0;
  for (const ModelCase& c : SmallModels()) {
    SCOPED_TRACE(c.name);
    const Plan plan = PlanOf(c.spec, c.facts);
    for (const TensorId gradient : plan.gradients) {
      if (plan.gradients_sharded) break;  // cleared in the sums
      const int64_t begin = plan.offsets[gradient] + plan.tensors[gradient].bytes();
      const int64_t end = plan.offsets[gradient] + BytesInRun(plan.tensors[gradient]);
      padded += end > begin;
      for (size_t i = 0; i < plan.tensors.size() && end > begin; ++i) {
        if (plan.tensors[i].kind == TensorKind::kAlias) continue;
        EXPECT_FALSE(plan.offsets[i] < end && begin < plan.offsets[i] + plan.tensors[i].bytes())
            << plan.tensors[i].name;
      }
    }
  }
  EXPECT_GT(padded, 50);
}

// A gradient of GPT-2 waits for its turn while the activations of later layers are there.
TEST(Memory, ActivationsLieInTheMemoryOfGradients) {
  v1::JobSpec spec = Gpt2Spec();
  spec.mutable_model()->mutable_gpt()->set_context(64);
  const Plan whole = PlanOf(spec, TokenFacts(50257));
  EXPECT_LT(whole.activation_region.bytes, whole.activation_bytes / 10);
  spec.mutable_training()->set_batch_size(8);
  spec.mutable_training()->set_micro_batch_size(4);  // gradients are added up over the step
  const Plan parts = PlanOf(spec, TokenFacts(50257));
  EXPECT_EQ(parts.activation_region.bytes, parts.activation_bytes);
}

TEST(Memory, GradientsAndOptimizerStateLieAsTheParametersDo) {
  const Plan plan = PlanOf(CharGptSpec(), TokenFacts(65));
  ASSERT_EQ(plan.optimizer_state_names, (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  const auto expect_alike = [&](const std::vector<TensorId>& ids, int64_t offset) {
    ASSERT_EQ(ids.size(), plan.parameters.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(plan.offsets[ids[i]] - offset,
                plan.offsets[plan.parameters[i]] - plan.parameter_region.offset);
      EXPECT_EQ(plan.tensors[ids[i]].dims, plan.tensors[plan.parameters[i]].dims);
    }
  };
  expect_alike(plan.gradients, plan.gradient_region.offset);
  expect_alike(plan.optimizer_state[0], plan.optimizer_region.offset);
  expect_alike(plan.optimizer_state[1], plan.optimizer_region.offset + plan.parameter_region.bytes);
}

TEST(Memory, DropsTheInputsOfInPlaceOps) {
  // relu and its gradient need no memory beyond the layer's output.
  const Plan plan = PlanOf(MlpSpec(), ImageFacts(4, 4, 1, 3));
  int shared = 0;
  for (const Op& op : plan.micro) {
    for (const auto& [in, out] : InPlacePairs(op)) shared += plan.offsets[in] == plan.offsets[out];
  }
  EXPECT_EQ(shared, 3);  // relu, its gradient, dlogits over logits
}

TEST(Memory, PlacesDisjointLivesInOneSpot) {
  // t0 -> t1 -> t2 by ops that cannot work in place: two spots for three tensors.
  std::vector<Tensor> tensors(3);
  for (Tensor& t : tensors) t.dims = {100};
  const std::vector<Op> ops = {Transpose{.x = kNone, .y = 0, .rows = 10, .cols = 10},
                               Transpose{.x = 0, .y = 1, .rows = 10, .cols = 10},
                               Transpose{.x = 1, .y = 2, .rows = 10, .cols = 10}};
  std::vector<int64_t> offsets(3);
  EXPECT_EQ(PackActivations(tensors, ops, {}, offsets), 2 * Align(400));
  EXPECT_EQ(offsets[0], offsets[2]);
  EXPECT_NE(offsets[0], offsets[1]);
  EXPECT_EQ(PackActivations(tensors, ops, {0}, offsets), 3 * Align(400));
}

}  // namespace
}  // namespace trainyard::plan
