// Drives the program trainyard-worker as an agent would.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/run/event_log.h"
#include "executor/run/run_directory.h"
#include "executor/worker/open_device.h"
#include "tests/unit/data/images/encoders.h"

#include "tests/unit/worker/worker_fixture.h"

namespace trainyard::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

TEST_F(WorkerTest, ARankTellsItsWholeStoryInOrder) {
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitDone) << ReadOutput();
  const std::vector<v1::RankEvent> events = Events(directory);
  ASSERT_EQ(events.size(), 15u);
  EXPECT_EQ(events[0].started().total_steps(), 10);
  EXPECT_TRUE(events[1].has_restored());
  EXPECT_EQ(events[1].restored().step(), 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(events[2 + i].metrics().step(), i + 1);
  EXPECT_EQ(events[12].metrics().split(), v1::MetricPoint::VALIDATION);
  EXPECT_TRUE(events[13].checkpoint().final());
  EXPECT_THAT(events[13].checkpoint().uri(), HasSubstr("/ckpt/step-00000010"));
  EXPECT_EQ(events[14].finished().outcome(), v1::RankEvent::Finished::SUCCEEDED);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].sequence(), int64_t(i) + 1);
}

TEST_F(WorkerTest, NamesOfFilesInAnyBytesReachTheEvents) {
  const std::string images = folder_.path() + "/images/a";
  std::filesystem::create_directories(images);
  const data::ImageSize size = {.height = 8, .width = 8};
  const data::Bytes good = data::PngFile(size, data::Picture(size, 3));
  for (const char* name : {"0.png", "1.png", "2.png"}) {
    std::ofstream(absl::StrCat(images, "/", name)) << data::AsString(good);
  }
  std::ofstream(images + "/1\xff\x1b.png") << "no image";
  v1::JobSpec& spec = *assignment_.mutable_spec();
  spec.mutable_model()->mutable_mlp();
  v1::ImageFolderData& data = *spec.mutable_data()->mutable_image_folder();
  data.set_train(folder_.path() + "/images");
  data.set_validation_fraction(0.25);
  data.mutable_transform()->set_size(4);

  const run::RunDirectory skipping = Prepare("skipping", kPatience);
  EXPECT_EQ(Start(skipping).Wait(), run::kExitDone) << ReadOutput();
  EXPECT_TRUE(Await(skipping, [](const v1::RankEvent& event) {
    return absl::StrContains(event.notice().message(), "/a/1??.png: begins with 'no image'");
  }));
  data.set_bad_records(v1::REFUSE_BAD_RECORDS);
  const run::RunDirectory refusing = Prepare("refusing", kPatience);
  EXPECT_EQ(Start(refusing).Wait(), run::kExitData) << ReadOutput();
  EXPECT_THAT(Events(refusing).back().failure().message(), HasSubstr("/a/1??.png: begins with"));
}

TEST_F(WorkerTest, SigtermEndsWithACheckpointThatTheNextAttemptGoesOnFrom) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory first = Prepare("first", kPatience);
  Child child = Start(first);
  ASSERT_TRUE(Await(first, [](const auto& event) { return event.metrics().step() >= 3; }));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
  const std::vector<v1::RankEvent> events = Events(first);
  const v1::RankEvent& last = events.back();
  EXPECT_EQ(last.finished().outcome(), v1::RankEvent::Finished::SUSPENDED);
  const auto& checkpoint = events[events.size() - 2].checkpoint();
  EXPECT_EQ(checkpoint.step(), last.finished().step());

  assignment_.mutable_key()->set_attempt(2);
  assignment_.mutable_restore()->set_step(checkpoint.step());
  assignment_.mutable_restore()->set_uri(checkpoint.uri());
  assignment_.mutable_restore()->set_manifest_sha256(checkpoint.manifest_sha256());
  const run::RunDirectory second = Prepare("second", kPatience);
  Child next = Start(second);
  EXPECT_TRUE(Await(
      second, [&](const auto& event) { return event.metrics().step() == checkpoint.step() + 1; }));
  EXPECT_EQ(Events(second)[1].restored().step(), checkpoint.step());
}

TEST_F(WorkerTest, AnEndedLeaseEndsTheProcess) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", absl::Milliseconds(300));
  EXPECT_EQ(Start(directory).Wait(), run::kExitFenced);
}

TEST_F(WorkerTest, AVanishedRunDirectoryEndsTheProcess) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child = Start(directory);
  ASSERT_TRUE(Await(directory, [](const auto& event) { return event.has_metrics(); }));
  std::filesystem::remove_all(directory.path());
  EXPECT_EQ(child.Wait(), run::kExitFenced);
}

TEST_F(WorkerTest, AWarmWorkerTakesItsRankFromALine) {
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child({"--standby"}, Output());
  child.Say("{\"run_dir\": \"" + directory.path() + "\", \"device\": \"cpu\", \"threads\": 1}\n");
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
  EXPECT_TRUE(Events(directory).back().has_finished());
}

TEST_F(WorkerTest, AWarmWorkerLeavesWhenNobodyNeedsIt) {
  Child child({"--standby"}, Output());
  child.CloseStdin();
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
}

TEST_F(WorkerTest, RanksThatCannotMeetSayWhy) {
  assignment_.set_world_size(2);
  const auto failure = [&](const char* folder, int code) {
    const run::RunDirectory directory = Prepare(folder, kPatience);
    EXPECT_EQ(Start(directory).Wait(), code);
    return Events(directory).back().failure();
  };
  const v1::Failure old = failure("old", run::kExitUsage);
  EXPECT_EQ(old.category(), v1::Failure::UNIMPLEMENTED);
  EXPECT_THAT(old.message(), HasSubstr("before training across ranks"));
  assignment_.set_rendezvous_secret("secret");
  assignment_.add_rank_addresses("127.0.0.1:1");
  const v1::Failure odd = failure("odd", run::kExitInternal);
  EXPECT_FALSE(odd.retryable());
  EXPECT_THAT(odd.message(), HasSubstr("of 2 names 1 addresses"));
  assignment_.set_rank_addresses(0, "not an address");
  assignment_.add_rank_addresses("127.0.0.1:2");
  const v1::Failure peer = failure("peer", run::kExitGang);
  EXPECT_EQ(peer.category(), v1::Failure::PEER);
  EXPECT_TRUE(peer.retryable());
}

TEST_F(WorkerTest, MissingDataIsAnEventAndAnExitCode) {
  assignment_.mutable_spec()->mutable_data()->mutable_text()->set_path("/absent/text");
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitData);
  const v1::Failure failure = Events(directory).back().failure();
  EXPECT_EQ(failure.category(), v1::Failure::USER);
  EXPECT_THAT(failure.message(), HasSubstr("/absent/text"));
}

TEST_F(WorkerTest, ACheckpointRootThatCannotBeMadeIsAStorageFailureWorthRetrying) {
  std::ofstream(folder_.path() + "/file") << "x";
  assignment_.set_checkpoint_root(folder_.path() + "/file/ckpt");
  const run::RunDirectory directory = Prepare("r", kPatience);
  EXPECT_EQ(Start(directory).Wait(), run::kExitStorage);
  const v1::Failure failure = Events(directory).back().failure();
  EXPECT_EQ(failure.category(), v1::Failure::STORAGE);
  EXPECT_TRUE(failure.retryable());
}

// A process that could not open its GPU will not be able to later: another one is to wait there.
TEST_F(WorkerTest, WaitingOnAGpuThatCannotBeOpenedEnds) {
  if (kernels::OpenCuda(99).ok()) GTEST_SKIP() << "a machine of 100 GPUs";
  EXPECT_EQ(Child({"--standby", "--device", "cuda:99", "--threads", "1"}, Output()).Wait(), 1);
  EXPECT_THAT(ReadOutput(), HasSubstr("cuda:99"));
}

// Matrix products of oneDNN keep the stack pointer in a buffer from malloc: a handler that ran
// there would overwrite the heap. Nor must it fail a file that is being opened or synced with
// EINTR.
TEST_F(WorkerTest, NoHandlerOfASignalRunsInAThreadThatComputes) {
  assignment_.mutable_spec()->mutable_training()->set_steps(100000);
  const run::RunDirectory directory = Prepare("r", kPatience);
  Child child = Start(directory);
  ASSERT_TRUE(Await(directory, [](const auto& event) { return event.metrics().step() >= 1; }));
  EXPECT_FALSE(child.Catches(SIGTERM));
  EXPECT_FALSE(child.Catches(SIGINT));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), run::kExitDone) << ReadOutput();
}

TEST(CacheFolder, IsTheUsersOrBelowItsHome) {
  std::map<std::string, std::string> set;
  const auto folder = [&] {
    return CacheFolder([&](const char* name) {
      const auto found = set.find(name);
      return found == set.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(folder(), "");
  set["HOME"] = "/home/ada";
  EXPECT_EQ(folder(), "/home/ada/.cache/trainyard");
  set["XDG_CACHE_HOME"] = "/caches";
  EXPECT_EQ(folder(), "/caches/trainyard");
  set["TRAINYARD_CACHE"] = "/fast";
  EXPECT_EQ(folder(), "/fast");
}

// libgomp says at its start what it goes by.
TEST_F(WorkerTest, ThreadsSpinBrieflyUnlessTheUserSaysHow) {
  const auto started = [&] {
    EXPECT_EQ(Child({"--version"}, Output()).Wait(), run::kExitDone);
    const std::string output = ReadOutput();
    const std::vector<std::string> starts =
        absl::StrSplit(output, "OPENMP DISPLAY ENVIRONMENT BEGIN");
    return std::pair(starts.size() - 1, output);
  };
  const char* const spin = getenv("GOMP_SPINCOUNT");
  const std::string before = spin == nullptr ? "" : spin;
  setenv("OMP_DISPLAY_ENV", "VERBOSE", 1);
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_WAIT_POLICY");
  EXPECT_THAT(started(), Pair(2, HasSubstr("GOMP_SPINCOUNT = '1000'")));
  setenv("GOMP_SPINCOUNT", "7", 1);
  EXPECT_THAT(started(), Pair(1, HasSubstr("GOMP_SPINCOUNT = '7'")));
  unsetenv("GOMP_SPINCOUNT");
  setenv("OMP_WAIT_POLICY", "passive", 1);
  EXPECT_THAT(started(), Pair(1, HasSubstr("GOMP_SPINCOUNT = '0'")));
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("OMP_DISPLAY_ENV");
  if (spin != nullptr) setenv("GOMP_SPINCOUNT", before.c_str(), 1);
}

}  // namespace
}  // namespace trainyard::worker
