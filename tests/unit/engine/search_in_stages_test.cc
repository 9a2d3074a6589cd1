// The search for what is not finite makes the passes of a pipeline one micro-batch after the other:
// what it looks at is what the step computed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/engine/family.h"
#include "tests/unit/engine/on_ranks.h"

namespace trainyard::engine {
namespace {

// What a search in the first step leaves on the ranks of `layout`.
struct Searched {
  std::map<std::string, std::vector<float>> gradients;  // by parameter
  std::vector<std::string> found;                       // of the ranks that found something
};

// `overflows`: a parameter that is as large as fp32 can hold; "": none.
Searched Search(v1::JobSpec spec, const Layout& layout, const std::string& overflows = "") {
  spec.mutable_resources()->set_min_slots(layout.ranks);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(layout.stages);
  spec.mutable_parallel()->mutable_layout()->set_chunks(layout.chunks);
  spec = plan::ResolveSpec(spec).value();
  const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
  absl::Mutex mu;
  Searched searched;
  InThreads(layout.ranks, [&](Communicator& communicator) {
    const plan::Plan plan = plan::BuildPlan(spec, dataset->facts(), communicator.rank()).value();
    const auto device = kernels::OpenCpu(1).value();
    const auto session = Session::Open(*device, plan).value();
    const Groups groups(layout.ranks == 1 ? Gang() : Gang(&communicator),
                        static_cast<int>(plan.host.ranks));
    const auto trainer = Trainer::Create(*session, spec, groups).value();
    EXPECT_TRUE(trainer->Initialize().ok());
    data::Loader loader(*dataset, {.seed = 1,
                                   .batch_size = spec.training().batch_size(),
                                   .samples = spec.training().batch_size(),
                                   .micro_batch = plan.micro_batch});
    for (const plan::TensorId id : plan.parameters) {
      if (plan.tensors[id].name != overflows) continue;
      const std::vector<float> large(plan.tensors[id].elements(), 3e38f);
      session->Write(id, large.data(), large.size() * sizeof(float));
      EXPECT_TRUE(trainer->TakeParameters().ok());
    }
    const std::string found = trainer->FindNonFinite([&] { return loader.Next(); }).value();
    if (!found.empty()) {
      const absl::MutexLock lock(&mu);
      searched.found.push_back(found);
    }
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      std::vector<float> values(plan.tensors[plan.gradients[i]].elements());
      session->Read(plan.gradients[i], values.data(), values.size() * sizeof(float));
      EXPECT_TRUE(session->Synchronize().ok());
      const absl::MutexLock lock(&mu);
      searched.gradients[plan.tensors[plan.parameters[i]].name] = std::move(values);
    }
  });
  return searched;
}

// Without the number of the op, which counts those of a rank.
std::string WithoutNumber(const std::string& found) {
  const size_t number = found.find("op ") + 3;
  return found.substr(found.find(' ', number));
}

TEST(SearchInStages, LooksAtWhatTheStepComputes) {
  const TempFolder folder;
  const Family gpt = {"gpt", "model { gpt { layers: 8 heads: 2 width: 8 context: 8 } }"};
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = SmallJob(gpt, folder.path(), /*steps=*/3);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_parallel()->set_pipeline(4);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 4);
    const Searched whole = Search(spec, {});
    ASSERT_FALSE(whole.gradients.empty());
    EXPECT_TRUE(whole.found.empty());
    const std::string large = "transformer.h.3.mlp.c_fc.weight";
    const Searched overflowed = Search(spec, {}, large);
    ASSERT_EQ(overflowed.found.size(), 1u);
    EXPECT_THAT(overflowed.found[0], testing::HasSubstr(" forward, micro-batch 1 of 4"));
    for (const Layout& layout :
         {Layout{.ranks = 2, .stages = 2}, Layout{.ranks = 2, .stages = 2, .chunks = 4},
          Layout{.ranks = 2, .stages = 2, .chunks = 2},
          Layout{.ranks = 4, .stages = 4, .chunks = 2}}) {
      const Searched found = Search(spec, layout);
      EXPECT_TRUE(found.found.empty());
      EXPECT_EQ(found.gradients.size(), whole.gradients.size());
      for (const auto& [name, values] : whole.gradients) {
        EXPECT_TRUE(found.gradients.contains(name) && found.gradients.at(name) == values)
            << name << layout.Words();
      }
      // The rank that hosts it names what comes of it, and no other.
      const Searched named = Search(spec, layout, large);
      ASSERT_EQ(named.found.size(), 1u) << layout.Words();
      EXPECT_EQ(WithoutNumber(named.found[0]), WithoutNumber(overflowed.found[0]));
    }
  }
}

}  // namespace
}  // namespace trainyard::engine
