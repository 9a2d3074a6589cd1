// Files that end, fill or hang whoever reads them, and helpers that end by themselves.

#include "server/sizing/sizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "executor/facts/facts_message.h"
#include "executor/plan/choose.h"
#include "executor/plan/fit.h"
#include "executor/plan/layouts.h"
#include "executor/plan/spec/spec.h"
#include "server/sizing/frames.h"
#include "tests/unit/server/hostile_files.h"
#include "tests/unit/server/process_tree.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SizerTest : public ::testing::Test {
 protected:
  static SizerOptions Options() {
    SizerOptions options;
    options.program = TRAINYARD_SIZER;
    return options;
  }

  void Start(const SizerOptions& options = Options()) {
    auto sizer = Sizer::Start(options);
    ASSERT_TRUE(sizer.ok()) << sizer.status();
    sizer_ = *std::move(sizer);
  }

  static std::string SpecOf(const v1::Job& job) {
    const auto spec = plan::ResolveSpec(job.spec());
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->SerializeAsString();
  }

  absl::StatusOr<Sizing> Size(const v1::Job& job) { return sizer_->Size(SpecOf(job)); }

  // A helper that has `path` open, as soon as there is one.
  pid_t WhoReads(const std::string& path) {
    const absl::Time limit = absl::Now() + kPatience;
    while (absl::Now() < limit) {
      for (const pid_t pid : sizer_->Pids()) {
        if (HasOpen(pid, path)) return pid;
      }
      std::this_thread::yield();
    }
    ADD_FAILURE() << "nobody opened " << path;
    return 0;
  }

  // Sends `number` to each of the `helpers` that read `path` one after the other; what Size says.
  absl::StatusOr<Sizing> SizeWhile(const v1::Job& job, const std::string& path, int number,
                                   int helpers) {
    absl::StatusOr<Sizing> sizing = absl::UnknownError("");
    std::thread asker([&] { sizing = Size(job); });
    pid_t last = 0;
    for (int i = 0; i < helpers; ++i) {
      pid_t pid = last;
      while (pid == last) pid = WhoReads(path);
      kill(pid, number);
      last = pid;
    }
    asker.join();
    return sizing;
  }

  data::Folder folder_;
  std::unique_ptr<Sizer> sizer_;
};

TEST_F(SizerTest, FindsWhatTheReadersFind) {
  Start();
  const v1::Job job = JobOnText(folder_.Write("text.txt", std::string(500, 'a') + "bc"));
  const auto sizing = Size(job);
  ASSERT_TRUE(sizing.ok()) << sizing.status();
  const auto spec = plan::ResolveSpec(job.spec());
  const auto own = SizeJob(*spec);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(sizing->facts.vocab, 3);
  EXPECT_EQ(sizing->facts.train_size, own->facts.train_size);
  EXPECT_EQ(sizing->facts.validation_size, own->facts.validation_size);
  EXPECT_EQ(sizing->facts.held_bytes, own->facts.held_bytes);
  EXPECT_EQ(sizing->summary.SerializeAsString(), own->summary.SerializeAsString());
}

TEST(Frames, CarryWhatTheDataHolds) {
  const plan::DataFacts facts = {.kind = plan::DataFacts::Kind::kClicks,
                                 .height = 1,
                                 .width = 2,
                                 .channels = 3,
                                 .classes = 4,
                                 .vocab = 5,
                                 .dense = 6,
                                 .categorical = 7,
                                 .buckets = 8,
                                 .train_size = 9,
                                 .validation_size = 10,
                                 .held_bytes = 11,
                                 .bytes_per_thread = 12};
  const auto [kind, height, width, channels, classes, vocab, dense, categorical, buckets,
              train_size, validation_size, held_bytes, bytes_per_thread] =
      facts::FromMessage(facts::ToMessage(facts)).value();
  EXPECT_EQ(kind, facts.kind);
  EXPECT_THAT(
      (std::vector<int64_t>{height, width, channels, classes, vocab, dense, categorical, buckets,
                            train_size, validation_size, held_bytes, bytes_per_thread}),
      ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

// What helpers plan is what this process would plan.
TEST_F(SizerTest, PlansWithoutAFile) {
  SizerOptions options = Options();
  options.longest_search = absl::Seconds(9);  // all there is to look at
  Start(options);
  v1::Job job = SmallJob();
  v1::JobSpec& asked = *job.mutable_spec();
  asked.mutable_model()->mutable_gpt()->set_layers(4);
  asked.mutable_resources()->set_min_slots(2);
  asked.mutable_resources()->set_max_slots(2);
  const auto spec = plan::ResolveSpec(asked);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::string bytes = spec->SerializeAsString();
  const auto sizing = sizer_->Size(bytes);
  ASSERT_TRUE(sizing.ok()) << sizing.status();
  const int64_t half = sizing->summary.bytes_per_slot() / 2;

  const auto fits = sizer_->WhatFits(bytes, sizing->facts, half);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(*fits, plan::WhatFits(*spec, sizing->facts, half));

  const auto never = [] { return false; };
  const auto mesh = sizer_->ChooseMesh(bytes, sizing->facts, 2 * half);
  const auto own_mesh = plan::ChooseMesh(*spec, sizing->facts, 2 * half, never);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_TRUE(mesh->fits);
  EXPECT_EQ(mesh->why, own_mesh->why);
  EXPECT_EQ(mesh->spec.SerializeAsString(), own_mesh->spec.SerializeAsString());
  EXPECT_EQ(mesh->summary.SerializeAsString(), own_mesh->summary.SerializeAsString());

  const std::vector<plan::JobLayout> layouts = {{.slots = 1}, {.slots = 2}};
  const plan::Rates rates = {.flops_per_second = 1e9, .bytes_per_second = 1e9};
  const auto plans = sizer_->PlanLayouts(bytes, sizing->facts, layouts, rates);
  const auto own_plans = plan::PlanLayouts(*spec, sizing->facts, layouts, rates, never);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*plans)[i].SerializeAsString(), (*own_plans)[i].SerializeAsString());
  }
}

TEST_F(SizerTest, APlanThatTakesTooMuchMemoryIsNotBlamedOnAFile) {
  if (TRAINYARD_MEMORY_LIMIT == 0) GTEST_SKIP() << "sanitizers need memory of their own";
  SizerOptions options = Options();
  options.quick.memory_bytes = options.patient.memory_bytes = int64_t{8} << 20;
  Start(options);
  v1::Job job = JobOnText(folder_.Write("text.txt", std::string(500, 'a') + "bc"));
  v1::Gpt& gpt = *job.mutable_spec()->mutable_model()->mutable_gpt();
  gpt.set_layers(400);
  const absl::Status status = Size(job).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith("spec: to plan it takes more than the 8 MiB of memory"));
}

TEST_F(SizerTest, ErrorsComeAsTheReadersGiveThem) {
  Start();
  const v1::Job job = JobOnText("/nowhere/text.txt");
  const auto spec = plan::ResolveSpec(job.spec());
  EXPECT_EQ(Size(job).status(), SizeJob(*spec).status());
  EXPECT_TRUE(absl::IsInvalidArgument(Size(job).status()));
}

TEST_F(SizerTest, ATextOfOneGibibyteIsCounted) {
  SizerOptions options = Options();
  options.quick.time = absl::Seconds(15);  // a slow machine may take them
  Start(options);
  const auto sizing = Size(JobOnText(SparseText(folder_)));
  ASSERT_TRUE(sizing.ok()) << sizing.status();
  EXPECT_EQ(sizing->facts.vocab, 1);
  EXPECT_EQ(sizing->facts.train_size + sizing->facts.validation_size, int64_t{1} << 30);
}

TEST_F(SizerTest, TwoBillionLabelsAreCounted) {
  SizerOptions options = Options();
  options.patient.time = options.longest = absl::Seconds(100);
  Start(options);
  const auto sizing = Size(JobOnTwoBillionLabels(folder_));
  ASSERT_TRUE(sizing.ok()) << sizing.status();
  EXPECT_EQ(sizing->facts.train_size + sizing->facts.validation_size, 2'000'000'000);
}

TEST_F(SizerTest, ATokenizerOfBracketsAloneIsRefusedByItsDepth) {
  Start();
  const v1::Job job = JobOnTokenizerOf(folder_, "", "[");
  EXPECT_THAT(std::string(Size(job).status().message()),
              AllOf(HasSubstr("spec.data.text.tokenizer_file: "), HasSubstr("tokenizer.json"),
                    HasSubstr("found more than 64 brackets in each other at byte 64")));
}

TEST_F(SizerTest, AFileThatTakesTooMuchMemoryIsNamed) {
  if (TRAINYARD_MEMORY_LIMIT == 0) GTEST_SKIP() << "sanitizers need memory of their own";
  Start();
  const absl::Status status = Size(JobOnTokenizerOf(folder_, "[[]", ",[]")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("spec.data.text.tokenizer_file: "), HasSubstr("tokenizer.json"),
                    HasSubstr("more than the 104 MiB of memory"), HasSubstr("check that it is")));
  EXPECT_TRUE(Size(SmallJob()).ok());
}

TEST_F(SizerTest, AHelperThatIsKilledInTheMiddleIsReplacedAndTheQuestionAskedAgain) {
  SizerOptions options = Options();
  options.quick.time = options.patient.time = options.longest = absl::Seconds(100);
  Start(options);
  const std::string path = SparseText(folder_);
  const auto sizing = SizeWhile(JobOnText(path), path, SIGKILL, 1);
  EXPECT_TRUE(sizing.ok()) << sizing.status();
}

TEST_F(SizerTest, WhoIsKilledEachTimeMayBeAskedAgain) {
  SizerOptions options = Options();
  options.quick.time = options.patient.time = options.longest = absl::Seconds(100);
  Start(options);
  const std::string path = SparseText(folder_);
  const absl::Status status = SizeWhile(JobOnText(path), path, SIGKILL, 2).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("spec.data.text.path: " + path), HasSubstr("was killed")));
  EXPECT_TRUE(Size(SmallJob()).ok());
}

TEST_F(SizerTest, AFileOnWhichAParserCrashesIsNamed) {
  SizerOptions options = Options();
  options.quick.time = options.longest = absl::Seconds(100);
  Start(options);
  const std::string path = SparseText(folder_);
  const absl::Status status = SizeWhile(JobOnText(path), path, SIGBUS, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("spec.data.text.path: " + path), HasSubstr("signal 7")));
  EXPECT_TRUE(Size(SmallJob()).ok());
  EXPECT_EQ(sizer_->Pids().size(), 3u);
}

TEST_F(SizerTest, AHelperThatHangsIsEndedAtItsDeadline) {
  SizerOptions options = Options();
  options.quick.time = absl::Milliseconds(300);
  options.patient.time = absl::Milliseconds(600);
  Start(options);
  const std::string path = SparseText(folder_);
  const absl::Time begin = absl::Now();
  const absl::Status status = SizeWhile(JobOnText(path), path, SIGSTOP, 2).status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("spec.data.text.path: " + path), HasSubstr("more than the 600ms"),
                    HasSubstr("check that its file system answers")));
  EXPECT_TRUE(Size(SmallJob()).ok());
}

TEST_F(SizerTest, SmallJobsDoNotWaitForALargeFile) {
  SizerOptions options = Options();
  options.quick_helpers = 1;
  options.quick.time = absl::Milliseconds(100);
  options.patient.time = options.longest = absl::Seconds(100);
  Start(options);
  const std::string path = SparseText(folder_);
  absl::Notification counted;
  std::thread large([&] {
    EXPECT_TRUE(Size(JobOnText(path)).ok());
    counted.Notify();
  });
  const pid_t quick = WhoReads(path);
  pid_t patient = quick;
  while (patient == quick) patient = WhoReads(path);
  kill(patient, SIGSTOP);
  EXPECT_TRUE(Size(SmallJob()).ok());
  EXPECT_FALSE(counted.HasBeenNotified());
  kill(patient, SIGCONT);
  large.join();
}

TEST_F(SizerTest, WhoWaitsForAHelperIsToldInTime) {
  SizerOptions options = Options();
  options.quick_helpers = 1;
  options.quick.time = absl::Seconds(100);
  options.longest = absl::Milliseconds(50);
  Start(options);
  kill(sizer_->Pids().at(0), SIGSTOP);
  const absl::Status status = Size(SmallJob()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("busy"));
}

TEST_F(SizerTest, StopEndsWhatIsUnderWay) {
  SizerOptions options = Options();
  options.quick.time = options.longest = absl::Seconds(100);
  Start(options);
  const std::string path = SparseText(folder_);
  absl::Status status;
  std::thread asker([&] { status = Size(JobOnText(path)).status(); });
  kill(WhoReads(path), SIGSTOP);
  sizer_->Stop();
  asker.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::IsUnavailable(Size(SmallJob()).status()));
  EXPECT_THAT(sizer_->Pids(), ::testing::IsEmpty());
}

TEST_F(SizerTest, AnUpgradeUnderARunningServerDoesNotMixBuilds) {
  SizerOptions options = Options();
  options.program = folder_.path("trainyard-sizer");
  std::filesystem::copy_file(TRAINYARD_SIZER, options.program);
  Start(options);
  std::filesystem::remove(options.program);
  folder_.Write("trainyard-sizer", "of another build");
  for (const pid_t pid : sizer_->Pids()) kill(pid, SIGKILL);
  EXPECT_TRUE(Size(SmallJob()).ok()) << "helpers that start now are of the build that was there";
}

TEST_F(SizerTest, AServerWithoutItsHelperSaysWhatIsMissing) {
  SizerOptions options = Options();
  options.program = "/nowhere/trainyard-sizer";
  const absl::Status status = Sizer::Start(options).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("install both together"));
}

TEST_F(SizerTest, ATokenizerAsLargeAsThatOfLlama3FitsTheLimits) {
  Start();
  v1::Job job = JobOnText(folder_.Write("text.txt", std::string(20 << 20, 'a')));
  v1::TextData& text = *job.mutable_spec()->mutable_data()->mutable_text();
  text.set_tokenizer(v1::TextData::BPE);
  text.set_tokenizer_file(folder_.Write("tokenizer.json", LargeTokenizer(128'000)));
  job.mutable_spec()->mutable_model()->mutable_gpt()->set_context(64);
  const auto sizing = Size(job);
  ASSERT_TRUE(sizing.ok()) << sizing.status();
  EXPECT_EQ(sizing->facts.vocab, 128'000);
}

// Server, clients and helpers together, 32 dry submissions at once, round after round.
class DrySubmissions : public ::testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options = Rig::FastOptions();
    options.sizer.quick.time = absl::Seconds(2);
    options.sizer.patient.time = absl::Seconds(3);
    options.sizer.longest = absl::Seconds(6);
    return options;
  }

  void SetUp() override {
    if (TRAINYARD_MEMORY_LIMIT == 0) GTEST_SKIP() << "sanitizers need memory of their own";
    rig_.Submit(SmallJob());
  }

  // No two of them are alike, so that none waits for another's answer.
  static v1::Job Number(int i, v1::Job job) {
    job.mutable_spec()->mutable_training()->set_seed(i);
    return job;
  }

  grpc::Status Submit(v1::Job job) {
    v1::SubmitJobRequest request;
    request.set_parent("projects/default");
    request.set_validate_only(true);
    *request.mutable_job() = std::move(job);
    v1::Job response;
    return rig_.jobs().SubmitJob(Rig::Context().get(), request, &response);
  }

  grpc::Status PlanLayouts(v1::Job job) {
    v1::PlanLayoutsRequest request;
    request.set_parent("projects/default");
    request.set_vary_layout(true);
    *request.mutable_job() = std::move(job);
    v1::PlanLayoutsResponse response;
    return rig_.jobs().PlanLayouts(Rig::Context().get(), request, &response);
  }

  // `ask` of each number below 32 at once, after what was asked before.
  void ExpectLittleMemory(const std::string& what, const std::function<grpc::Status(int)>& ask) {
    if (before_ == 0) {
      ForgetPeaks();
      before_ = PeakBytesOfTree();
    }
    absl::Notification done;
    int64_t peak = 0;
    std::thread observer([&] {
      do {
        peak = std::max(peak, PeakBytesOfTree());
      } while (!done.WaitForNotificationWithTimeout(absl::Milliseconds(5)));
    });
    std::vector<std::thread> clients;
    std::atomic<int> turned_away = 0;
    for (int i = 0; i < 32; ++i) {
      clients.emplace_back([&, i] {
        const grpc::Status status = ask(i);
        if (status.error_code() == grpc::UNAVAILABLE) ++turned_away;
        EXPECT_THAT(status.error_code(), AnyOf(grpc::OK, grpc::INVALID_ARGUMENT,  // swollen
                                               grpc::FAILED_PRECONDITION,  // slow, or fits nowhere
                                               grpc::UNAVAILABLE))         // and those behind it
            << status.error_message();
      });
    }
    for (std::thread& client : clients) client.join();
    done.Notify();
    observer.join();
    EXPECT_LE(peak - before_, int64_t{256} << 20) << what;
    std::cout << "added " << ((peak - before_) >> 20) << " MiB, " << turned_away
              << " turned away: " << what << std::endl;
  }

  Rig rig_{Options()};
  int64_t before_ = 0;
};

TEST_F(DrySubmissions, OfAnyFileAddAtMost256MebibytesToTheServer) {
  const data::Folder sparse, labels, deep, wide;
  const v1::Job jobs[] = {JobOnText(SparseText(sparse)), JobOnTwoBillionLabels(labels),
                          JobOnTokenizerOf(deep, "", "["), JobOnTokenizerOf(wide, "[[]", ",[]")};
  for (const v1::Job& job : jobs) {
    ExpectLittleMemory(job.spec().data().ShortDebugString(),
                       [&](int i) { return Submit(Number(i, job)); });
  }
  rig_.Submit(SmallJob());
}

// Of 1.6 billion parameters, which 64 slots are too small for, however they share it.
TEST_F(DrySubmissions, OfLargeModelsAddAtMost256MebibytesToTheServer) {
  ScriptedAgent agent(rig_);
  agent.Register("small", 64, "i1", int64_t{32} << 20);
  agent.Welcomed();
  v1::Job job = SmallJob();
  v1::JobSpec& spec = *job.mutable_spec();
  v1::Gpt& gpt = *spec.mutable_model()->mutable_gpt();
  gpt.set_layers(48);
  gpt.set_width(1600);
  gpt.set_heads(25);
  spec.mutable_resources()->set_device(v1::Resources::CPU);
  spec.mutable_resources()->set_min_slots(64);
  spec.mutable_training()->set_batch_size(64);
  spec.mutable_training()->set_micro_batch_size(1);
  ExpectLittleMemory("as it is", [&](int i) { return Submit(Number(i, job)); });
  ExpectLittleMemory("layouts", [&](int i) { return PlanLayouts(Number(i, job)); });
  spec.mutable_parallel()->set_auto_(true);
  ExpectLittleMemory("auto", [&](int i) { return Submit(Number(i, job)); });
}

}  // namespace
}  // namespace trainyard
