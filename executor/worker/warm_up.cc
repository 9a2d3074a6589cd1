#include "executor/worker/warm_up.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "executor/engine/session.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "storage/base/status.h"

namespace trainyard::worker {
namespace {

// Ops one by one, each with its own operands.
absl::Status RunSmallOps(kernels::Device& device) {
  constexpr int64_t kSide = 64;
  constexpr int64_t kBytes = kSide * kSide * sizeof(float);
  TY_ASSIGN_OR_RETURN(void* const memory, device.Allocate(3 * kBytes));
  const absl::Cleanup free = [&] { device.Free(memory); };
  const auto at = [&](int64_t place, kernels::DType type) {
    return kernels::Buffer{static_cast<char*>(memory) + place * kBytes, type};
  };
  const kernels::DType f32 = kernels::DType::kF32, bf16 = kernels::DType::kBF16;
  std::vector<absl::StatusOr<kernels::Kernel>> kernels;
  kernels.push_back(device.Prepare(kernels::Zero{.x = at(0, f32), .n = 3 * kSide * kSide}));
  kernels.push_back(device.Prepare(kernels::Matmul{
      .a = at(0, f32), .b = at(1, f32), .c = at(2, f32), .m = kSide, .n = kSide, .k = kSide}));
  // For these ops a GPU's libraries load code, which takes longer than a small model's first step.
  if (device.Asynchronous()) {
    kernels.push_back(device.Prepare(kernels::ConvolutionForward{
        .x = at(0, bf16),
        .w = at(1, bf16),
        .y = at(2, bf16),
        .shape = {.batch = 1, .height = 8, .width = 8, .in = kSide, .out = kSide}}));
    kernels.push_back(device.Prepare(kernels::AttentionForward{.qkv = at(0, bf16),
                                                               .y = at(1, bf16),
                                                               .lse = at(2, f32),
                                                               .batch = 1,
                                                               .time = 32,
                                                               .heads = 1,
                                                               .kv_heads = 1,
                                                               .head_dim = 64,
                                                               .scale = 0.125f}));
  }
  size_t scratch_bytes = 0;
  for (const auto& kernel : kernels) {
    if (kernel.ok()) scratch_bytes = std::max(scratch_bytes, kernel->scratch_bytes);
  }
  TY_ASSIGN_OR_RETURN(void* const scratch, device.Allocate(scratch_bytes));
  const absl::Cleanup free_scratch = [&] { device.Free(scratch); };
  const std::unique_ptr<kernels::Stream> stream = device.MakeStream();
  stream->scratch = scratch;
  stream->scratch_bytes = scratch_bytes;
  for (const auto& kernel : kernels) {
    if (kernel.ok()) kernel->launch(*stream);
  }
  return device.Synchronize(*stream);
}

// A language model with what most jobs have: 16-bit products, AdamW, a clipped gradient.
absl::StatusOr<plan::Plan> SmallPlan(const kernels::Device& device) {
  constexpr int kVocabulary = 128;
  v1::JobSpec spec;
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(1);
  gpt.set_heads(1);
  gpt.set_width(64);
  gpt.set_context(64);
  gpt.set_vocab_size(kVocabulary);
  v1::TokenData& tokens = *spec.mutable_data()->mutable_tokens();
  tokens.add_train("/dev/null");
  tokens.set_vocab_size(kVocabulary);
  spec.mutable_training()->set_steps(1);
  spec.mutable_training()->set_batch_size(2);
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_optimizer()->set_clip_norm(1);
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  TY_ASSIGN_OR_RETURN(const v1::JobSpec resolved, plan::ResolveSpec(spec));
  return plan::BuildPlan(engine::PlannedFor(device, resolved),
                         {.kind = plan::DataFacts::Kind::kTokens, .vocab = kVocabulary});
}

// Kernels of a device are loaded when they first run, a millisecond each on a GPU: a step of a
// small model loads those that the first step of a job would wait for. It computes on zeros, and
// its result is of no use. Attention is left out: its plans take longer to make than all the rest.
absl::Status RunSmallStep(kernels::Device& device) {
  TY_ASSIGN_OR_RETURN(const plan::Plan plan, SmallPlan(device));
  TY_ASSIGN_OR_RETURN(const auto session, engine::Session::Open(device, plan));
  std::vector<plan::Op> ops;
  for (const auto* part : {&plan.begin, &plan.zero, &plan.micro, &plan.norm, &plan.end}) {
    std::copy_if(part->begin(), part->end(), std::back_inserter(ops), [](const plan::Op& op) {
      return !std::holds_alternative<plan::AttentionForward>(op) &&
             !std::holds_alternative<plan::AttentionBackward>(op);
    });
  }
  TY_ASSIGN_OR_RETURN(kernels::Kernels kernels, session->Prepare(ops));
  TY_RETURN_IF_ERROR(session->Zero({.offset = 0, .bytes = plan.arena_bytes}));
  engine::Program program(std::move(kernels));
  for (int i = 0; i < 2; ++i) TY_RETURN_IF_ERROR(session->Run(program));  // as it is, and recorded
  return session->Synchronize();
}

}  // namespace

absl::Status WarmUp(kernels::Device& device) {
  TY_RETURN_IF_ERROR(RunSmallOps(device));
  return device.Asynchronous() ? RunSmallStep(device) : absl::OkStatus();
}

}  // namespace trainyard::worker
