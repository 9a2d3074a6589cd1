// Every family trains on the GPU (or in its emulation) as on the CPU: losses, norms of the
// gradient, scores of the held-out samples and the weights at the end. Twice the same bits, and the
// same again when no step is recorded or ahead of another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/checkpoint/read_checkpoint.h"
#include "executor/engine/lowering.h"
#include "executor/plan/build.h"
#include "executor/plan/cost/gpu_memory.h"
#include "executor/plan/ops/op.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/objects/file_store.h"
#include "tests/gpu/op_bench.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

enum class On { kImages, kText, kDocuments, kClicks };

struct Family {
  const char* name;
  On data;
  const char* model;
  const char* rest = "";    // of the spec, merged in
  double tolerance = 1e-4;  // of a gradient in fp32, relative
};

// Small, but with each of their parts: odd sizes, micro-batches, dropout. Deep ones that are not
// trained yet magnify rounding, and a relu that only one of both devices turns on shows in all
// layers before it.
const Family kFamilies[] = {
    {"mlp", On::kImages, "mlp { hidden: 33 hidden: 17 activation: GELU dropout: 0.2 }"},
    {"convnet", On::kImages,
     "convnet { stages { channels: 5 convolutions: 2 } stages { channels: 8 } hidden: 9 }"},
    {"gpt", On::kText, "gpt { layers: 2 heads: 2 width: 16 context: 8 dropout: 0.1 }"},
    {"gpt_untied", On::kText,
     "gpt { layers: 1 heads: 3 width: 24 context: 9 bias: false tie_embeddings: false }"},
    {"llama", On::kText, "llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 }"},
    {"bert", On::kDocuments, "bert { layers: 2 heads: 2 width: 8 context: 9 dropout: 0.1 }"},
    {"vit", On::kImages, "vit { layers: 2 heads: 2 width: 8 patch: 4 dropout: 0.1 }"},
    {"resnet18", On::kImages, "resnet { depth: 18 stem: CIFAR width: 4 }"},
    {"resnet50", On::kImages, "resnet { depth: 50 stem: CIFAR width: 4 }", "", 1e-2},
    {"mobilenet", On::kImages, "mobilenet { stem: CIFAR width: 0.05 dropout: 0.2 }", "", 1e-2},
    {"dlrm", On::kClicks, "dlrm { embedding_width: 8 bottom: 16 top: 32 }"},
    {"layers", On::kImages,
     R"(layers {
          layers { name: "a" convolution { out: 4 kernel: 7 stride: 2 } }
          layers { batch_norm {} }
          layers { name: "n" activation: RELU6 }
          layers { inputs: "n" inputs: "a" concat {} }
          layers { convolution { out: 8 groups: 2 } }
          layers { max_pool { window: 3 stride: 2 pad: 1 } }
          layers { dropout: 0.2 }
          layers { mean_pool {} }
          layers { linear {} } })"},
    {"recomputing", On::kText, "gpt { layers: 3 heads: 2 width: 16 context: 8 dropout: 0.1 }",
     "training { recompute { activation_share: 0.6 } }"},
    {"adapted", On::kText, "llama { layers: 2 heads: 2 width: 16 context: 8 }",
     "fine_tune { lora { rank: 2 dropout: 0.1 } }"},
    {"smoothed", On::kText, "gpt { layers: 1 heads: 2 width: 16 context: 8 }",
     "training { label_smoothing: 0.1 z_loss: 1e-3 }"},
    {"gpt_in_shards", On::kText, "gpt { layers: 2 heads: 4 width: 16 context: 8 dropout: 0.1 }",
     "parallel { tensor: 3 } training { label_smoothing: 0.1 z_loss: 1e-3 }"},
    {"llama_in_shards", On::kText, "llama { layers: 2 heads: 4 kv_heads: 2 width: 16 context: 8 }",
     "parallel { tensor: 4 pipeline: 2 }"},
    {"bert_in_shards", On::kDocuments,
     "bert { layers: 2 heads: 2 width: 8 context: 9 dropout: 0.1 }", "parallel { tensor: 2 }"},
    {"vit_in_shards", On::kImages, "vit { layers: 2 heads: 2 width: 8 patch: 4 dropout: 0.1 }",
     "parallel { tensor: 2 }"},
};

// Logits whose rows lie apart.
const Family kAligned[] = {
    {"gpt_aligned", On::kText, "gpt { layers: 2 heads: 2 width: 16 context: 8 vocab_size: 62 }",
     "resources { device: CUDA }"},
    {"bert_aligned", On::kDocuments,
     "bert { layers: 1 heads: 2 width: 8 context: 9 vocab_size: 61 }",
     "resources { device: CUDA }"},
};

constexpr char kGpt[] = "gpt { layers: 1 heads: 2 width: 16 context: 8 }";
constexpr char kDlrm[] = "dlrm { embedding_width: 8 bottom: 16 top: 32 }";
const Family kUpdates[] = {
    {"sgd", On::kText, kGpt, "optimizer { sgd { momentum: 0.9 nesterov: true } clip_norm: 0.5 }"},
    {"adamw", On::kText, kGpt, "optimizer { adamw {} clip_norm: 0.5 }"},
    {"lamb", On::kText, kGpt, "optimizer { lamb {} }"},
    {"muon", On::kText, kGpt, "optimizer { muon {} }"},
    {"averaged", On::kText, kGpt, "optimizer { adamw {} } training { ema_decay: 0.9 }"},
    {"frozen", On::kText, kGpt,
     "optimizer { adamw {} groups { pattern: '*.attn.*' frozen: true } }"},
    {"lazy_tables", On::kClicks, kDlrm, "optimizer { adamw { lazy_tables: true } }"},
};

// Hands on everything but the recording of steps, and never computes behind our back.
class OneByOne : public kernels::Device {
 public:
  explicit OneByOne(kernels::Device& device) : device_(device) {}
  std::string Description() const override { return device_.Description(); }
  std::map<std::string, std::string> Arithmetic() const override { return device_.Arithmetic(); }
  bool IsGpu() const override { return device_.IsGpu(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return device_.Allocate(bytes); }
  void Free(void* data) override { device_.Free(data); }
  std::unique_ptr<kernels::Stream> MakeStream() override { return device_.MakeStream(); }
  std::shared_ptr<char[]> AllocateHost(size_t bytes) override {
    return device_.AllocateHost(bytes);
  }
  std::unique_ptr<kernels::Event> MakeEvent() override { return device_.MakeEvent(); }
  void RecordEvent(kernels::Event& mark, kernels::Stream& stream) override {
    device_.RecordEvent(mark, stream);
  }
  absl::Status Wait(kernels::Event& mark) override { return device_.Wait(mark); }
  void CopyIn(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    device_.CopyIn(stream, to, from, bytes);
  }
  void CopyOut(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    device_.CopyOut(stream, to, from, bytes);
  }
  void Copy(kernels::Stream& stream, void* to, const void* from, size_t bytes) override {
    device_.Copy(stream, to, from, bytes);
  }
  absl::Status Synchronize(kernels::Stream& stream) override { return device_.Synchronize(stream); }
  absl::StatusOr<kernels::Kernel> Record(kernels::Stream&,
                                         std::shared_ptr<const kernels::Kernels> program) override {
    return kernels::Kernel{[program = std::move(program)](kernels::Stream& stream) {
      for (const kernels::Kernel& kernel : *program) kernel.launch(stream);
    }};
  }
#define TY_HAND_ON(Op)                                                   \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op& op) override { \
    return device_.Prepare(op);                                          \
  }
  TY_FOR_EACH_OP(TY_HAND_ON)
#undef TY_HAND_ON

 private:
  kernels::Device& device_;
};

using Weights = std::map<std::string, std::vector<float>>;

// What a run left.
struct Ran {
  RecordingObserver seen;
  Weights weights;  // and running statistics: the tensors of fp32
};

const auto kPrecisions =
    ::testing::Values(v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16);

std::string NameOf(
    const ::testing::TestParamInfo<std::tuple<Family, v1::Precision::Compute>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_",
                      v1::Precision::Compute_Name(std::get<1>(info.param)));
}

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class RunsOnGpu : public ::testing::TestWithParam<std::tuple<Family, v1::Precision::Compute>> {
 protected:
  void SetUp() override {
    if (!kernels::TestedDevice().ok()) GTEST_SKIP() << kernels::TestedDevice().status();
  }

  // `how` is merged in before what the family says itself.
  v1::JobSpec Spec(const std::string& how) const {
    const auto& [family, compute] = GetParam();
    v1::JobSpec spec;
    Parse(
        "training { batch_size: 8 micro_batch_size: 4 log_every: 1 } schedule { shape: CONSTANT }"
        "precision { loss_scale { initial: 1024 } }",
        spec);
    if (compute != v1::Precision::FP16) spec.clear_precision();
    Parse(how, spec);
    Parse(family.rest, spec);
    Parse(absl::StrCat("model { ", family.model, " }"), spec);
    spec.mutable_precision()->set_compute(compute);
    switch (family.data) {
      case On::kImages:
        *spec.mutable_data() = SmallImages(folder_.path());
        // Large enough that the last batch norm of a resnet has a variance.
        WriteIdx(folder_.path() + "/images", {60, 20, 16}, 127);
        spec.mutable_data()->mutable_idx()->set_validation_fraction(0.2);
        break;
      case On::kText:
        spec.mutable_data()->mutable_text()->set_path(WriteText(folder_.path()));
        break;
      case On::kDocuments:
        spec.mutable_data()->mutable_text()->set_path(WriteDocuments(folder_.path()));
        break;
      case On::kClicks:
        Parse(
            "data { clicks { train_samples: 200 validation_samples: 50 dense: 3 categorical: 4 "
            "categories: 7 } }",
            spec);
    }
    return spec;
  }

  void Train(kernels::Device& device, const v1::JobSpec& spec, Ran& ran) {
    const auto result = RunOn(device, spec, absl::StrCat(folder_.path(), "/", ++runs_), ran.seen);
    ASSERT_TRUE(result.ok()) << result.status();
    const auto checkpoint = Checkpoint::Open(*store_, ran.seen.checkpoints.back().uri, "");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const auto& [name, entry] : checkpoint->model.header().tensors) {
      if (entry.dtype != "F32") continue;
      std::vector<float>& values = ran.weights[name];
      values.resize(entry.bytes() / sizeof(float));
      const auto to = reinterpret_cast<char*>(values.data());
      ASSERT_TRUE(checkpoint->model.Read(entry, 0, entry.bytes(), to).ok());
    }
  }

  static void Parse(const std::string& text, v1::JobSpec& spec) {
    v1::JobSpec more;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &more)) << text;
    spec.MergeFrom(more);
  }

 private:
  TempFolder folder_;
  const std::unique_ptr<ObjectStore> store_ = MakeFileStore();
  int runs_ = 0;
};

double Norm(const std::vector<float>& a) {
  return std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0));
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return Norm(difference);
}

// Of all tensors together.
double Distance(const Weights& a, const Weights& b) {
  double sum = 0;
  for (const auto& [name, values] : a) sum += std::pow(Distance(values, b.at(name)), 2);
  return std::sqrt(sum);
}

void ExpectTheSameBits(const Ran& a, const Ran& b) {
  EXPECT_EQ(a.seen.checkpoints.back().manifest_sha256, b.seen.checkpoints.back().manifest_sha256);
  ASSERT_EQ(a.seen.metrics.size(), b.seen.metrics.size());
  for (size_t i = 0; i < a.seen.metrics.size(); ++i) {
    for (const auto& [name, value] : a.seen.metrics[i].values) {
      if (absl::EndsWith(name, "_ms") || absl::EndsWith(name, "_per_second")) continue;
      if (name == "mfu" || name == "peak_memory_bytes") continue;
      EXPECT_EQ(b.seen.metrics[i].values.at(name), value) << name << " " << i;
    }
  }
}

// One step with a learning rate of 1 changes the weights by their gradients.
constexpr char kOneStep[] =
    "training { steps: 1 } optimizer { sgd {} } schedule { learning_rate: 1 }";
constexpr char kNoStep[] =
    "training { steps: 1 } optimizer { sgd {} } schedule { learning_rate: 0 }";

using GradientsOnGpu = RunsOnGpu;

TEST_P(GradientsOnGpu, AreThoseOfTheCpu) {
  const auto cpu = kernels::OpenCpu(1).value();
  Ran start, exact, on_cpu, on_gpu;
  v1::JobSpec in_fp32 = Spec(kOneStep);
  in_fp32.mutable_precision()->Clear();
  Train(*cpu, Spec(kNoStep), start);
  Train(*cpu, in_fp32, exact);
  Train(*cpu, Spec(kOneStep), on_cpu);
  Train(**kernels::TestedDevice(), Spec(kOneStep), on_gpu);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_EQ(on_gpu.weights.size(), exact.weights.size());
  const double all = Distance(start.weights, exact.weights);
  ASSERT_GT(all, 0);
  if (std::get<1>(GetParam()) != v1::Precision::FP32) {
    // As near to fp32 as the CPU comes.
    const double cpus = Distance(on_cpu.weights, exact.weights);
    EXPECT_LE(Distance(on_gpu.weights, exact.weights), 1.5 * cpus + 1e-4 * all);
    EXPECT_GT(cpus, 1e-5 * all);
  } else {
    const double tolerance = std::get<0>(GetParam()).tolerance;
    for (const auto& [name, values] : exact.weights) {
      EXPECT_LE(
          Distance(on_gpu.weights.at(name), values),
          tolerance * (Distance(start.weights.at(name), values) + 0.01 * (all + Norm(values))))
          << name;
    }
  }
  ASSERT_EQ(on_gpu.seen.metrics.size(), on_cpu.seen.metrics.size());
  const double of_loss = std::get<1>(GetParam()) == v1::Precision::FP32 ? 1e-5 : 1e-2;
  const double loss = on_cpu.seen.metrics[0].values.at("loss");
  EXPECT_NEAR(on_gpu.seen.metrics[0].values.at("loss"), loss, of_loss * loss);
}

INSTANTIATE_TEST_SUITE_P(Families, GradientsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kFamilies), kPrecisions), NameOf);

// Evaluation lies between the steps.
constexpr char kRun[] =
    "training { steps: 3 } optimizer { sgd { momentum: 0.9 } } evaluation { every_steps: 2 "
    "batch_size: 5 max_samples: 7 } schedule { learning_rate: 1e-3 }";

using UpdatesOnGpu = RunsOnGpu;

TEST_P(UpdatesOnGpu, AreThoseOfTheCpu) {
  const auto cpu = kernels::OpenCpu(1).value();
  Ran on_cpu, on_gpu;
  Train(*cpu, Spec(kRun), on_cpu);
  Train(**kernels::TestedDevice(), Spec(kRun), on_gpu);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_EQ(on_gpu.seen.metrics.size(), on_cpu.seen.metrics.size());
  for (size_t i = 0; i < on_cpu.seen.metrics.size(); ++i) {
    for (const char* name : {"loss", "grad_norm", "accuracy"}) {
      const auto value = on_cpu.seen.metrics[i].values.find(name);
      if (value == on_cpu.seen.metrics[i].values.end()) continue;
      EXPECT_NEAR(on_gpu.seen.metrics[i].values.at(name), value->second, 1e-4 * value->second)
          << name << " of step " << on_cpu.seen.metrics[i].step;
    }
  }
  for (const auto& [name, values] : on_cpu.weights) {
    EXPECT_LE(Distance(on_gpu.weights.at(name), values), 1e-5 * Norm(values) + 1e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, UpdatesOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kUpdates),
                                            ::testing::Values(v1::Precision::FP32)),
                         NameOf);

TEST_P(RunsOnGpu, GiveTheSameBitsRecordedOrNotOneStepAheadOrNot) {
  kernels::Device& device = **kernels::TestedDevice();
  OneByOne unrecorded(device);
  Ran first, second;
  Train(device, Spec(kRun), first);
  Train(unrecorded, Spec(kRun), second);
  ASSERT_FALSE(HasFatalFailure());
  ExpectTheSameBits(first, second);
}

// What the server believes.
TEST_P(RunsOnGpu, WantNoMoreScratchThanPlanned) {
  kernels::Device& device = **kernels::TestedDevice();
  v1::JobSpec spec = Spec(kRun);
  spec.mutable_resources()->set_device(v1::Resources::CUDA);
  spec = plan::ResolveSpec(spec).value();
  const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
  const plan::Plan plan = plan::BuildPlan(spec, dataset->facts()).value();
  void* const arena = device.Allocate(plan.arena_bytes).value();
  for (const auto* ops : {&plan.copy, &plan.start, &plan.begin, &plan.micro, &plan.norm, &plan.end,
                          &plan.evaluate_begin, &plan.evaluate}) {
    const auto kernels = Lower(device, plan, arena, *ops);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    for (size_t i = 0; i < ops->size(); ++i) {
      const int64_t planned = plan::GpuScratchBytes(plan.tensors, (*ops)[i]);
      EXPECT_LE((*kernels)[i].scratch_bytes, planned) << plan::OpName((*ops)[i]);
      EXPECT_LE(planned, plan.summary.workspace_bytes()) << plan::OpName((*ops)[i]);
    }
  }
  device.Free(arena);
}

INSTANTIATE_TEST_SUITE_P(Families, RunsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kFamilies), kPrecisions), NameOf);
// Dense or apart, as the plan is for any device or for GPUs. Only in the emulation do products of
// either add in the same order.
using LogitsOnGpu = RunsOnGpu;

TEST_P(LogitsOnGpu, GiveTheSameBitsHoweverTheirRowsLie) {
  kernels::Device& device = **kernels::TestedDevice();
  if (!absl::StrContains(device.Description(), "emulated")) GTEST_SKIP() << "a GPU";
  v1::JobSpec spec = Spec(kRun);
  ASSERT_EQ(spec.resources().device(), v1::Resources::CUDA);
  Ran apart, dense;
  Train(device, spec, apart);
  spec.clear_resources();
  Train(device, spec, dense);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(apart.weights, dense.weights);
  ASSERT_EQ(apart.seen.metrics.size(), dense.seen.metrics.size());
  for (size_t i = 0; i < dense.seen.metrics.size(); ++i) {
    for (const char* name : {"loss", "grad_norm", "accuracy", "perplexity"}) {
      const auto value = dense.seen.metrics[i].values.find(name);
      if (value == dense.seen.metrics[i].values.end()) continue;
      EXPECT_EQ(apart.seen.metrics[i].values.at(name), value->second) << name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Aligned, LogitsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kAligned), kPrecisions), NameOf);
INSTANTIATE_TEST_SUITE_P(Aligned, GradientsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kAligned), kPrecisions), NameOf);
INSTANTIATE_TEST_SUITE_P(Aligned, RunsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kAligned), kPrecisions), NameOf);
INSTANTIATE_TEST_SUITE_P(Optimizers, RunsOnGpu,
                         ::testing::Combine(::testing::ValuesIn(kUpdates), kPrecisions), NameOf);

}  // namespace
}  // namespace trainyard::engine
