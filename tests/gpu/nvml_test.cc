// What the driver of a real GPU tells the agent. Skipped where there is none.

#include "executor/agent/nvml.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace trainyard {
namespace {

class NvmlOfThisMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    auto nvml = Nvml::Open();
    if (absl::IsNotFound(nvml.status())) GTEST_SKIP() << nvml.status();
    ASSERT_TRUE(nvml.ok()) << nvml.status();
    nvml_ = *std::move(nvml);
  }

  std::shared_ptr<Nvml> nvml_;
};

TEST_F(NvmlOfThisMachine, ListsItsGpusByModelAndMemory) {
  const auto gpus = nvml_->List();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_FALSE(gpus->empty());
  for (const Gpu& gpu : *gpus) {
    EXPECT_NE(gpu.model, "");
    EXPECT_GT(gpu.memory_bytes, int64_t{1} << 30) << gpu.model;
  }
}

TEST_F(NvmlOfThisMachine, SaysWhatTheyDo) {
  const size_t gpus = nvml_->List().value().size();
  const std::vector<GpuUsage> usage = nvml_->Usage();
  ASSERT_EQ(usage.size(), gpus);
  for (size_t i = 0; i < gpus; ++i) {
    const GpuUsage& gpu = usage[i];
    EXPECT_GE(gpu.utilization, 0);
    EXPECT_LE(gpu.utilization, 1);
    EXPECT_GT(gpu.memory_used_bytes, 0);
    EXPECT_LE(gpu.memory_used_bytes, nvml_->List().value()[i].memory_bytes);
    // 0: the driver does not tell.
    if (gpu.temperature_celsius != 0) {
      EXPECT_GT(gpu.temperature_celsius, 5);
      EXPECT_LT(gpu.temperature_celsius, 120);
    }
    if (gpu.power_watts != 0) {
      EXPECT_GT(gpu.power_watts, 1);
      EXPECT_LT(gpu.power_watts, 2000);
    }
  }
}

TEST_F(NvmlOfThisMachine, HasNoErrorToTellOrSaysThatItTellsOfNone) {
  const auto xid = nvml_->NextXid(absl::Milliseconds(50));
  if (!xid.ok()) {
    EXPECT_TRUE(absl::IsUnimplemented(xid.status())) << xid.status();
    GTEST_SKIP() << xid.status();
  }
  EXPECT_FALSE(xid->has_value()) << Describe(**xid);
}

}  // namespace
}  // namespace trainyard
