// Runs of bert, vit, mobilenet and lists of layers: resumed with the same bits, and what their
// checkpoints say to transformers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/sampler.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FamiliesRunTest : public ::testing::Test {
 protected:
  v1::JobSpec OnImages(const std::string& model) const {
    v1::JobSpec spec = Small(model);
    *spec.mutable_data() = SmallImages(folder_.path());
    return spec;
  }
  v1::JobSpec OnDocuments(const std::string& model) const {
    v1::JobSpec spec = Small(model);
    spec.mutable_data()->mutable_text()->set_path(WriteDocuments(folder_.path()));
    return spec;
  }
  v1::JobSpec Vit() const {
    return OnImages("vit { layers: 2 heads: 2 width: 8 patch: 4 dropout: 0.1 }");
  }
  v1::JobSpec Bert() const {
    return OnDocuments("bert { layers: 2 heads: 2 width: 8 context: 9 dropout: 0.1 }");
  }
  v1::JobSpec Mobilenet() const { return OnImages("mobilenet { stem: CIFAR width: 0.05 }"); }

  void ExpectTheSameBitsWhereverItStops(const v1::JobSpec& spec) {
    RecordingObserver straight;
    const auto whole = RunOnCpu(spec, Root(), straight, std::nullopt, 2);
    ASSERT_TRUE(whole.ok()) << whole.status();
    for (const int64_t cut : {1, 4}) {
      const std::string root = Root();
      RecordingObserver first, second;
      first.stop_at = cut;
      ASSERT_TRUE(RunOnCpu(spec, root, first, std::nullopt, 2).ok());
      ASSERT_THAT(first.checkpoints, SizeIs(1));
      ASSERT_TRUE(RunOnCpu(spec, root, second, RestorePoint{first.checkpoints[0].uri, ""}, 2).ok());
      EXPECT_EQ(second.checkpoints.back().manifest_sha256,
                straight.checkpoints.back().manifest_sha256);
      EXPECT_EQ(second.metrics.back().values, straight.metrics.back().values);
      EXPECT_EQ(second.metrics.back().split, RunObserver::Split::kValidation);
    }
  }

  std::string Root() { return folder_.path() + "/run" + std::to_string(++runs_); }

  TempFolder folder_;
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();

 private:
  static v1::JobSpec Small(const std::string& model) {
    v1::JobSpec spec = SmallGpt("", 6);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model, spec.mutable_model()));
    return spec;
  }
  int runs_ = 0;
};

TEST_F(FamiliesRunTest, VitResumesWithTheSameBits) { ExpectTheSameBitsWhereverItStops(Vit()); }
TEST_F(FamiliesRunTest, BertResumesWithTheSameBits) { ExpectTheSameBitsWhereverItStops(Bert()); }
TEST_F(FamiliesRunTest, MobilenetResumesWithTheSameBits) {
  ExpectTheSameBitsWhereverItStops(Mobilenet());
}
TEST_F(FamiliesRunTest, ListsOfLayersResumeWithTheSameBits) {
  ExpectTheSameBitsWhereverItStops(OnImages(R"(layers {
      layers { name: "a" convolution { out: 4 } }
      layers { name: "n" batch_norm {} }
      layers { inputs: "n" inputs: "a" concat {} }
      layers { dropout: 0.2 }
      layers { mean_pool {} }
      layers { linear {} } })"));
}

// Checkpoint::Open verifies digests; names and shapes are transformers'.
TEST_F(FamiliesRunTest, CheckpointsOfBertHoldQueriesKeysAndValuesApart) {
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(Bert(), Root(), seen).ok());
  const auto checkpoint = Checkpoint::Open(*store_, seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto& tensors = checkpoint->model.header().tensors;
  EXPECT_THAT(tensors, SizeIs(5 + 2 * 16 + 5));
  const std::string self = "bert.encoder.layer.1.attention.self.";
  EXPECT_THAT(tensors.at(self + "key.weight").shape, ElementsAre(8, 8));
  EXPECT_THAT(tensors.at(self + "value.bias").shape, ElementsAre(8));
  EXPECT_THAT(tensors.at("bert.embeddings.token_type_embeddings.weight").shape, ElementsAre(2, 8));

  const auto device = kernels::OpenCpu(1).value();
  const auto sampler = Sampler::Load(*device, *checkpoint);
  EXPECT_EQ(sampler.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sampler.status().message()), HasSubstr("predicts next tokens"));
}

TEST_F(FamiliesRunTest, ConfigSpeaksToTransformers) {
  const auto config = [](const v1::JobSpec& given, const plan::DataFacts& facts) {
    const v1::JobSpec spec = plan::ResolveSpec(given).value();
    return nlohmann::json::parse(ConfigToJson({spec, facts}, plan::BuildPlan(spec, facts).value()));
  };
  plan::DataFacts images = {
      .height = 32, .width = 32, .channels = 3, .classes = 7, .train_size = 60};
  nlohmann::json json = config(Vit(), images);
  EXPECT_EQ(json.at("architectures"), nlohmann::json({"ViTForImageClassification"}));
  EXPECT_EQ(json.at("image_size"), 32);
  EXPECT_EQ(json.at("num_channels"), 3);
  EXPECT_EQ(json.at("num_labels"), 7);
  EXPECT_EQ(json.at("hidden_act"), "gelu");
  images.width = 36;
  EXPECT_EQ(config(Vit(), images).at("image_size"), nlohmann::json({32, 36}));

  json = config(Bert(), {.kind = plan::DataFacts::Kind::kDocuments, .vocab = 11, .train_size = 60});
  EXPECT_EQ(json.at("architectures"), nlohmann::json({"BertForMaskedLM"}));
  EXPECT_EQ(json.at("vocab_size"), 12);
  EXPECT_EQ(json.at("mask_token_id"), 11);
  EXPECT_EQ(json.at("max_position_embeddings"), 9);

  v1::JobSpec mobilenet = Mobilenet();
  EXPECT_EQ(config(mobilenet, images).at("model_type"), "trainyard-mobilenet");
  mobilenet.mutable_model()->mutable_mobilenet()->set_stem(v1::Resnet::IMAGENET);
  EXPECT_EQ(config(mobilenet, images).at("model_type"), "mobilenet_v2");
  EXPECT_EQ(config(mobilenet, images).at("depth_multiplier"), 0.05);
}

// What a masked model learns is scored on the masked tokens alone.
TEST_F(FamiliesRunTest, BertIsEvaluatedOnTheSameMaskedTokensEachTime) {
  v1::JobSpec spec = Bert();
  spec.mutable_schedule()->set_learning_rate(0);
  spec.mutable_schedule()->set_shape(v1::Schedule::CONSTANT);
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_evaluation()->set_every_steps(2);
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(spec, Root(), seen).ok());
  std::vector<double> losses;
  for (const auto& m : seen.metrics) {
    if (m.split == RunObserver::Split::kValidation) losses.push_back(m.values.at("loss"));
  }
  ASSERT_THAT(losses, SizeIs(3));
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

}  // namespace
}  // namespace trainyard::engine
