// That a run touches the memory that the plan says, all of it, and nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/evaluator.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/memory/memory.h"
#include "executor/plan/spec/spec.h"
#include "google/protobuf/text_format.h"
#include "storage/base/status.h"
#include "tests/unit/engine/engine_fixture.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kMargin = 1 << 16;
constexpr char kPattern = '\xa5';

// A CPU whose memory has margins that are filled with a pattern.
class CanaryDevice : public kernels::Device {
 public:
  CanaryDevice() : cpu_(kernels::OpenCpu(1).value()) {}

  std::string Description() const override { return cpu_->Description(); }
  std::map<std::string, std::string> Arithmetic() const override { return cpu_->Arithmetic(); }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    TY_ASSIGN_OR_RETURN(void* memory, cpu_->Allocate(bytes + 2 * kMargin));
    char* begin = static_cast<char*>(memory);
    memset(begin, kPattern, bytes + 2 * kMargin);
    blocks_.push_back({begin, static_cast<int64_t>(bytes)});
    return begin + kMargin;
  }
  void Free(void*) override {}  // with the device, after the margins were looked at

  std::unique_ptr<kernels::Stream> MakeStream() override { return cpu_->MakeStream(); }
  void CopyIn(kernels::Stream& s, void* to, const void* from, size_t n) override {
    cpu_->CopyIn(s, to, from, n);
  }
  void CopyOut(kernels::Stream& s, void* to, const void* from, size_t n) override {
    cpu_->CopyOut(s, to, from, n);
  }
  void Copy(kernels::Stream& s, void* to, const void* from, size_t n) override {
    cpu_->Copy(s, to, from, n);
  }
  absl::Status Synchronize(kernels::Stream& s) override { return cpu_->Synchronize(s); }
  absl::StatusOr<kernels::Kernel> Record(kernels::Stream& s,
                                         std::shared_ptr<const kernels::Kernels> p) override {
    return cpu_->Record(s, std::move(p));
  }

#define FORWARD(Op) \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op& op) override { return cpu_->Prepare(op); }
  TY_FOR_EACH_OP(FORWARD)
#undef FORWARD

  char* block(size_t i) const { return blocks_[i].begin + kMargin; }

  // Bytes of all margins that were written to.
  int64_t TouchedMargins() const {
    int64_t touched = 0;
    for (const Block& b : blocks_) {
      const auto differs = [](char c) { return c != kPattern; };
      touched += std::count_if(b.begin, b.begin + kMargin, differs);
      touched +=
          std::count_if(b.begin + kMargin + b.bytes, b.begin + 2 * kMargin + b.bytes, differs);
    }
    return touched;
  }

 private:
  struct Block {
    char* begin;
    int64_t bytes;
  };
  std::unique_ptr<kernels::Device> cpu_;
  std::vector<Block> blocks_;
};

// The end of the last byte of `region` that differs from the pattern, relative to its start.
int64_t TouchedEnd(const char* arena, const plan::Region& region) {
  int64_t end = region.bytes;
  while (end > 0 && arena[region.offset + end - 1] == kPattern) --end;
  return end;
}

// After a step, bit by bit; of bf16, which is the upper half of an fp32 but for its rounding.
void ExpectCopiesHoldTheirWeights(const plan::Plan& plan, const char* arena) {
  for (size_t p = 0; p < plan.copies.size(); ++p) {
    if (plan.copies[p] == plan::kNone) continue;
    const plan::Tensor& copy = plan.tensors[plan.copies[p]];
    if (copy.type != plan::ElementType::kBF16) continue;
    for (int64_t i = 0; i < copy.elements(); ++i) {
      uint32_t w = 0;
      uint16_t narrow = 0;
      memcpy(&w, arena + plan.offsets[plan.parameters[p]] + 4 * i, sizeof(w));
      memcpy(&narrow, arena + plan.offsets[plan.copies[p]] + 2 * i, sizeof(narrow));
      ASSERT_EQ(narrow, (w + 0x7fff + (w >> 16 & 1)) >> 16) << copy.name << "[" << i << "]";
    }
  }
}

// One whole optimizer step and one evaluation over an arena whose gradients, scalars and
// activations hold the pattern. The parameters and the optimizer's state hold what they must.
void ExpectTheArenaAndNothingElseTouched(const v1::JobSpec& given) {
  const v1::JobSpec spec = plan::ResolveSpec(given).value();
  const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
  const plan::Plan plan = plan::BuildPlan(spec, dataset->facts()).value();
  CanaryDevice device;
  {
    const auto session = Session::Open(device, plan).value();
    const auto trainer = Trainer::Create(*session, spec).value();
    ASSERT_TRUE(trainer->Initialize().ok());
    char* arena = device.block(0);
    for (const plan::Region& region : {plan.scalar_region, plan.activation_region}) {
      memset(arena + region.offset, kPattern, region.bytes);
    }
    std::vector<plan::TensorId> gradients = plan.gradients;
    if (plan.row_gradient != plan::kNone) {
      gradients.insert(gradients.end(), {plan.row_gradient, plan.row_ids});
    }
    for (const plan::TensorId id : gradients) {  // their padding stays zero
      memset(arena + plan.offsets[id], kPattern, plan.tensors[id].bytes());
    }
    data::Loader loader(*dataset, {.seed = 1,
                                   .batch_size = spec.training().batch_size(),
                                   .samples = spec.training().batch_size(),
                                   .micro_batch = plan.micro_batch});
    const auto step = trainer->Step([&] { return loader.Next(); });
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_LT(step->loss, 10);
    Evaluator evaluator(*session, *dataset);
    const auto evaluated = evaluator.Run(0);
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    EXPECT_LT(evaluated->at("loss"), 10);

    // To the last tensor of each region; what follows it is padding.
    ExpectCopiesHoldTheirWeights(plan, arena);
    EXPECT_GT(TouchedEnd(arena, plan.activation_region),
              plan.activation_region.bytes - plan::kAlignment);
    EXPECT_GT(TouchedEnd(arena, plan.scalar_region), plan.scalar_region.bytes - plan::kAlignment);
    EXPECT_EQ(plan.activation_region.end(), plan.arena_bytes);
    for (const plan::TensorId id : gradients) {
      const char* at = arena + plan.offsets[id];
      EXPECT_EQ(std::count(at, at + plan.tensors[id].bytes(), kPattern) < plan.tensors[id].bytes(),
                true)
          << plan.tensors[id].name;
    }
  }
  EXPECT_EQ(device.TouchedMargins(), 0);
}

// What is computed in, and whether training or evaluation needs more.
class Canary : public ::testing::TestWithParam<std::tuple<v1::Precision::Compute, bool>> {
 protected:
  void Set(v1::JobSpec& spec) const {
    spec.mutable_precision()->set_compute(std::get<0>(GetParam()));
    spec.mutable_evaluation()->set_batch_size(std::get<1>(GetParam()) ? 64 : 1);
  }
};

TEST_P(Canary, AGptTouchesItsPlannedArenaAndNothingElse) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  Set(spec);
  ExpectTheArenaAndNothingElseTouched(spec);
}

TEST_P(Canary, EveryOptimizerTouchesItsPlannedArenaAndNothingElse) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  Set(spec);
  spec.mutable_training()->set_ema_decay(0.9);
  spec.mutable_optimizer()->add_groups()->set_pattern("*.ln_?.*");
  spec.mutable_optimizer()->mutable_groups(0)->set_frozen(true);
  v1::Sgd nesterov;
  nesterov.set_momentum(0.9);
  nesterov.set_nesterov(true);
  *spec.mutable_optimizer()->mutable_sgd() = nesterov;
  ExpectTheArenaAndNothingElseTouched(spec);
  spec.mutable_optimizer()->mutable_lamb();
  ExpectTheArenaAndNothingElseTouched(spec);
  // So small a batch that Muon's scratch is what needs most.
  spec.mutable_optimizer()->mutable_muon();
  spec.mutable_training()->set_batch_size(1);
  spec.mutable_training()->clear_micro_batch_size();
  ExpectTheArenaAndNothingElseTouched(spec);
}

// One micro-batch: activations lie in the memory of gradients; some are computed twice.
TEST_P(Canary, AGptThatRecomputesTouchesItsPlannedArenaAndNothingElse) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteText(folder.path()), 3);
  spec.mutable_training()->set_micro_batch_size(8);
  Set(spec);
  ExpectTheArenaAndNothingElseTouched(spec);
  spec.mutable_evaluation()->set_batch_size(1);
  for (const double share : {0.8, 0.6}) {
    spec.mutable_training()->mutable_recompute()->set_activation_share(share);
    ExpectTheArenaAndNothingElseTouched(spec);
  }
}

TEST_P(Canary, ADlrmTouchesItsPlannedArenaAndNothingElse) {
  v1::JobSpec spec;
  spec.mutable_model()->mutable_dlrm()->set_embedding_width(3);
  v1::ClicksData& clicks = *spec.mutable_data()->mutable_clicks();
  clicks.set_train_samples(1000);
  clicks.set_validation_samples(70);
  clicks.set_categorical(5);
  clicks.set_categories(7);
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_batch_size(12);
  spec.mutable_training()->set_micro_batch_size(4);
  Set(spec);
  for (int kind = 0; kind < 4; ++kind) {
    if (kind == 3) spec.mutable_optimizer()->mutable_sgd()->set_lazy_tables(true);
    if (kind == 3) spec.mutable_parallel()->set_logical_ranks(3);
    if (kind < 2) spec.mutable_optimizer()->mutable_adamw()->set_lazy_tables(kind == 1);
    if (kind == 2) spec.mutable_optimizer()->mutable_sgd();
    ExpectTheArenaAndNothingElseTouched(spec);
  }
}

TEST_P(Canary, ABertTouchesItsPlannedArenaAndNothingElse) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt(WriteDocuments(folder.path()), 3);
  v1::Bert& bert = *spec.mutable_model()->mutable_bert();
  bert.set_layers(2);
  bert.set_heads(2);
  bert.set_width(10);
  bert.set_context(9);
  bert.set_dropout(0.1);
  Set(spec);
  ExpectTheArenaAndNothingElseTouched(spec);
}

TEST_P(Canary, ModelsOfImagesTouchTheirPlannedArenaAndNothingElse) {
  const TempFolder folder;
  v1::JobSpec spec = SmallGpt("", 3);
  *spec.mutable_data() = SmallImages(folder.path());
  Set(spec);

  v1::Vit& vit = *spec.mutable_model()->mutable_vit();
  vit.set_layers(2);
  vit.set_heads(2);
  vit.set_width(10);
  vit.set_patch(4);
  vit.set_dropout(0.1);
  ExpectTheArenaAndNothingElseTouched(spec);

  spec.mutable_model()->mutable_mobilenet()->set_stem(v1::Resnet::CIFAR);
  spec.mutable_model()->mutable_mobilenet()->set_width(0.05);
  ExpectTheArenaAndNothingElseTouched(spec);

  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString(R"(
      layers { name: "a" convolution { out: 5 } }
      layers { name: "b" inputs: "a" inputs: "input" concat {} }
      layers { activation: RELU6 }
      layers { sequence {} }
      layers { positions {} }
      layers { attention { heads: 2 kv_heads: 2 } }
      layers { mean_pool {} }
      layers { linear {} })",
                                                    spec.mutable_model()->mutable_layers()));
  ExpectTheArenaAndNothingElseTouched(spec);
}

INSTANTIATE_TEST_SUITE_P(PrecisionAndWhetherEvaluationNeedsMore, Canary,
                         ::testing::Combine(::testing::Values(v1::Precision::FP32,
                                                              v1::Precision::BF16,
                                                              v1::Precision::FP16),
                                            ::testing::Bool()));

}  // namespace
}  // namespace trainyard::engine
