#include "executor/agent/slots.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "executor/agent/gpu_monitor.h"
#include "executor/agent/project_environment.h"
#include "executor/agent/warm_workers.h"
#include "storage/base/file.h"
#include "tests/unit/run/scratch.h"

namespace trainyard {
namespace {

class SlotsTest : public run::Scratch {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::string full = folder_ + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream(full) << text;
  }
};

constexpr int64_t kGiB = int64_t{1} << 30;

TEST_F(SlotsTest, CpuSlotsShareMemoryAndCores) {
  const auto slots = MakeSlots({.cpu_slots = 2}, {.cores = 8, .memory_bytes = 100 * kGiB}, {});
  ASSERT_TRUE(slots.ok());
  ASSERT_EQ(slots->size(), 2u);
  EXPECT_EQ((*slots)[1].index(), 1);
  EXPECT_EQ((*slots)[1].device(), v1::Resources::CPU);
  EXPECT_EQ((*slots)[1].cpu_threads(), 4);
  EXPECT_EQ((*slots)[1].model(), "cpu x4");
  EXPECT_EQ((*slots)[1].memory_bytes(), 45 * kGiB);
  EXPECT_EQ(DeviceOf((*slots)[1]), "cpu");
}

TEST_F(SlotsTest, MoreSlotsThanCoresHaveOneThreadEach) {
  const auto slots = MakeSlots({.cpu_slots = 3}, {.cores = 2, .memory_bytes = kGiB}, {});
  EXPECT_EQ((*slots)[2].cpu_threads(), 1);
}

TEST_F(SlotsTest, GpusComeFirstSoThatTheirIndexNamesTheDevice) {
  const std::vector<Gpu> gpus = {{0, "NVIDIA H200", 140 * kGiB}, {1, "NVIDIA H200", 140 * kGiB}};
  const auto slots =
      MakeSlots({.cpu_slots = 1, .threads_per_slot = 5}, {.cores = 16, .memory_bytes = kGiB}, gpus);
  ASSERT_EQ(slots->size(), 3u);
  EXPECT_EQ(DeviceOf((*slots)[1]), "cuda:1");
  EXPECT_EQ((*slots)[1].model(), "NVIDIA H200");
  EXPECT_LT((*slots)[1].memory_bytes(), 140 * kGiB);
  EXPECT_GT((*slots)[1].memory_bytes(), 130 * kGiB);
  EXPECT_EQ(DeviceOf((*slots)[2]), "cpu");
  EXPECT_EQ((*slots)[2].cpu_threads(), 5);
}

TEST_F(SlotsTest, NothingToOfferIsTold) {
  EXPECT_EQ(MakeSlots({}, {.cores = 2, .memory_bytes = kGiB}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SlotsTest, MemoryIsTheMachinesWithoutACgroupLimit) {
  Put("/proc/meminfo", "MemTotal:        2097152 kB\nMemFree:  1 kB\n");
  Put("/proc/self/cgroup", "0::/a/b\n");
  Put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(ReadMachine(folder_)->memory_bytes, 2 * kGiB);
}

TEST_F(SlotsTest, MemoryIsTheSmallestLimitOnTheWayToTheRoot) {
  Put("/proc/meminfo", "MemTotal:        8388608 kB\n");
  Put("/proc/self/cgroup", "0::/a/b\n");
  Put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Put("/sys/fs/cgroup/a/memory.max", "1073741824\n");
  EXPECT_EQ(ReadMachine(folder_)->memory_bytes, kGiB);
}

TEST_F(SlotsTest, FirstVersionOfCgroupsIsReadToo) {
  Put("/proc/meminfo", "MemTotal:        8388608 kB\n");
  Put("/proc/self/cgroup", "4:cpu:/x\n3:memory:/x\n");
  Put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(ReadMachine(folder_)->memory_bytes, 2 * kGiB);
}

TEST_F(SlotsTest, FreeIsWhatTheMachineOrACgroupHasLeft) {
  Put("/proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\n");
  Put("/proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 4 * kGiB) << "there is no cgroup to be seen";
  Put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Put("/sys/fs/cgroup/a/b/memory.current", "5000000000\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 4 * kGiB);
  Put("/sys/fs/cgroup/a/memory.max", "3221225472\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 3 * kGiB);
  Put("/sys/fs/cgroup/a/memory.current", "2147483648\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), kGiB);
  Put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 1073741824\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 2 * kGiB) << "pages of files are given back";
  Put("/sys/fs/cgroup/a/memory.current", "4294967296\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 0);

  Put("/proc/self/cgroup", "3:memory:/x\n");
  Put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "3221225472\n");
  Put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "2147483648\n");
  Put("/sys/fs/cgroup/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(*ReadFreeMemory(folder_), 2 * kGiB);
}

TEST_F(SlotsTest, MissingDriverIsNotFoundAndAWrongOneUnavailable) {
  EXPECT_EQ(Nvml::Open("libno-such-driver.so.7").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Nvml::Open("libz.so.1").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SlotsTest, GpusAreListedThroughTheDriversLibrary) {
  const auto gpus = Nvml::Open(FAKE_NVML).value()->List();
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[1].index, 1);
  EXPECT_EQ((*gpus)[1].model, "Fake GPU 1");
  EXPECT_EQ((*gpus)[1].memory_bytes, 2 * kGiB);
}

TEST_F(SlotsTest, OnlyVisibleGpusAreListed) {
  const auto models = [](const char* visible) {
    std::vector<std::string> found;
    const auto nvml = Nvml::Open(FAKE_NVML, visible);
    if (!nvml.ok()) return std::vector<std::string>{std::string(nvml.status().message())};
    const std::vector<Gpu> gpus = (*nvml)->List().value();
    for (const Gpu& gpu : gpus) {
      EXPECT_EQ(gpu.index, static_cast<int>(found.size()));
      found.push_back(gpu.model);
    }
    return found;
  };
  const std::string first = "Fake GPU 0", second = "Fake GPU 1";
  EXPECT_EQ(models(nullptr), (std::vector{first, second}));
  EXPECT_EQ(models("1"), std::vector{second});
  EXPECT_EQ(models("1, 0"), (std::vector{second, first}));
  EXPECT_EQ(models("GPU-1"), std::vector{second});
  EXPECT_EQ(models(""), std::vector<std::string>());
  for (const char* const wrong : {"2", "-1", "0,GPU-7", "all", "1,1"}) {
    EXPECT_EQ(Nvml::Open(FAKE_NVML, wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

TEST_F(SlotsTest, GpusAreWatched) {
  const GpuMonitor monitor(Nvml::Open(FAKE_NVML).value(), SystemClock(), absl::Milliseconds(1));
  std::map<int, v1::SlotUsage> usage;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (usage[1].last_xid() == 0 && absl::Now() < deadline) usage = monitor.Usage();
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage[0].utilization(), 0);
  EXPECT_EQ(usage[0].temperature_celsius(), 0);
  EXPECT_EQ(usage[0].last_xid(), 0);
  EXPECT_EQ(usage[1].utilization(), 0.75);
  EXPECT_EQ(usage[1].memory_used_bytes(), 1 << 20);
  EXPECT_EQ(usage[1].temperature_celsius(), 61);
  EXPECT_EQ(usage[1].power_watts(), 412.5);
  EXPECT_EQ(usage[1].last_xid(), 79);
}

TEST_F(SlotsTest, ErrorsOfGpusAreRemembered) {
  const absl::Duration before = SystemClock().SinceBoot();
  const GpuMonitor monitor(Nvml::Open(FAKE_NVML).value(), SystemClock(), absl::Milliseconds(1));
  const std::vector<Xid> heard = monitor.XidsSince(before, {1}, absl::Seconds(20));
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(Describe(heard[0]), "Xid 79 (fell off the bus) of GPU 1");
  EXPECT_EQ(Describe({.gpu = 0, .code = 7}), "Xid 7 of GPU 0");
  EXPECT_TRUE(monitor.XidsSince(before, {0}, absl::ZeroDuration()).empty());
  EXPECT_TRUE(monitor.XidsSince(SystemClock().SinceBoot(), {1}, absl::Milliseconds(1)).empty());
}

TEST_F(SlotsTest, WhereThereIsNoDriverNobodyWaitsForIt) {
  const GpuMonitor monitor(nullptr, SystemClock());
  EXPECT_TRUE(monitor.XidsSince(absl::ZeroDuration(), {0}, absl::InfiniteDuration()).empty());
}

// A driver that does not come back from a call until it is let go.
class HangingDriver : public Nvml {
 public:
  absl::StatusOr<std::vector<Gpu>> List() override { return std::vector<Gpu>(1); }
  std::vector<GpuUsage> Usage() override {
    asked.Notify();
    let_go.WaitForNotification();
    return {};
  }
  absl::StatusOr<std::optional<Xid>> NextXid(absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::Notification asked, let_go;
};

TEST_F(SlotsTest, ADriverThatHangsKeepsNobody) {
  const auto driver = std::make_shared<HangingDriver>();
  {
    const GpuMonitor monitor(driver, SystemClock());
    driver->asked.WaitForNotification();
    EXPECT_TRUE(monitor.Usage().empty());
  }
  driver->let_go.Notify();
}

TEST_F(SlotsTest, WorkersSeeOnlyWhatTheyNeedOfTheEnvironment) {
  const char* const ours[] = {"PATH=/bin",
                              "SECRET=1",
                              "PATHOLOGY=1",
                              "OMP_NUM_THREADS=3",
                              "AWS_SECRET_ACCESS_KEY=x",
                              "CUDA_DEVICE_ORDER=FASTEST_FIRST",
                              nullptr};
  const std::vector<std::string> expected = {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "PATH=/bin",
                                             "OMP_NUM_THREADS=3", "GOMP_SPINCOUNT=1000"};
  EXPECT_EQ(WorkerEnvironment(ours), expected);
  EXPECT_THAT(OwnCredentials(ours),
              ::testing::ElementsAre(::testing::Pair("AWS_SECRET_ACCESS_KEY", "x")));
}

TEST_F(SlotsTest, HowWorkersWaitIsTheUsersToSay) {
  for (const char* const own : {"GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=active"}) {
    const char* const ours[] = {own, nullptr};
    const std::vector<std::string> expected = {"CUDA_DEVICE_ORDER=PCI_BUS_ID", own};
    EXPECT_EQ(WorkerEnvironment(ours), expected);
  }
}

}  // namespace
}  // namespace trainyard
