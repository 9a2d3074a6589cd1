#include "server/fleet/provision/pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGood[] = R"(
pools:
  big:
    engine: slurm
    min: 1
    max: 16
    idle_ttl: 10m
    boot_timeout: 90s
    node: {device: CUDA, slots: 8, memory: 80GiB}
    slurm:
      script: /etc/trainyard/slurm-node
      options: [--partition=gpu, --gres=gpu:8]
      leave: 2m
)";

TEST(Pools, AreReadWithAllThatTheySay) {
  const auto pools = ParsePools("pools.yaml", kGood);
  ASSERT_TRUE(pools.ok()) << pools.status();
  ASSERT_EQ(pools->size(), 1u);
  const Pool& pool = pools->front();
  EXPECT_EQ(pool.name, "big");
  EXPECT_EQ(pool.min, 1);
  EXPECT_EQ(pool.max, 16);
  EXPECT_EQ(pool.idle_ttl, absl::Minutes(10));
  EXPECT_EQ(pool.boot_timeout, absl::Seconds(90));
  EXPECT_EQ(pool.device, "CUDA");
  EXPECT_EQ(pool.slots, 8);
  EXPECT_EQ(pool.bytes, int64_t{80} << 30);
  EXPECT_EQ(pool.slurm.script, "/etc/trainyard/slurm-node");
  EXPECT_THAT(pool.slurm.options, ElementsAre("--partition=gpu", "--gres=gpu:8"));
  EXPECT_EQ(pool.slurm.leave, absl::Minutes(2));
}

TEST(Pools, ThatAreWrongAreNamedWithTheirLine) {
  struct Case {
    const char* from;
    const char* to;
    const char* expected;
  };
  const Case cases[] = {
      {"max: 16", "max: 0", "pools.yaml:6: max: found '0', expected 1 to 10000"},
      {"min: 1", "min: 20", "min is more than max"},
      {"idle_ttl: 10m", "idle_ttl: 10", "pools.yaml:7: idle_ttl: found '10', expected a time"},
      {"idle_ttl: 10m", "idle_tll: 10m", "no field 'idle_tll' (did you mean 'idle_ttl'?)"},
      {"engine: slurm", "engine: slrm", "engine: found 'slrm', expected slurm"},
      {"device: CUDA", "device: GPU", "device: found 'GPU', expected CPU or CUDA"},
      {"memory: 80GiB", "memory: lots", "memory: found 'lots'"},
      {"memory: 80GiB", "memory: 80", "memory: found '80', expected what each slot has"},
      {"slots: 8, memory: 80GiB", "slots: 8", "device and memory are needed"},
      {"script: /etc", "script: etc", "expected an absolute path"},
      {"--partition=gpu", "--export=ALL", "--export is the server's own"},
      {"--partition=gpu", "--arr=1-9", "--arr is the server's own"},
      {"--partition=gpu", "-a1-9", "-a1-9 is the server's own"},
      {"--partition=gpu", "--clusters=other", "leads to where it does not look"},
      {"leave: 2m", "leave: 20h", "leave: expected at most 18h12m15s"},
      {"--partition=gpu", "gpu", "expected an option of sbatch"},
      {"  big:", "  Big:", "'Big' is no name of a pool"},
      {"pools:", "pool:", "did you mean 'pools'?"},
  };
  for (const Case& one : cases) {
    std::string text = kGood;
    const size_t at = text.find(one.from);
    ASSERT_NE(at, std::string::npos) << one.from;
    text.replace(at, std::string(one.from).size(), one.to);
    const auto pools = ParsePools("pools.yaml", text);
    EXPECT_EQ(pools.status().code(), absl::StatusCode::kInvalidArgument) << one.to;
    EXPECT_THAT(std::string(pools.status().message()), HasSubstr(one.expected)) << one.to;
  }
  for (const char* hostile : {"", "[]", "pools: 3", "pools: {a: 3}", "a: [", "pools: {? [a] : b}",
                              "pools: {a: {node: []}}", "pools: {a: {slurm: {options: 3}}}"}) {
    EXPECT_EQ(ParsePools("f", hostile).status().code(), absl::StatusCode::kInvalidArgument)
        << hostile;
  }
}

TEST(Pools, TheExampleIsRead) {
  const auto pools = ReadPools(TRAINYARD_SOURCE "/deploy/slurm/pools.yaml");
  ASSERT_TRUE(pools.ok()) << pools.status();
  ASSERT_EQ(pools->size(), 1u);
  EXPECT_EQ(pools->front().slurm.script, "/usr/share/trainyard/trainyard-node");
  EXPECT_EQ(pools->front().slurm.options.size(), 6u);
}

TEST(Pools, MaySayOptionsThatAreNotTheServers) {
  for (const char* option : {"--account=a", "--exclusive", "-A a", "-w n1", "--mem=0", "--jobs"}) {
    std::string text = kGood;
    const size_t at = text.find("--partition=gpu");
    text.replace(at, std::string("--partition=gpu").size(), option);
    EXPECT_TRUE(ParsePools("pools.yaml", text).ok()) << option;
  }
}

TEST(Pools, SayWhatCouldEverFit) {
  auto pools = ParsePools("pools.yaml", kGood);
  ASSERT_TRUE(pools.ok());
  const std::vector<NodeRecord> nodes = PossibleNodes(*pools);
  ASSERT_EQ(nodes.size(), 1u);
  ASSERT_EQ(nodes[0].slots.size(), 128u);
  EXPECT_EQ(nodes[0].slots[127].device, "CUDA");
  EXPECT_EQ(nodes[0].slots[127].memory_bytes, int64_t{80} << 30);
}

}  // namespace
}  // namespace trainyard
