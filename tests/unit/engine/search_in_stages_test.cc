// The search for what is not finite makes the passes of a pipeline one micro-batch after the other:
// what it looks at is what the step computed.

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

using Gradients = std::map<std::string, std::vector<float>>;

// Of the first step, as a search leaves them on the ranks of `layout`.
Gradients FoundBySearch(v1::JobSpec spec, const Layout& layout) {
  spec.mutable_resources()->set_min_slots(layout.ranks);
  spec.mutable_parallel()->mutable_layout()->set_pipeline(layout.stages);
  spec.mutable_parallel()->mutable_layout()->set_chunks(layout.chunks);
  spec = plan::ResolveSpec(spec).value();
  const auto dataset = data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())).value();
  absl::Mutex mu;
  Gradients gradients;
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
    EXPECT_EQ(trainer->FindNonFinite([&] { return loader.Next(); }).value(), "");
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      std::vector<float> values(plan.tensors[plan.gradients[i]].elements());
      session->Read(plan.gradients[i], values.data(), values.size() * sizeof(float));
      EXPECT_TRUE(session->Synchronize().ok());
      const absl::MutexLock lock(&mu);
      gradients[plan.tensors[plan.parameters[i]].name] = std::move(values);
    }
  });
  return gradients;
}

TEST(SearchInStages, LooksAtTheGradientsOfTheStep) {
  const TempFolder folder;
  const Family gpt = {"gpt", "model { gpt { layers: 8 heads: 2 width: 8 context: 8 } }"};
  for (const auto compute : {v1::Precision::FP32, v1::Precision::BF16}) {
    v1::JobSpec spec = SmallJob(gpt, folder.path(), /*steps=*/3);
    spec.mutable_resources()->set_device(v1::Resources::CPU);
    spec.mutable_precision()->set_compute(compute);
    spec.mutable_parallel()->set_pipeline(4);
    spec.mutable_parallel()->set_logical_ranks(2);
    spec.mutable_training()->set_micro_batch_size(spec.training().batch_size() / 4);
    const Gradients whole = FoundBySearch(spec, {});
    ASSERT_FALSE(whole.empty());
    for (const Layout& layout :
         {Layout{.ranks = 2, .stages = 2}, Layout{.ranks = 2, .stages = 2, .chunks = 4},
          Layout{.ranks = 4, .stages = 4, .chunks = 2}}) {
      const Gradients found = FoundBySearch(spec, layout);
      EXPECT_EQ(found.size(), whole.size());
      for (const auto& [name, values] : whole) {
        EXPECT_TRUE(found.contains(name) && found.at(name) == values) << name << layout.Words();
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::engine
