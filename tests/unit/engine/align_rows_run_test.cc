// A job for GPUs, whose logits lie in rows apart, leaves the bits of the same job for any device:
// weights, averages, losses, norms and scores, here on the CPU (tests/gpu/families_test.cc: in the
// emulator), samples, and the place of what is not finite.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "executor/data/open_dataset.h"
#include "executor/engine/sampler.h"
#include "executor/engine/trainer.h"
#include "executor/plan/assembly.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/objects/file_store.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/late_device.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

class AlignRowsRun : public testing::TestWithParam<Family> {
 protected:
  v1::JobSpec Spec(v1::Precision::Compute compute, v1::Resources::Device device) const {
    v1::JobSpec spec = SmallJob(GetParam(), folder_.path(), 3);
    spec.mutable_training()->set_ema_decay(0.9);
    spec.mutable_evaluation()->set_every_steps(2);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_resources()->set_device(device);
    return spec;
  }

  // Of the plan that a run makes of `spec`.
  static int64_t LogitsStride(const v1::JobSpec& spec) {
    const v1::JobSpec resolved = plan::ResolveSpec(spec).value();
    const auto dataset =
        data::OpenDataset(resolved.data(), plan::WindowingOf(resolved.model())).value();
    const plan::Plan plan = plan::BuildPlan(resolved, dataset->facts()).value();
    return plan.tensors[plan.eval_logits].row_stride;
  }

  void RunOf(const v1::JobSpec& spec, RecordingObserver& seen) {
    const auto result = RunOnCpu(spec, folder_.path() + "/" + std::to_string(++runs_), seen);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_FALSE(seen.checkpoints.empty());
  }

  TempFolder folder_;
  int runs_ = 0;
};

TEST_P(AlignRowsRun, LeavesTheSameBits) {
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
    for (const int micro_batch : {8, 4}) {
      SCOPED_TRACE(absl::StrCat(v1::Precision::Compute_Name(compute), " ", micro_batch));
      v1::JobSpec spec = Spec(compute, v1::Resources::DEVICE_UNSPECIFIED);
      spec.mutable_training()->set_micro_batch_size(micro_batch);
      RecordingObserver dense, apart;
      EXPECT_EQ(LogitsStride(spec), 0);
      RunOf(spec, dense);
      spec.mutable_resources()->set_device(v1::Resources::CUDA);
      EXPECT_EQ(LogitsStride(spec), 64);
      RunOf(spec, apart);
      EXPECT_EQ(apart.checkpoints.back().weights_sha256, dense.checkpoints.back().weights_sha256);
      ASSERT_EQ(apart.metrics.size(), dense.metrics.size());
      for (size_t i = 0; i < dense.metrics.size(); ++i) {
        for (const char* name : {"loss", "grad_norm", "accuracy", "perplexity", "z_loss"}) {
          const auto value = dense.metrics[i].values.find(name);
          if (value == dense.metrics[i].values.end()) continue;
          EXPECT_EQ(apart.metrics[i].values.at(name), value->second) << name << " " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, AlignRowsRun,
    testing::Values(
        Family{"gpt", "model { gpt { vocab_size: 62 } }"},
        Family{"untied",
               "model { gpt { vocab_size: 61 tie_embeddings: false } }"
               "training { label_smoothing: 0.1 z_loss: 1e-3 }"},
        Family{"recomputing",
               "model { gpt { vocab_size: 62 } } training { recompute { activation_share: 0.8 } }"},
        Family{"llama",
               "model { llama { layers: 2 heads: 2 width: 16 context: 8 vocab_size: 63 } }"},
        Family{"adapted",
               "model { llama { layers: 2 heads: 2 width: 16 context: 8 vocab_size: 62 } }"
               "fine_tune { lora { rank: 2 also_train: 'lm_head.weight' } }"},
        Family{"bert", "model { bert { layers: 2 heads: 2 width: 8 context: 9 vocab_size: 61 } }",
               Family::kDocuments},
        Family{"layers", R"(model { layers { context: 8
            layers { embedding { width: 16 } }
            layers { linear { out: 62 } } } })"}),
    [](const auto& info) { return info.param.name; });

// Trained alike but for the layout of its logits.
TEST(AlignRows, SamplesTheSameText) {
  TempFolder folder;
  std::vector<std::vector<int32_t>> sampled;
  const auto store = MakeFileStore();
  for (const auto where : {v1::Resources::DEVICE_UNSPECIFIED, v1::Resources::CUDA}) {
    v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
    spec.mutable_model()->mutable_gpt()->set_vocab_size(62);
    spec.mutable_resources()->set_device(where);
    RecordingObserver seen;
    ASSERT_TRUE(RunOnCpu(spec, absl::StrCat(folder.path(), "/", where), seen).ok());
    const auto checkpoint = Checkpoint::Open(*store, seen.checkpoints.back().uri, "");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto device = kernels::OpenCpu(1).value();
    const auto sampler = Sampler::Load(*device, *checkpoint);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    sampled.emplace_back();
    const absl::Status ran = (*sampler)->Run({1, 2, 3}, 0, {.tokens = 20, .temperature = 1},
                                             [&](int32_t id) { sampled.back().push_back(id); });
    ASSERT_TRUE(ran.ok()) << ran;
  }
  EXPECT_EQ(sampled[0].size(), 20u);
  EXPECT_EQ(sampled[1], sampled[0]);
}

// The logits of a row overflow. What lies between rows is made no number first: nobody looks there.
TEST(AlignRows, TheFirstLogitThatIsNotFiniteIsNamedByItsPlaceAmongDenseRows) {
  const plan::DataFacts facts = {
      .kind = plan::DataFacts::Kind::kTokens, .vocab = 62, .train_size = 1000};
  std::vector<std::string> found;
  for (const auto where : {v1::Resources::DEVICE_UNSPECIFIED, v1::Resources::CUDA}) {
    v1::JobSpec spec = SmallGpt("/unread", 3);
    spec.mutable_model()->mutable_gpt()->set_tie_embeddings(false);
    spec.mutable_model()->mutable_gpt()->set_dropout(0);
    spec.mutable_training()->set_micro_batch_size(8);
    spec.mutable_resources()->set_device(where);
    spec = plan::ResolveSpec(spec).value();
    const plan::Plan plan = plan::BuildPlan(spec, facts).value();
    const auto device = kernels::OpenCpu(1).value();
    const auto session = Session::Open(*device, plan).value();
    const auto trainer = Trainer::Create(*session, spec).value();
    ASSERT_TRUE(trainer->Initialize().ok());
    const std::vector<int32_t> ids(8 * 8, 5);
    const auto batches = [&]() -> absl::StatusOr<data::Loader::Batch> {
      return data::Loader::Batch{.inputs = ids.data(), .targets = ids.data()};
    };
    const auto write = [&](const std::string& name, const void* from, size_t bytes, size_t offset) {
      for (size_t id = 0; id < plan.tensors.size(); ++id) {
        if (plan.tensors[id].name != name) continue;
        session->Write(static_cast<plan::TensorId>(id), from, bytes, offset);
      }
    };
    const plan::CrossEntropy loss = std::get<plan::CrossEntropy>(*std::find_if(
        plan.micro.begin(), plan.micro.end(),
        [](const plan::Op& op) { return std::holds_alternative<plan::CrossEntropy>(op); }));
    const std::vector<char> no_numbers(plan.tensors[loss.logits].bytes(), '\xff');
    write("lm_head", no_numbers.data(), no_numbers.size(), 0);
    EXPECT_EQ(trainer->FindNonFinite(batches).value(), "");
    // What the head reads is all ones, and the weights of one token are as large as can be.
    const std::vector<float> zeros(16, 0.0f), ones(16, 1.0f), large(16, 3e38f);
    write("transformer.ln_f.weight", zeros.data(), 64, 0);
    write("transformer.ln_f.bias", ones.data(), 64, 0);
    write("lm_head.weight", large.data(), 64, 60 * 64);
    found.push_back(trainer->FindNonFinite(batches).value());
  }
  EXPECT_THAT(found[0], HasSubstr("matmul \"lm_head\" forward, micro-batch 1 of 1, element 60 of "
                                  "[64, 62], value inf"));
  EXPECT_EQ(found[1], found[0]);
}

// The CPU, asked for a GPU's layout.
class LikeAGpu : public LateDevice {
 public:
  LikeAGpu() : LateDevice(1) {}
  bool IsGpu() const override { return true; }
};

// A job that names no device is taken by what any device needs. Its budget is the least that holds
// dense rows: rows apart do not fit.
TEST(AlignRows, WhatABudgetDoesNotHoldStaysDense) {
  TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  spec.mutable_model()->mutable_gpt()->set_vocab_size(620);  // logits are most of what there is
  const v1::JobSpec resolved = plan::ResolveSpec(spec).value();
  const auto dataset =
      data::OpenDataset(resolved.data(), plan::WindowingOf(resolved.model())).value();
  const auto least = [&](const v1::JobSpec& of) {
    return plan::Assemble(of, dataset->facts(), 1).value().summary.activation_bytes();
  };
  LikeAGpu device;
  const int64_t dense = least(resolved);
  ASSERT_GT(least(PlannedFor(device, resolved)), dense);
  spec.mutable_training()->mutable_recompute()->set_activation_bytes(dense);
  RecordingObserver on_cpu, on_gpu;
  ASSERT_EQ(RunOnCpu(spec, folder.path() + "/cpu", on_cpu).status(), absl::OkStatus());
  ASSERT_EQ(RunOn(device, spec, folder.path() + "/gpu", on_gpu).status(), absl::OkStatus());
  EXPECT_EQ(on_gpu.checkpoints.back().weights_sha256, on_cpu.checkpoints.back().weights_sha256);
}

}  // namespace
}  // namespace trainyard::engine
