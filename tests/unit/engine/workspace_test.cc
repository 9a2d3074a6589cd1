// The scratch that a plan counts against what the CPU's kernels ask for, op by op.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "executor/engine/lowering.h"
#include "executor/plan/cost.h"
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
  for (const auto* ops : {&plan.copy, &plan.start, &plan.begin, &plan.micro, &plan.norm, &plan.end,
                          &plan.evaluate_begin, &plan.evaluate}) {
    auto kernels = Lower(device, plan, arena.data(), *ops);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    for (size_t i = 0; i < ops->size(); ++i) {
      const plan::Op& op = (*ops)[i];
      const auto asked = static_cast<int64_t>((*kernels)[i].scratch_bytes);
      const int64_t planned = plan::WorkspaceBytes(plan.tensors, op);
      EXPECT_LE(asked, planned) << plan::OpName(op) << ", op " << i;
      if (!IsOfOneDnn(op) && threads == kThreads) {
        EXPECT_EQ(asked, planned) << plan::OpName(op) << ", op " << i;
      }
      most_asked = std::max(most_asked, asked);
      most_planned = std::max(most_planned, planned);
    }
    programs.push_back(*std::move(kernels));
  }
  EXPECT_EQ(plan.summary.workspace_bytes(), most_planned + device.table_bytes());
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  const bool wide = c.spec.precision().compute() == v1::Precision::FP32;
  if (wide && threads == kThreads && (isa & avx512) == avx512) {
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
