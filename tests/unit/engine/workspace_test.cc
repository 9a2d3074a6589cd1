// The scratch that a plan counts against what the CPU's kernels ask for, op by op.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "executor/engine/fault.h"
#include "executor/engine/lowering.h"
#include "executor/engine/session.h"
#include "executor/plan/cost/cost.h"
#include "executor/plan/ops/op.h"
#include "kernels/cpu/cpu_device.h"
#include "storage/base/status.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::engine {
namespace {

using plan::Plan;

// Addresses for an arena that nothing may touch: to prepare an op is to look at shapes.
class NoArena {
 public:
  explicit NoArena(int64_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    TY_CHECK(data_ != MAP_FAILED, bytes, " bytes of address space");
  }
  ~NoArena() { munmap(data_, bytes_); }
  void* data() const { return data_; }

 private:
  const int64_t bytes_;
  void* const data_;
};

struct Case {
  std::string name;
  v1::JobSpec spec;
  plan::DataFacts facts;
};

v1::JobSpec With(v1::JobSpec spec, int64_t batch, int64_t micro_batch) {
  spec.mutable_training()->set_batch_size(batch);
  spec.mutable_training()->set_micro_batch_size(micro_batch);
  return spec;
}

std::vector<Case> SmallCases() {
  const plan::DataFacts images = plan::ImageFacts(8, 8, 3, 10), tokens = plan::TokenFacts(11);
  v1::JobSpec lamb = plan::MlpSpec(), muon = plan::GptSpec();
  lamb.mutable_optimizer()->mutable_lamb();
  muon.mutable_optimizer()->mutable_muon();
  v1::JobSpec rows = plan::DlrmSpec(), lora = plan::LlamaSpec();
  lora.mutable_fine_tune()->mutable_lora()->set_rank(2);
  rows.mutable_optimizer()->mutable_sgd();
  return {{"mlp", plan::MlpSpec(), images},
          {"convnet", plan::ConvnetSpec(), images},
          {"resnet", plan::ResnetSpec(), images},
          {"mobilenet", plan::MobilenetSpec(), images},
          {"vit", plan::VitSpec(), images},
          {"image layers", plan::ImageLayersSpec(), images},
          {"gpt", plan::GptSpec(), tokens},
          {"llama", plan::LlamaSpec(), tokens},
          {"bert", plan::BertSpec(), plan::DocumentFacts(11)},
          {"token layers", plan::TokenLayersSpec(), tokens},
          {"dlrm", plan::DlrmSpec(), plan::ClickFacts(3, 2, 10)},
          {"rows of dlrm", rows, plan::ClickFacts(3, 2, 10)},
          {"lora", lora, tokens},
          {"lamb", lamb, images},
          {"muon", muon, tokens}};
}

std::vector<Case> WorkingCases() {
  const plan::DataFacts images = plan::ImageFacts(32, 32, 3, 10), tokens = plan::TokenFacts(5000);
  v1::JobSpec mobilenet = plan::MobilenetSpec(), resnet = plan::ResnetSpec();
  mobilenet.mutable_model()->mutable_mobilenet()->set_width(1);
  resnet.mutable_model()->mutable_resnet()->set_width(64);
  v1::JobSpec bottlenecks = resnet, vit = plan::VitSpec();
  bottlenecks.mutable_model()->mutable_resnet()->set_depth(50);
  bottlenecks.mutable_model()->mutable_resnet()->set_stem(v1::Resnet::IMAGENET);
  vit.mutable_model()->mutable_vit()->set_width(192);
  vit.mutable_model()->mutable_vit()->set_patch(16);
  const plan::DataFacts photographs = plan::ImageFacts(224, 224, 3, 100);
  v1::JobSpec wide = plan::ConvnetSpec();  // Winograd's images at once
  wide.mutable_model()->mutable_convnet()->mutable_stages(0)->set_channels(256);
  wide.mutable_model()->mutable_convnet()->mutable_stages(0)->set_convolutions(2);
  v1::JobSpec llama = plan::LlamaSpec();
  llama.mutable_model()->mutable_llama()->set_width(1024);
  llama.mutable_model()->mutable_llama()->set_mlp_width(3072);
  llama.mutable_model()->mutable_llama()->set_context(512);
  llama.mutable_model()->mutable_llama()->set_heads(32);
  llama.mutable_model()->mutable_llama()->set_kv_heads(8);
  v1::JobSpec gpt = plan::CharGptSpec();
  gpt.mutable_model()->mutable_gpt()->set_width(160);  // 40 to a head
  v1::JobSpec dlrm = plan::DlrmSpec();
  dlrm.mutable_model()->mutable_dlrm()->set_embedding_width(24);
  dlrm.mutable_model()->mutable_dlrm()->add_bottom(256);
  v1::JobSpec bert = plan::BertSpec();
  bert.mutable_model()->mutable_bert()->set_width(768);
  bert.mutable_model()->mutable_bert()->set_heads(12);
  bert.mutable_model()->mutable_bert()->set_context(128);
  bert.mutable_model()->mutable_bert()->set_mlp_width(3072);
  return {{"mobilenet", With(mobilenet, 128, 128), images},
          {"resnet", With(resnet, 64, 32), images},
          {"bottlenecks", With(bottlenecks, 16, 16), photographs},
          {"vit", With(vit, 8, 8), photographs},
          {"wide convnet", With(wide, 128, 128), images},
          {"llama", With(llama, 8, 4), tokens},
          {"gpt", With(gpt, 24, 12), plan::TokenFacts(65)},
          {"bert", With(bert, 32, 16), plan::DocumentFacts(5000)},
          {"dlrm", With(dlrm, 4096, 2048), plan::ClickFacts(13, 26, 1000)}};
}

bool IsOfOneDnn(const plan::Op& op) {
  return std::holds_alternative<plan::Matmul>(op) || std::holds_alternative<plan::AddProduct>(op) ||
         std::holds_alternative<plan::ConvolutionForward>(op) ||
         std::holds_alternative<plan::ConvolutionBackwardData>(op) ||
         std::holds_alternative<plan::ConvolutionBackwardWeights>(op);
}

constexpr int kThreads = 8;  // that a plan counts scratch for

bool Has(dnnl::cpu_isa wanted) {
  // An instruction set's bits contain those of what it extends.
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (has & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

bool IsNarrowConvolution(const std::vector<plan::Tensor>& tensors, const plan::Op& op) {
  const auto narrow = [&](plan::TensorId id) {
    return tensors[id].type == plan::ElementType::kBF16;
  };
  if (const auto* const o = std::get_if<plan::ConvolutionForward>(&op)) return narrow(o->x);
  if (const auto* const o = std::get_if<plan::ConvolutionBackwardData>(&op)) return narrow(o->dy);
  const auto* const o = std::get_if<plan::ConvolutionBackwardWeights>(&op);
  return o != nullptr && narrow(o->x);
}

// An op never asks for more than is planned. What oneDNN's kernels for AMX ask for was read off
// them, and other CPUs have other caches: a tenth is to spare.
void ExpectIsPlanned(const std::vector<plan::Tensor>& tensors, const plan::Op& op, int64_t asked,
                     int64_t planned) {
  const bool tiles = Has(dnnl::cpu_isa::avx512_core_amx);
  const bool spare = tiles && IsNarrowConvolution(tensors, op);
  EXPECT_LE(spare ? asked + asked / 10 : asked, planned) << plan::OpName(op);
}

// Every op of `c` on a device of `threads`: our own kernels ask for just what is planned, those of
// oneDNN for no more. On the instructions that Winograd's convolution needs the largest that is
// planned in fp32 is at most four times the largest that is asked for, and 32 MiB.
void Compare(const Case& c, int threads) {
  SCOPED_TRACE(testing::Message() << c.name << ", " << c.spec.precision().ShortDebugString() << ", "
                                  << threads << " threads");
  const Plan plan = plan::PlanOf(c.spec, c.facts);
  const NoArena arena(plan.arena_bytes);
  kernels::CpuDevice device(threads, *kernels::CpuDevice::SupportedTables().front());
  int64_t most_asked = 0, most_planned = 0;
  std::vector<std::vector<kernels::Kernel>> programs;  // tables live as long as they do
  for (const auto* ops : {&plan.copy, &plan.start, &plan.begin, &plan.zero, &plan.micro, &plan.norm,
                          &plan.end, &plan.evaluate_begin, &plan.evaluate}) {
    auto kernels = Lower(device, plan, arena.data(), *ops);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    for (size_t i = 0; i < ops->size(); ++i) {
      const plan::Op& op = (*ops)[i];
      const auto asked = static_cast<int64_t>((*kernels)[i].scratch_bytes);
      const int64_t planned = plan::CpuScratchBytes(plan.tensors, op);
      ExpectIsPlanned(plan.tensors, op, asked, planned);
      if (!IsOfOneDnn(op) && threads == kThreads) {
        EXPECT_EQ(asked, planned) << plan::OpName(op) << ", op " << i;
      }
      most_asked = std::max(most_asked, asked);
      most_planned = std::max(most_planned, planned);
    }
    programs.push_back(*std::move(kernels));
  }
  EXPECT_EQ(plan.summary.workspace_bytes(), most_planned + device.table_bytes());
  const bool wide = c.spec.precision().compute() == v1::Precision::FP32;
  if (wide && threads == kThreads && Has(dnnl::cpu_isa::avx512_core)) {
    EXPECT_LE(most_planned, 4 * most_asked + (int64_t{32} << 20));
  }
}

void CompareAll() {
  for (const auto& cases : {SmallCases(), WorkingCases()}) {
    for (Case c : cases) {
      for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16, v1::Precision::FP16}) {
        c.spec.mutable_precision()->set_compute(compute);
        for (const int threads : {1, 2, kThreads}) Compare(c, threads);
      }
    }
  }
}

TEST(Workspace, IsPlannedForEveryOp) { CompareAll(); }

plan::ConvolutionShape RandomShape(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  for (;;) {
    plan::ConvolutionShape s = {.batch = one_of({1, 3, 8, 32}),
                                .height = one_of({1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 112, 224}),
                                .in = one_of({1, 3, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512}),
                                .out = one_of({8, 16, 24, 32, 64, 100, 128, 256, 512})};
    s.width = random() % 3 == 0 ? one_of({1, 5, 8, 16, 32, 60, 224}) : s.height;
    s.kernel_height = s.kernel_width = one_of({1, 1, 3, 3, 5, 7, 16});
    s.stride = s.kernel_height == 16 ? 16 : one_of({1, 1, 2});
    s.pad = s.kernel_height == 16 ? 0 : s.kernel_height / 2;
    if (random() % 6 == 0) s.groups = s.out = s.in;
    const int64_t x = s.batch * s.height * s.width * s.in;
    const bool fits =
        s.height + 2 * s.pad >= s.kernel_height && s.width + 2 * s.pad >= s.kernel_width;
    if (fits && x * (1 + s.out / s.in) < int64_t{100} << 20) return s;
  }
}

TEST(Workspace, IsPlannedForRandomConvolutions) {
  const char* const rounds = std::getenv("TRAINYARD_SEEDS");
  std::mt19937 random(1);
  const NoArena arena(64);
  for (int i = 0; i < (rounds == nullptr ? 60 : std::atoi(rounds)); ++i) {
    const plan::ConvolutionShape s = RandomShape(random);
    const int64_t height = (s.height + 2 * s.pad - s.kernel_height) / s.stride + 1,
                  width = (s.width + 2 * s.pad - s.kernel_width) / s.stride + 1;
    for (const auto& [type, dtype] : {std::pair{plan::ElementType::kF32, kernels::DType::kF32},
                                      std::pair{plan::ElementType::kBF16, kernels::DType::kBF16}}) {
      const std::vector<plan::Tensor> tensors = {
          {.type = type, .dims = {s.batch, s.height, s.width, s.in}},
          {.type = type, .dims = {s.out, s.in / s.groups, s.kernel_height, s.kernel_width}},
          {.type = type, .dims = {s.batch, height, width, s.out}},
          {.dims = {s.out, s.in / s.groups, s.kernel_height, s.kernel_width}}};
      const kernels::ConvolutionShape shape = {.batch = s.batch,
                                               .height = s.height,
                                               .width = s.width,
                                               .in = s.in,
                                               .out = s.out,
                                               .kernel_height = s.kernel_height,
                                               .kernel_width = s.kernel_width,
                                               .stride = s.stride,
                                               .pad = s.pad,
                                               .groups = s.groups};
      const kernels::Buffer any = {arena.data(), dtype}, f32 = {arena.data(), kernels::DType::kF32};
      for (const int threads : {1, 2, kThreads}) {
        SCOPED_TRACE(testing::Message()
                     << "round " << i << ": " << s.batch << " x " << s.height << " x " << s.width
                     << " x " << s.in << " to " << s.out << ", kernel " << s.kernel_height
                     << ", stride " << s.stride << ", groups " << s.groups << ", type "
                     << static_cast<int>(type) << ", " << threads << " threads");
        kernels::CpuDevice device(threads, *kernels::CpuDevice::SupportedTables().front());
        const auto compare = [&](const auto& op, const plan::Op& planned) {
          const auto kernel = device.Prepare(op);
          ASSERT_TRUE(kernel.ok()) << kernel.status();
          ExpectIsPlanned(tensors, planned, static_cast<int64_t>(kernel->scratch_bytes),
                          plan::CpuScratchBytes(tensors, planned));
        };
        compare(kernels::ConvolutionForward{.x = any, .w = any, .y = any, .shape = shape},
                plan::ConvolutionForward{.x = 0, .w = 1, .y = 2, .shape = s});
        compare(kernels::ConvolutionBackwardData{.dy = any, .w = any, .dx = any, .shape = shape},
                plan::ConvolutionBackwardData{.dy = 2, .w = 1, .dx = 0, .shape = s});
        compare(
            kernels::ConvolutionBackwardWeights{
                .x = any, .dy = any, .dw = f32, .shape = shape, .accumulate = true},
            plan::ConvolutionBackwardWeights{
                .x = 0, .dy = 2, .dw = 3, .shape = s, .accumulate = true});
      }
    }
  }
}

TEST(Workspace, IsPlannedForRandomProducts) {
  const char* const rounds = std::getenv("TRAINYARD_SEEDS");
  std::mt19937 random(1);
  const NoArena arena(64);
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return *(values.begin() + random() % values.size());
  };
  for (int i = 0; i < (rounds == nullptr ? 150 : std::atoi(rounds)); ++i) {
    const int64_t m = one_of({1, 2, 8, 33, 64, 128, 256, 768, 1024, 16384}),
                  n = one_of({1, 2, 8, 16, 65, 128, 256, 768, 2048, 50257}),
                  k = one_of({1, 8, 64, 100, 512, 1024, 4096, 16384});
    if (m * n > int64_t{1} << 26 || m * k > int64_t{1} << 26 || k * n > int64_t{1} << 26) continue;
    const bool ta = random() % 2 == 0, tb = random() % 2 == 0, accumulate = random() % 2 == 0;
    const bool slice = random() % 3 == 0, wide_c = random() % 2 == 0;
    const int64_t a_cols = slice ? (ta ? m : k) + one_of({8, 256}) : 0;
    for (const auto& [type, dtype] : {std::pair{plan::ElementType::kF32, kernels::DType::kF32},
                                      std::pair{plan::ElementType::kBF16, kernels::DType::kBF16},
                                      std::pair{plan::ElementType::kF16, kernels::DType::kF16}}) {
      const kernels::DType of_c = wide_c ? kernels::DType::kF32 : dtype;
      const std::vector<plan::Tensor> tensors = {
          {.type = type, .dims = {ta ? k : m, slice ? a_cols : (ta ? m : k)}},
          {.type = type, .dims = {tb ? n : k, tb ? k : n}},
          {.type = wide_c ? plan::ElementType::kF32 : type, .dims = {m, n}}};
      for (const int threads : {1, 2, kThreads}) {
        SCOPED_TRACE(testing::Message()
                     << "round " << i << ": m " << m << " n " << n << " k " << k << ", transposed "
                     << ta << tb << ", accumulate " << accumulate << ", a_cols " << a_cols
                     << ", type " << static_cast<int>(type) << (wide_c ? ", c in fp32" : "") << ", "
                     << threads << " threads");
        kernels::CpuDevice device(threads, *kernels::CpuDevice::SupportedTables().front());
        const auto kernel = device.Prepare(kernels::Matmul{.a = {arena.data(), dtype, a_cols},
                                                           .b = {arena.data(), dtype},
                                                           .c = {arena.data(), of_c},
                                                           .m = m,
                                                           .n = n,
                                                           .k = k,
                                                           .transpose_a = ta,
                                                           .transpose_b = tb,
                                                           .accumulate = accumulate});
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        const plan::Op op = plan::Matmul{.a = 0,
                                         .b = 1,
                                         .c = 2,
                                         .m = m,
                                         .n = n,
                                         .k = k,
                                         .transpose_a = ta,
                                         .transpose_b = tb,
                                         .accumulate = accumulate,
                                         .a_cols = a_cols};
        ExpectIsPlanned(tensors, op, static_cast<int64_t>(kernel->scratch_bytes),
                        plan::CpuScratchBytes(tensors, op));
      }
    }
  }
}

// A plan that counts less than this machine's kernels ask for is refused before its first step.
TEST(Workspace, AWorkerTakesNoMoreThanIsPlanned) {
  Plan plan = plan::PlanOf(plan::GptSpec(), plan::TokenFacts(11));
  kernels::CpuDevice device(2, *kernels::CpuDevice::SupportedTables().front());
  EXPECT_TRUE(Session::Open(device, plan).value()->Prepare(plan.micro).ok());
  plan.summary.set_workspace_bytes(1);
  const auto refused = Session::Open(device, plan).value()->Prepare(plan.micro);
  EXPECT_EQ(FaultOf(refused.status()), Fault::kOutOfMemory) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("the kernels of cpu x2 ask for "),
                             testing::HasSubstr("and the plan counts 1;")));
}

TEST(Workspace, IsPlannedInProportionForMoreThreadsThanAreCounted) {
  Plan plan;
  plan.summary.set_workspace_bytes(1000);
  EXPECT_EQ(plan::WorkspaceLimit(plan, 1), 1000);
  EXPECT_EQ(plan::WorkspaceLimit(plan, kThreads), 1000);
  EXPECT_EQ(plan::WorkspaceLimit(plan, kThreads + 1), 2000);
}

// oneDNN fixes its instructions when it makes its first primitive: a process for each.
class WorkspaceDeathTest : public testing::TestWithParam<dnnl::cpu_isa> {};

TEST_P(WorkspaceDeathTest, IsPlannedForEveryOpOnLesserMachines) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto compare = [] {
    TY_CHECK(dnnl::set_max_cpu_isa(GetParam()) == dnnl::status::success, "instructions are fixed");
    CompareAll();
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(compare(), testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Isa, WorkspaceDeathTest,
                         testing::Values(dnnl::cpu_isa::avx2, dnnl::cpu_isa::avx512_core));

}  // namespace
}  // namespace trainyard::engine
