// Models cut into the shards of tensor parallelism: what one of them computes is what the whole
// computes, in double precision.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "executor/plan/graph/shard_builder.h"
#include "executor/plan/graph/stored_shards.h"
#include "tests/unit/plan/random_model.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;
using ::testing::ElementsAre;

v1::JobSpec Cut(v1::JobSpec spec, int32_t tensor) {
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_parallel()->set_tensor(tensor);
  return spec;
}

// A head for each of 2, with what else a gpt may have.
v1::JobSpec Gpt() {
  v1::JobSpec spec = GptSpec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_width(12);
  gpt.set_dropout(0.2);
  gpt.set_mlp_width(7);
  spec.mutable_training()->set_label_smoothing(0.1);
  spec.mutable_training()->set_z_loss(0.05);
  return spec;
}

// Tensors by the names that a checkpoint has for them; `of`: what goes with each parameter.
std::map<std::string, Vec> StoredOf(const Model& model, const std::vector<TensorId>& of) {
  std::map<std::string, Vec> all;
  for (size_t i = 0; i < of.size(); ++i) {
    const Tensor& parameter = model.plan.tensors[model.plan.parameters[i]];
    if (parameter.shard) continue;
    const Vec values = model.machine.Read(of[i]);
    for (const StoredTensor& stored : plan::Stored(parameter)) {
      const auto first = values.begin() + stored.offset / static_cast<int64_t>(sizeof(float));
      all[stored.name] = Vec(first, first + stored.elements());
    }
  }
  for (const StoredInShards& tensor : StoredShards(model.plan)) {
    Vec& whole = all[tensor.stored.name];
    whole.assign(tensor.stored.elements(), NAN);
    ForEachRun(tensor, 0, tensor.stored.elements(),
               [&](const ShardPiece& piece, int64_t offset, int64_t at, int64_t n) {
                 const Vec values = model.machine.Read(of[piece.position]);
                 std::copy_n(values.begin() + offset, n, whole.begin() + at);
               });
  }
  return all;
}

void TakeParameters(const std::map<std::string, Vec>& from, Model& model) {
  for (const TensorId id : model.plan.parameters) {
    const Tensor& parameter = model.plan.tensors[id];
    if (parameter.shard) continue;
    Vec values;
    for (const StoredTensor& stored : plan::Stored(parameter)) {
      const Vec& part = from.at(stored.name);
      values.insert(values.end(), part.begin(), part.end());
    }
    model.machine.Write(id, values);
  }
  for (const StoredInShards& tensor : StoredShards(model.plan)) {
    const Vec& whole = from.at(tensor.stored.name);
    ForEachRun(tensor, 0, tensor.stored.elements(),
               [&](const ShardPiece& piece, int64_t offset, int64_t at, int64_t n) {
                 const TensorId id = model.plan.parameters[piece.position];
                 Vec values = model.machine.Read(id);
                 std::copy_n(whole.begin() + at, n, values.begin() + offset);
                 model.machine.Write(id, values);
               });
  }
}

void ExpectAgree(const Vec& found, const Vec& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-9 * (1 + std::abs(expected[i]))) << what << " " << i;
  }
}

void ExpectTheSameModel(const v1::JobSpec& spec, const DataFacts& facts, int32_t tensor) {
  Model whole(spec, facts), cut(Cut(spec, tensor), facts);
  TakeParameters(StoredOf(whole, whole.plan.parameters), cut);
  cut.inputs = whole.inputs;  // drawn behind the parameters, of which shards may have copies
  cut.targets = whole.targets;
  cut.lengths = whole.lengths;
  EXPECT_NEAR(cut.Step(), whole.Step(), 1e-9);
  for (Model* model : {&whole, &cut}) model->machine.Run(model->plan.norm);
  const auto expected = StoredOf(whole, whole.plan.gradients);
  const auto found = StoredOf(cut, cut.plan.gradients);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : expected) ExpectAgree(found.at(name), gradient, name);
  for (Model* model : {&whole, &cut}) {
    model->machine.Write(model->plan.eval_input, model->Part(model->inputs, 0));
    if (!model->lengths.empty()) {
      model->machine.Write(model->plan.eval_ids, model->Part(model->lengths, 0));
    }
    model->machine.Write(model->plan.eval_target, model->Part(model->targets, 0));
    model->machine.Run(model->plan.evaluate_begin);
    model->machine.Run(model->plan.evaluate);
  }
  const auto same = [&](auto of) {
    ExpectAgree(cut.machine.Read(of(cut.plan)), whole.machine.Read(of(whole.plan)), "result");
  };
  same([](const Plan& plan) { return plan.grad_norm; });
  same([](const Plan& plan) { return plan.eval_losses; });
  same([](const Plan& plan) { return plan.eval_correct; });
}

TEST(Tensor, ShardsOfThingsAreCutEvenlyOrLeftOut) {
  EXPECT_THAT(CutIn(3, 7), ElementsAre(plan::Run{0, 2}, plan::Run{2, 4}, plan::Run{4, 7}));
  EXPECT_THAT(CutIn(4, 2), ElementsAre(plan::Run{0, 1}, plan::Run{1, 2}));
  EXPECT_THAT(CutIn(1, 5), ElementsAre(plan::Run{0, 5}));
}

TEST(Tensor, HeadsThatShareKeysStayTogetherOrHaveACopyOfThem) {
  EXPECT_THAT(CutHeads(2, 6, 3), ElementsAre(plan::Run{0, 2}, plan::Run{2, 6}));
  EXPECT_THAT(CutHeads(3, 8, 2), ElementsAre(plan::Run{0, 4}, plan::Run{4, 6}, plan::Run{6, 8}));
  EXPECT_THAT(CutHeads(4, 3, 1), ElementsAre(plan::Run{0, 1}, plan::Run{1, 2}, plan::Run{2, 3}));
}

// Of 4 heads of queries and 2 of keys and values, of which shards 1 to 3 have one.
TEST(Tensor, CopiesOfKeysAndValuesGetTheSameGradient) {
  Model cut(Cut(LlamaSpec(), 4), TokenFacts(11));
  cut.Step();
  cut.machine.Run(cut.plan.norm);
  int copies = 0;
  for (const Cast& o : OpsOf<Cast>(cut.plan.norm)) {
    EXPECT_EQ(cut.machine.Read(o.x), cut.machine.Read(o.y));
    ++copies;
  }
  EXPECT_EQ(copies, 2 * 2 * 2);  // keys and values of 2 heads in 2 layers
}

TEST(Tensor, AGptInShardsIsTheWholeGpt) {
  for (const int32_t tensor : {2, 3, 4}) ExpectTheSameModel(Gpt(), TokenFacts(11), tensor);
}

TEST(Tensor, AGptWithoutTiesOrBiasesInMicroBatchesIsTheWhole) {
  v1::JobSpec spec = Gpt();
  spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
  spec.mutable_model()->mutable_gpt()->set_bias(false);
  spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 2);
  ExpectTheSameModel(spec, TokenFacts(13), 2);
}

TEST(Tensor, ALlamaInShardsIsTheWholeLlama) {
  for (const int32_t tensor : {2, 3, 5}) ExpectTheSameModel(LlamaSpec(), TokenFacts(11), tensor);
}

TEST(Tensor, ABertInShardsIsTheWholeBert) {
  v1::JobSpec spec = BertSpec();
  spec.mutable_model()->mutable_bert()->set_dropout(0.2);
  for (const int32_t tensor : {2, 3}) ExpectTheSameModel(spec, DocumentFacts(11), tensor);
}

TEST(Tensor, AVitInShardsIsTheWholeVit) {
  for (const int32_t tensor : {2, 3}) ExpectTheSameModel(VitSpec(), ImageFacts(4, 4, 1, 3), tensor);
}

// Fewer tokens than shards.
TEST(Tensor, ATinyVocabularyInShardsIsTheWhole) { ExpectTheSameModel(Gpt(), TokenFacts(3), 5); }

TEST(Tensor, EveryElementOfAStoredTensorLiesInOneShardOrInEachThatNeedsIt) {
  for (const v1::JobSpec& spec : {Gpt(), LlamaSpec()}) {
    const Plan whole = PlanOf(spec, TokenFacts(11)), cut = PlanOf(Cut(spec, 3), TokenFacts(11));
    std::map<std::string, std::vector<int64_t>> expected;
    for (const TensorId id : whole.parameters) {
      for (const StoredTensor& stored : plan::Stored(whole.tensors[id])) {
        expected[stored.name] = stored.dims;
      }
    }
    int64_t elements = 0;
    for (const StoredInShards& tensor : StoredShards(cut)) {
      EXPECT_EQ(tensor.stored.dims, expected.at(tensor.stored.name)) << tensor.stored.name;
      std::multiset<int64_t> seen, wanted;
      const bool copied = tensor.stored.name.find("k_proj") != std::string::npos ||
                          tensor.stored.name.find("v_proj") != std::string::npos;
      for (int64_t i = 0; i < tensor.stored.elements(); ++i) {
        // The second head of keys and values is in two of three shards.
        const bool twice = copied && i >= tensor.stored.elements() / 2;
        for (int n = 0; n < (twice ? 2 : 1); ++n) wanted.insert(i);
      }
      // In pieces that end within rows.
      for (int64_t first = 0; first < tensor.stored.elements(); first += 5) {
        const int64_t n = std::min<int64_t>(5, tensor.stored.elements() - first);
        ForEachRun(tensor, first, n,
                   [&](const ShardPiece& piece, int64_t offset, int64_t at, int64_t count) {
                     const Tensor& shard = cut.tensors[cut.parameters[piece.position]];
                     EXPECT_LE(offset + count, shard.elements());
                     for (int64_t i = 0; i < count; ++i) seen.insert(first + at + i);
                   });
      }
      EXPECT_EQ(seen, wanted) << tensor.stored.name;
      elements += tensor.stored.elements();
    }
    EXPECT_GT(elements, 0);
    EXPECT_EQ(cut.summary.parameters(), whole.summary.parameters());
  }
}

// What a shard draws are the elements that it has of the whole.
TEST(Tensor, ShardsAreDrawnAsTheWhole) {
  const Plan cut = PlanOf(Cut(LlamaSpec(), 2), TokenFacts(11));
  std::map<std::string, std::multiset<int64_t>> drawn;
  std::map<std::string, int64_t> elements;
  for (const TensorId id : cut.parameters) {
    const Tensor& tensor = cut.tensors[id];
    if (!tensor.shard) continue;
    int64_t offset = 0;
    for (const DrawnRun& run : DrawnRuns(tensor)) {
      EXPECT_EQ(run.offset, offset);
      offset += run.n;
      for (int64_t i = 0; i < run.n; ++i) drawn[tensor.shard->whole].insert(run.first + i);
    }
    EXPECT_EQ(offset, tensor.elements());
    int64_t all = 1;
    for (const int64_t dim : tensor.shard->dims) all *= dim;
    elements[tensor.shard->whole] = all;
  }
  EXPECT_EQ(elements.size(), 10u);  // 4 products in each of 2 layers, tokens and head
  for (const auto& [name, count] : elements) {
    std::multiset<int64_t> wanted;
    for (int64_t i = 0; i < count; ++i) wanted.insert(i);
    EXPECT_EQ(drawn[name], wanted) << name;
  }
}

TEST(Tensor, NothingOfShardsIsInAPlanOfOne) {
  const Plan plan = PlanOf(GptSpec(), TokenFacts(11));
  for (const auto* ops : {&plan.micro, &plan.evaluate}) {
    EXPECT_TRUE(OpsOf<AddParts>(*ops).empty());
    EXPECT_TRUE(OpsOf<CrossEntropyShard>(*ops).empty());
  }
  EXPECT_TRUE(StoredShards(plan).empty());
  // Copies were told apart for the backward pass alone.
  const Plan cut = PlanOf(Cut(GptSpec(), 2), TokenFacts(11));
  EXPECT_TRUE(OpsOf<Spread>(cut.micro).empty());
  EXPECT_TRUE(OpsOf<Spread>(cut.evaluate).empty());
  // Of 2 layers the results of 2 products, and the gradient of what these two and the head read.
  EXPECT_EQ(OpsOf<AddParts>(cut.micro).size(), 4u + 5u);
}

}  // namespace
}  // namespace trainyard::plan
