// A list of layers that spells out a family gives the same bits: the same losses from the same
// start, the same weights after it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "executor/engine/sampler.h"
#include "google/protobuf/text_format.h"
#include "kernels/cpu/cpu_device.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

class LayersRunTest : public ::testing::Test {
 protected:
  void ExpectTheSameBits(v1::JobSpec spec, const std::string& family, const std::string& layers) {
    v1::Model& model = *spec.mutable_model();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(family, &model)) << family;
    RecordingObserver built_in;
    const auto first = RunOnCpu(spec, folder_.path() + "/family", built_in);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(layers, &model)) << layers;
    RecordingObserver spelt_out;
    const auto second = RunOnCpu(spec, folder_.path() + "/layers", spelt_out);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(spelt_out.TrainLosses(), built_in.TrainLosses());
    EXPECT_EQ(spelt_out.metrics.back().values.at("loss"),
              built_in.metrics.back().values.at("loss"));
    EXPECT_EQ(spelt_out.checkpoints.back().weights_sha256,
              built_in.checkpoints.back().weights_sha256);
  }

  v1::JobSpec OnImages() const {
    v1::JobSpec spec = SmallGpt("", 6);
    *spec.mutable_data() = SmallImages(folder_.path());
    return spec;
  }

  TempFolder folder_;
};

// As exactly as a double can be written.
std::string Std(double value) { return absl::StrFormat("init_std: %.17g", value); }

TEST_F(LayersRunTest, AnMlp) {
  ExpectTheSameBits(
      OnImages(), "mlp { hidden: [20, 10] activation: GELU dropout: 0.2 }",
      absl::StrCat("layers { layers { flatten {} }", "layers { name: 'layers.0' linear { out: 20 ",
                   Std(std::sqrt(2.0 / 96)), " } }",
                   "layers { activation: GELU } layers { dropout: 0.2 }",
                   "layers { name: 'layers.1' linear { out: 10 ", Std(std::sqrt(2.0 / 20)), " } }",
                   "layers { activation: GELU } layers { dropout: 0.2 }",
                   "layers { name: 'layers.2' linear { ", Std(std::sqrt(1.0 / 10)), " } } }"));
}

// The first two stages of blocks would be a resnet of depth 10; the family knows 18 only: all four.
TEST_F(LayersRunTest, AResnet) {
  const auto convolution = [](const std::string& name, int out, int kernel, int stride) {
    return absl::StrCat("layers { name: '", name, ".convolution' convolution { out: ", out,
                        " kernel: ", kernel, " stride: ", stride, " bias: false ",
                        Std(std::sqrt(2.0 / (out * kernel * kernel))), " } } layers { name: '",
                        name, ".normalization' batch_norm {} } ");
  };
  const std::string relu = "layers { activation: RELU } ";
  std::string blocks;
  for (int stage = 0; stage < 4; ++stage) {
    for (int i = 0; i < 2; ++i) {
      const int out = 4 << stage, stride = stage > 0 && i == 0 ? 2 : 1;
      const std::string short_cut = stride == 1 ? "" : convolution("shortcut", out, 1, 2);
      absl::StrAppend(
          &blocks, "layers { name: 'resnet.encoder.stages.", stage, ".layers.", i, "' block { ",
          short_cut,
          // Its first layer takes what enters the block, not the shortcut.
          "layers { name: 'branch' inputs: 'input' dropout: 0 } ",
          convolution("layer.0", out, 3, stride), relu, convolution("layer.1", out, 3, 1),
          "layers { name: 'sum' inputs: 'layer.1.normalization' inputs: '",
          stride == 1 ? "input" : "shortcut.normalization", "' add {} } ", relu, "} } ");
    }
  }
  v1::JobSpec spec = OnImages();
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  ExpectTheSameBits(
      spec, "resnet { depth: 18 stem: CIFAR width: 4 }",
      absl::StrCat("layers { ", convolution("resnet.embedder.embedder", 4, 3, 1), relu, blocks,
                   "layers { mean_pool {} } layers { name: 'classifier.1' linear { ",
                   Std(std::sqrt(1.0 / (3 * 32))), " } } }"));
}

TEST_F(LayersRunTest, AGpt) {
  v1::JobSpec spec = SmallGpt(WriteText(folder_.path()), 6);
  const std::string inner = Std(0.02), last = Std(0.02 / std::sqrt(4.0));
  const auto linear = [](const std::string& name, int out, const std::string& std) {
    return absl::StrCat("layers { name: '", name, "' linear { out: ", out, " transposed: true ",
                        std, " } } ");
  };
  ExpectTheSameBits(
      spec, "gpt { layers: 2 heads: 2 width: 16 context: 8 dropout: 0.1 }",
      absl::StrCat("layers { context: 8 layers { name: 'transformer.wte' embedding { width: 16 ",
                   inner, " } } layers { name: 'transformer.wpe' positions { ", inner,
                   " } } layers { dropout: 0.1 } layers { name: 'transformer.h' block { repeat: 2 ",
                   "layers { name: 'ln_1' layer_norm {} }", linear("attn.c_attn", 48, inner),
                   "layers { attention { heads: 2 } } layers { dropout: 0.1 }",
                   linear("attn.c_proj", 16, last),
                   "layers { name: 'dropped' dropout: 0.1 }"
                   "layers { name: 'middle' inputs: 'input' inputs: 'dropped' add {} }"
                   "layers { name: 'ln_2' layer_norm {} }",
                   linear("mlp.c_fc", 64, inner), "layers { activation: GELU_TANH }",
                   linear("mlp.c_proj", 16, last),
                   "layers { name: 'last' dropout: 0.1 }"
                   "layers { inputs: 'middle' inputs: 'last' add {} } } }"
                   "layers { name: 'transformer.ln_f' layer_norm {} }"
                   "layers { name: 'lm_head' linear { tied: 'transformer.wte' } } }"));
}

// Whose memory holds NaN wherever nothing was written.
class PoisonedCpu : public kernels::CpuDevice {
 public:
  PoisonedCpu() : CpuDevice(1, *SupportedTables().front()) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    absl::StatusOr<void*> data = CpuDevice::Allocate(bytes);
    if (data.ok()) std::memset(*data, 0xff, bytes);
    return data;
  }
};

TEST_F(LayersRunTest, SamplesByTheRunningStatisticsOfItsCheckpoint) {
  const std::string text = folder_.path() + "/letters";
  std::ofstream out(text);
  for (int i = 0; i < 500; ++i) out << "abcdefgh";
  out.close();
  v1::JobSpec spec = SmallGpt(text, 100);
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    layers {
      context: 8
      layers { embedding { width: 16 } }
      layers { batch_norm {} }
      layers { linear {} }
    })",
                                                            spec.mutable_model()));
  RecordingObserver seen;
  ASSERT_TRUE(RunOnCpu(spec, folder_.path() + "/run", seen).ok());
  const auto store = MakeFileStore();
  const auto checkpoint = Checkpoint::Open(*store, seen.checkpoints.back().uri, "");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  PoisonedCpu device;
  const auto sampler = Sampler::Load(device, *checkpoint);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<int32_t> ids;
  const absl::Status sampled = (*sampler)->Run({0, 1, 2}, 0, {.tokens = 7, .temperature = 0},
                                               [&](int32_t id) { ids.push_back(id); });
  ASSERT_TRUE(sampled.ok()) << sampled;
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 4, 5, 6, 7, 0, 1}));
}

}  // namespace
}  // namespace trainyard::engine
