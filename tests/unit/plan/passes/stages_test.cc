#include "executor/plan/passes/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/gang_traffic.h"
#include "executor/plan/spec/mesh.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"
#include "tests/unit/plan/step_in_bytes.h"

namespace trainyard::plan {
namespace {

using ::testing::HasSubstr;

// Four layers that may be cut into as many stages.
v1::JobSpec InStages(int stages, int ranks) {
  v1::JobSpec spec = LlamaSpec();
  spec.mutable_model()->mutable_llama()->set_layers(4);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(ranks);
  spec.mutable_parallel()->set_pipeline(4);
  if (stages > 1) spec.mutable_parallel()->mutable_layout()->set_pipeline(stages);
  spec.mutable_parallel()->set_logical_ranks(ranks / stages);
  return spec;
}

std::vector<Plan> PlansOfStages(const v1::JobSpec& spec, int ranks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) {
    plans.push_back(BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank).value());
  }
  return plans;
}

TEST(Stages, EveryParameterIsOfOneStage) {
  for (const int stages : {2, 3, 4}) {
    const std::vector<Plan> plans = PlansOfStages(InStages(stages, stages), stages);
    std::map<std::string, int> hosts;
    for (const Plan& plan : plans) {
      EXPECT_FALSE(plan.parameters.empty());
      for (const TensorId id : plan.parameters) ++hosts[plan.tensors[id].name];
    }
    EXPECT_EQ(hosts.size(), plans[0].of_group.size());
    for (const auto& [name, count] : hosts) EXPECT_EQ(count, 1) << name;
  }
}

// What one stage sends the next one receives, and a stage has the ends of the pipeline alone.
TEST(Stages, PassOneActivationOnAndItsGradientBack) {
  const std::vector<Plan> plans = PlansOfStages(InStages(4, 4), 4);
  const auto dims = [](const Plan& plan, TensorId id) { return plan.tensors[id].dims; };
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    const StageLinks& links = plans[stage].chunks[0].links;
    EXPECT_EQ(links.from_before == kNone, stage == 0);
    EXPECT_EQ(links.to_before == kNone, stage == 0);
    EXPECT_EQ(links.to_after == kNone, stage + 1 == plans.size());
    EXPECT_EQ(links.from_after == kNone, stage + 1 == plans.size());
    const bool last = plans[stage].backward_from == static_cast<int64_t>(plans[stage].micro.size());
    EXPECT_EQ(last, stage + 1 == plans.size());
    EXPECT_EQ(plans[stage].in_flight.flights, 1) << "of a step of one micro-batch";
    if (stage + 1 == plans.size()) continue;
    const Plan& next = plans[stage + 1];
    const StageLinks& of_next = next.chunks[0].links;
    EXPECT_EQ(dims(plans[stage], links.to_after), dims(next, of_next.from_before));
    EXPECT_EQ(dims(plans[stage], links.from_after), dims(next, of_next.to_before));
  }
}

TEST(Stages, HaveAboutEquallyMuchToDoAndTakeLessMemory) {
  const Plan alone = PlansOfStages(InStages(1, 1), 1)[0];
  const std::vector<Plan> plans = PlansOfStages(InStages(4, 4), 4);
  double flops = 0;
  for (const Plan& plan : plans) {
    const double all = plan.summary.flops_per_step();
    EXPECT_DOUBLE_EQ(all, alone.summary.flops_per_step());
    const double own = all - plan.flops_elsewhere * static_cast<double>(plan.micro_batches);
    EXPECT_LT(own, 0.4 * all);
    flops += own;
    EXPECT_EQ(plan.summary.parameters(), alone.summary.parameters());
    EXPECT_LT(plan.summary.parameter_bytes(), alone.summary.parameter_bytes() / 2);
    EXPECT_LT(plan.summary.optimizer_bytes(), alone.summary.optimizer_bytes() / 2);
    EXPECT_GT(plan.summary.bubble_share(), 0);
  }
  EXPECT_NEAR(flops / alone.summary.flops_per_step(), 1, 1e-9);
}

// Two groups of two stages: each rank has half of the optimizer's state of its stage, and all else.
TEST(Stages, ShareOutTheStateOfTheOptimizer) {
  v1::JobSpec spec = InStages(2, 4);
  spec.mutable_parallel()->set_logical_ranks(2);
  const std::vector<Plan> whole = PlansOfStages(spec, 4);
  spec.mutable_parallel()->set_shard(v1::Parallel::OPTIMIZER);
  const std::vector<Plan> shares = PlansOfStages(spec, 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Plan &kept = whole[rank], &share = shares[rank];
    EXPECT_TRUE(share.state_by_parameter());
    EXPECT_NEAR(static_cast<double>(share.summary.optimizer_bytes()),
                0.5 * static_cast<double>(kept.summary.optimizer_bytes()),
                0.1 * static_cast<double>(kept.summary.optimizer_bytes()));
    EXPECT_EQ(share.summary.parameter_bytes(), kept.summary.parameter_bytes());
    EXPECT_EQ(share.summary.gradient_bytes(), kept.summary.gradient_bytes());
    // Each element of the stage is stepped by one of its two ranks.
    int64_t stepped = 0;
    for (const OwnedRun& run : share.owned) stepped += run.elements.size();
    for (const OwnedRun& run : shares[(rank + 2) % 4].owned) stepped += run.elements.size();
    int64_t elements = 0;
    for (const Bucket& bucket : share.buckets) elements += bucket.elements.size();
    EXPECT_EQ(stepped, elements);
  }
}

// The embedding in the first stage and the head in the last have the same weights, and one norm.
TEST(Stages, AHeadThatIsTiedHasAParameterOfItsOwn) {
  v1::JobSpec spec = InStages(2, 2);
  spec.mutable_model()->mutable_llama()->set_tie_embeddings(true);
  const std::vector<Plan> plans = PlansOfStages(spec, 2);
  v1::JobSpec whole = spec;
  whole.mutable_parallel()->set_pipeline(1);
  whole.mutable_parallel()->clear_layout();
  whole.mutable_resources()->set_min_slots(1);
  const int64_t parameters = PlansOfStages(whole, 1)[0].summary.parameters();
  for (const Plan& plan : plans) {
    EXPECT_EQ(plan.summary.parameters(), parameters) << "which counts once";
    int tables = 0;
    for (const TensorId id : plan.parameters) {
      const Tensor& parameter = plan.tensors[id];
      if (parameter.shard && parameter.shard->whole == "model.embed_tokens.weight") ++tables;
    }
    EXPECT_EQ(tables, 1);
    ASSERT_EQ(plan.norm_exchanges.size(), 3u) << "of losses, of its gradients, of leaves";
    EXPECT_THAT(plan.norm_exchanges[1].ranks, ::testing::ElementsAre(0, 1));
    EXPECT_EQ(plan.norm_exchanges[1].tensors.size(), 2u);
  }
}

TEST(Stages, GroupsOfStagesOfShards) {
  v1::JobSpec spec = InStages(2, 8);
  spec.mutable_parallel()->set_logical_ranks(2);
  spec.mutable_parallel()->set_tensor(2);
  spec.mutable_parallel()->mutable_layout()->set_tensor(2);
  const Mesh mesh = MeshOf(ResolveSpec(spec).value());
  EXPECT_EQ(mesh.data, 2);
  EXPECT_EQ(mesh.pipeline, 2);
  EXPECT_EQ(mesh.tensor, 2);
  const std::vector<Plan> plans = PlansOfStages(spec, 8);
  for (int64_t rank = 0; rank < 8; ++rank) {
    const ShardHost& host = plans[rank].host;
    EXPECT_EQ(plans[rank].rank, rank / 4);
    EXPECT_EQ(host.stage(), rank % 4 / 2);
    EXPECT_EQ(host.place(), rank % 2);
    for (const ShardExchange& exchange : plans[rank].micro_exchanges) {
      const int64_t first = host.stage() * 2;
      EXPECT_THAT(exchange.ranks, ::testing::ElementsAre(first, first + 1)) << "of the stage alone";
    }
  }
}

v1::JobSpec InChunks(int stages, int chunks, int micro_batches) {
  v1::JobSpec spec = InStages(stages, stages);
  spec.mutable_model()->mutable_llama()->set_layers(8);
  spec.mutable_parallel()->mutable_layout()->set_chunks(chunks);
  spec.mutable_training()->set_batch_size(micro_batches);
  spec.mutable_training()->set_micro_batch_size(1);
  spec.mutable_evaluation()->set_batch_size(1);
  return spec;
}

TEST(Stages, OfSeveralChunksHaveLayersAllOverTheModel) {
  const std::vector<Plan> plans = PlansOfStages(InChunks(2, 4, 4), 2);
  std::map<std::string, int> hosts;
  for (const Plan& plan : plans) {
    ASSERT_EQ(plan.chunks.size(), 4u);
    std::set<int64_t> chunks;
    for (const TensorId id : plan.parameters) {
      ++hosts[plan.tensors[id].name];
      chunks.insert(plan.host.pipeline().chunk_of(plan.tensors[id].piece));
    }
    EXPECT_EQ(chunks.size(), 4u);
  }
  EXPECT_EQ(hosts.size(), plans[0].of_group.size());
  for (const auto& [name, count] : hosts) EXPECT_EQ(count, 1) << name;
  // What a chunk sends its neighbour's next chunk receives.
  const auto dims = [](const Plan& plan, TensorId id) { return plan.tensors[id].dims; };
  for (int64_t piece = 0; piece < 8; ++piece) {
    const Plan &plan = plans[piece % 2], &next = plans[(piece + 1) % 2];
    const StageLinks& links = plan.chunks[piece / 2].links;
    EXPECT_EQ(links.from_before == kNone, piece == 0);
    EXPECT_EQ(links.to_after == kNone, piece == 7);
    if (piece == 7) continue;
    const StageLinks& of_next = next.chunks[(piece + 1) / 2].links;
    EXPECT_EQ(dims(plan, links.to_after), dims(next, of_next.from_before));
    EXPECT_EQ(dims(plan, links.from_after), dims(next, of_next.to_before));
  }
}

// A rank's passes through its chunks are all of its ops, each once, and each of its gradients is
// zeroed, and added up, with the chunk that it is of.
TEST(Stages, EveryOpAndEverySumIsOfOneChunk) {
  v1::JobSpec spec = InChunks(2, 2, 6);
  spec.mutable_parallel()->set_logical_ranks(3);
  for (const Plan& plan : PlansOfStages(spec, 2)) {
    int64_t ops = 0, zeroes = 0, folds = 0;
    ASSERT_FALSE(plan.folds.empty());
    for (const StageChunk& chunk : plan.chunks) {
      ops += chunk.forward.size() + chunk.backward.size();
      zeroes += chunk.zero.size();
      folds += chunk.fold.size();
    }
    EXPECT_EQ(ops, static_cast<int64_t>(plan.micro.size()));
    EXPECT_EQ(zeroes, static_cast<int64_t>(plan.zero.size()));
    EXPECT_EQ(folds, static_cast<int64_t>(plan.folds[0].size()));
    std::map<TensorId, int64_t> chunk_of;  // by gradient
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      chunk_of[plan.gradients[i]] =
          plan.host.pipeline().chunk_of(plan.tensors[plan.parameters[i]].piece);
    }
    for (int64_t c = 0; c < 2; ++c) {
      const StageChunk& chunk = plan.chunks[c];
      for (int64_t i = chunk.backward.first; i < chunk.backward.end; ++i) {
        VisitOperands(plan.micro[i], [&](TensorId id, Access) {
          if (chunk_of.contains(id)) {
            EXPECT_EQ(chunk_of[id], c) << plan.tensors[id].name;
          }
        });
      }
      for (int64_t i = chunk.zero.first; i < chunk.zero.end; ++i) {
        VisitOperands(plan.zero[i], [&](TensorId id, Access) {
          if (chunk_of.contains(id)) {
            EXPECT_EQ(chunk_of[id], c) << plan.tensors[id].name;
          }
        });
      }
    }
  }
}

TEST(Stages, NothingOfAChunkIsOverwrittenThatIsStillRead) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    for (const auto& [stages, chunks] : {std::pair(2, 2), {2, 4}, {4, 2}, {2, 1}, {4, 1}}) {
      for (const int micro_batches : {1, 2, 5, 8, 12}) {
        v1::JobSpec spec = InChunks(stages, chunks, micro_batches);
        spec.mutable_precision()->set_compute(compute);
        for (const Plan& plan : PlansOfStages(spec, stages)) {
          SCOPED_TRACE(absl::StrCat("stage ", plan.host.stage(), " of ", stages, ", ", chunks,
                                    " chunks, ", micro_batches, " micro-batches"));
          StepInBytes bytes(plan);
          bytes.Run(micro_batches);
          bytes.Evaluate();
        }
      }
    }
  }
}

// As many micro-batches as stages: a third of a step is waiting with one chunk, a ninth with four.
TEST(Stages, WaitLessInChunksAndSendMore) {
  const Plan whole = PlansOfStages(InChunks(2, 1, 2), 2)[0];
  const Plan chunks = PlansOfStages(InChunks(2, 4, 2), 2)[0];
  EXPECT_DOUBLE_EQ(whole.summary.bubble_share(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(chunks.summary.bubble_share(), 1.0 / 9);
  EXPECT_GT(MostTraffic(chunks).of_shards, 3 * MostTraffic(whole).of_shards);
}

// Such a stage, and those before it, would get no gradient.
TEST(Stages, OneThatTrainsNothingIsRefused) {
  v1::JobSpec spec = InStages(4, 4);
  for (const auto& [pattern, frozen] : {std::pair{"*layers.3*", false}, {"*", true}}) {
    v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
    group.set_pattern(pattern);
    group.set_frozen(frozen);
  }
  for (int rank = 0; rank < 4; ++rank) {
    const auto plan = BuildPlan(ResolveSpec(spec).value(), TokenFacts(64), rank);
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr("spec.optimizer.groups: of the 4 stages of spec.parallel.layout.pipeline "
                          "number 1 has frozen parameters alone"));
  }
}

TEST(Stages, WhatCannotBeIsRefused) {
  const auto why = [](const v1::JobSpec& spec) {
    return std::string(ResolveSpec(spec).status().message());
  };
  EXPECT_THAT(why(InStages(3, 4)),
              HasSubstr("spec.parallel.layout: 3 ranks, tensor times pipeline, "
                        "do not divide the 4 slots of spec.resources"));
  v1::JobSpec many = InStages(4, 4);
  many.mutable_parallel()->mutable_layout()->set_pipeline(5);
  EXPECT_THAT(why(many), HasSubstr("spec.parallel.layout.pipeline: 5 is not in [1, 4]"));
  v1::JobSpec deep = InStages(1, 1);
  deep.mutable_parallel()->set_pipeline(5);
  EXPECT_THAT(why(deep), HasSubstr("spec.parallel.pipeline: 5 is more than the 4 layers"));
  v1::JobSpec elastic = InStages(2, 2);
  elastic.mutable_resources()->set_min_slots(3);
  elastic.mutable_resources()->set_max_slots(6);
  elastic.mutable_parallel()->set_logical_ranks(3);
  EXPECT_THAT(why(elastic), HasSubstr("spec.resources.min_slots: 3 is not a multiple of the 2 "
                                      "ranks that share a logical rank (spec.parallel.layout); "
                                      "use 4"));
  elastic.mutable_resources()->clear_min_slots();
  EXPECT_EQ(ResolveSpec(elastic)->resources().min_slots(), 2) << "one group";
  EXPECT_FALSE(ResolveSpec(InStages(1, 1))->parallel().has_layout()) << "older workers know none";
  v1::JobSpec chunked = InStages(2, 2);
  chunked.mutable_parallel()->mutable_layout()->set_chunks(3);
  EXPECT_THAT(why(chunked), HasSubstr("spec.parallel.layout.chunks: 3 chunks of 2 stages are more "
                                      "than the 4 layers of the model; use at most 2"));
  chunked.mutable_parallel()->mutable_layout()->set_chunks(0);
  EXPECT_THAT(why(chunked), HasSubstr("spec.parallel.layout.chunks: 0 is not in [1, 128]"));
  chunked.mutable_parallel()->mutable_layout()->set_chunks(1);
  EXPECT_FALSE(ResolveSpec(chunked)->parallel().layout().has_chunks()) << "older workers know none";
  chunked.mutable_parallel()->mutable_layout()->set_chunks(2);
  EXPECT_EQ(why(chunked), "");
  v1::JobSpec one = InStages(1, 1);
  one.mutable_parallel()->mutable_layout()->set_chunks(2);
  EXPECT_THAT(why(one), HasSubstr("spec.parallel.layout.chunks: 2 chunks of a stage, but there is "
                                  "one stage; set spec.parallel.layout.pipeline"));
}

}  // namespace
}  // namespace trainyard::plan
