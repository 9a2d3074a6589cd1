#include "executor/plan/sizing.h"

#include <gtest/gtest.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

v1::JobSpec OnSlots(v1::JobSpec spec, int least, int most) {
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(least);
  spec.mutable_resources()->set_max_slots(most);
  return ResolveSpec(spec).value();
}

// A slot is asked for once, and must do on any number of them.
TEST(PlanForAnyRanks, HasTheMemoryOfEveryNumberOfRanks) {
  v1::JobSpec gpt = CharGptSpec();
  gpt.mutable_training()->set_batch_size(14);
  gpt.mutable_training()->set_micro_batch_size(2);
  v1::JobSpec tables = DlrmSpec();  // of which less lies on each rank than it takes to exchange it
  tables.mutable_optimizer()->mutable_adamw()->set_lazy_tables(true);
  tables.mutable_training()->set_batch_size(7 * 256);
  tables.mutable_training()->set_micro_batch_size(256);
  for (const auto& [spec, facts] :
       {std::pair(gpt, TokenFacts(65)), std::pair(tables, ClickFacts(5, 3, 100))}) {
    for (const auto shard : {v1::Parallel::NONE, v1::Parallel::OPTIMIZER, v1::Parallel::GRADIENTS,
                             v1::Parallel::PARAMETERS}) {
      v1::JobSpec job = spec;
      job.mutable_parallel()->set_logical_ranks(7);
      job.mutable_parallel()->set_shard(shard);
      const int64_t asked = PlanForAnyRanks(OnSlots(job, 2, 7), facts)->summary.bytes_per_slot();
      for (int ranks = 2; ranks <= 7; ++ranks) {
        EXPECT_LE(BuildLargestPlan(OnSlots(job, ranks, ranks), facts)->summary.bytes_per_slot(),
                  asked)
            << ranks << " ranks, shard " << v1::Parallel::Shard_Name(shard);
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::plan
