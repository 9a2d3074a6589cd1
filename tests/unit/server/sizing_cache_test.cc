// Sizings that are kept, and those who ask the same at the same time.

#include "server/sizing/sizing_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "executor/plan/spec/spec.h"
#include "server/sizing/sizer.h"
#include "tests/unit/server/hostile_files.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using std::chrono::steady_clock;

class KeptSizings : public ::testing::Test {
 protected:
  static SizerOptions Options() {
    SizerOptions options;
    options.program = TRAINYARD_SIZER;
    options.look_holds = absl::ZeroDuration();
    return options;
  }
  explicit KeptSizings(const SizerOptions& options = Options()) {
    auto sizer = Sizer::Start(options);
    EXPECT_TRUE(sizer.ok()) << sizer.status();
    sizer_ = *std::move(sizer);
  }

  absl::StatusOr<Sizing> Size(const v1::Job& job) {
    const auto spec = plan::ResolveSpec(job.spec());
    EXPECT_TRUE(spec.ok()) << spec.status();
    return sizer_->Size(spec->SerializeAsString());
  }
  // Asks again and again until the answer is one that was kept: once the file is old enough.
  Sizing SizeUntilKept(const v1::Job& job) {
    const absl::Time limit = absl::Now() + kPatience;
    for (;;) {
      const int64_t before = sizer_->made();
      const auto sizing = Size(job);
      EXPECT_TRUE(sizing.ok()) << sizing.status();
      if (sizer_->made() == before || !sizing.ok()) return *sizing;
      if (absl::Now() > limit) {
        ADD_FAILURE() << "nothing is kept";
        return *sizing;
      }
      std::this_thread::yield();
    }
  }
  // Microseconds per question, of `count`.
  double MicrosecondsOf(const v1::Job& job, int count) {
    const auto begin = steady_clock::now();
    for (int i = 0; i < count; ++i) EXPECT_TRUE(Size(job).ok());
    return std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count() / count;
  }

  data::Folder folder_;
  std::unique_ptr<Sizer> sizer_;
};

v1::Job JobOnClicks() {
  v1::Job job;
  v1::JobSpec& spec = *job.mutable_spec();
  spec.mutable_model()->mutable_dlrm()->set_embedding_width(4);
  spec.mutable_model()->mutable_dlrm()->add_bottom(6);
  spec.mutable_model()->mutable_dlrm()->add_top(5);
  spec.mutable_data()->mutable_clicks()->set_train_samples(1000);
  spec.mutable_data()->mutable_clicks()->set_validation_samples(100);
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_batch_size(4);
  spec.mutable_optimizer()->mutable_adamw();
  return job;
}

TEST_F(KeptSizings, ASpecThatNamesNoFileIsSizedOnce) {
  const auto first = Size(JobOnClicks());
  ASSERT_TRUE(first.ok()) << first.status();
  for (const pid_t pid : sizer_->Pids()) kill(pid, SIGSTOP);  // no helper is asked again
  const auto again = Size(JobOnClicks());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->summary.SerializeAsString(), first->summary.SerializeAsString());
  EXPECT_EQ(again->facts.train_size, first->facts.train_size);
  EXPECT_EQ(sizer_->made(), 1);
}

TEST_F(KeptSizings, ADifferentSpecIsSizedForItself) {
  v1::Job job = JobOnClicks();
  EXPECT_EQ(Size(job)->summary.total_steps(), 3);
  job.mutable_spec()->mutable_training()->set_steps(4);
  EXPECT_EQ(Size(job)->summary.total_steps(), 4);
  EXPECT_EQ(sizer_->made(), 2);
}

TEST_F(KeptSizings, AFileIsReadAgainOnceItChanged) {
  const std::string path = folder_.Write("text.txt", std::string(500, 'a') + "bc");
  const v1::Job job = JobOnText(path);
  EXPECT_EQ(SizeUntilKept(job).facts.vocab, 3);
  folder_.Write("text.txt", std::string(499, 'a') + "bcd");  // of the same size
  EXPECT_EQ(Size(job)->facts.vocab, 4);
  EXPECT_EQ(SizeUntilKept(job).facts.vocab, 4);
  // Another file of the same size and the same time of writing takes its place.
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  const std::string other = folder_.Write("other.txt", std::string(502, 'a'));
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, other.c_str(), times, 0), 0);
  std::filesystem::rename(other, path);
  EXPECT_EQ(Size(job)->facts.vocab, 1);
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsInvalidArgument(Size(job).status()));
}

TEST_F(KeptSizings, AFileIsRightAfterEachOfManyQuickChanges) {
  const v1::Job job = JobOnText(folder_.path("text.txt"));
  for (int vocab = 1; vocab < 60; ++vocab) {
    std::string text(600, 'A');
    for (int i = 0; i < vocab; ++i) text[i] = static_cast<char>('A' + i);
    folder_.Write("text.txt", text);
    EXPECT_EQ(Size(job)->facts.vocab, vocab);
  }
}

TEST_F(KeptSizings, AFileThatIsNotThereIsLookedForAgain) {
  v1::Job job = JobOnText(folder_.path("text.txt"));
  job.mutable_spec()->mutable_data()->mutable_text()->set_tokenizer(v1::TextData::BYTES);
  EXPECT_EQ(Size(job)->facts.train_size, 0) << "as declared";
  EXPECT_EQ(Size(job)->facts.train_size, 0);
  EXPECT_EQ(sizer_->made(), 1) << "it is not there still";
  folder_.Write("text.txt", std::string(1000, 'a'));
  EXPECT_EQ(Size(job)->facts.train_size, 900);
}

TEST_F(KeptSizings, AnErrorIsNotKept) {
  const v1::Job job = JobOnText(folder_.path("text.txt"));
  EXPECT_TRUE(absl::IsInvalidArgument(Size(job).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Size(job).status()));
  folder_.Write("text.txt", std::string(1000, 'a'));
  EXPECT_TRUE(Size(job).ok());
  EXPECT_EQ(sizer_->made(), 1);
}

TEST_F(KeptSizings, WhatMayChangeUnseenIsNotKept) {
  // Its time lies ahead: the next change may have the same.
  const std::string path = folder_.Write("text.txt", std::string(1000, 'a'));
  timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = 0}};
  times[1].tv_sec = absl::ToUnixSeconds(absl::Now() + absl::Hours(1));
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Size(JobOnText(path)).ok());
  EXPECT_EQ(sizer_->made(), 3);
  // A folder's files are not named.
  v1::Job job = SmallJob();
  job.mutable_spec()->mutable_fine_tune()->set_from(folder_.path("weights"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Size(job).ok()) << Size(job).status();
  EXPECT_GE(sizer_->made(), 6);
}

TEST_F(KeptSizings, OfManyWhoAskTheSameAtOnceFewAskAHelper) {
  const v1::Job job = JobOnText(folder_.Write("text.txt", std::string(32 << 20, 'a')));
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(Size(job).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  // One that began first, one for those who came meanwhile, and a few latecomers.
  EXPECT_LE(sizer_->made(), 8);
}

class KeptLooks : public KeptSizings {
 protected:
  static SizerOptions Options() {
    SizerOptions options = KeptSizings::Options();
    options.look_holds = absl::Hours(1);
    return options;
  }
  KeptLooks() : KeptSizings(Options()) {}
};

TEST_F(KeptLooks, ServeWithoutAHelperAsLongAsTheyHold) {
  const v1::Job job = JobOnText(folder_.Write("text.txt", std::string(500, 'a') + "bc"));
  SizeUntilKept(job);
  for (const pid_t pid : sizer_->Pids()) kill(pid, SIGSTOP);  // no helper is asked again
  folder_.Write("text.txt", std::string(500, 'a') + "bcd");
  EXPECT_EQ(Size(job)->facts.vocab, 3) << "as of the last look";
}

TEST_F(KeptSizings, CostLessThanSizingsThatAreMade) {
  const v1::Job absent = SmallJob();
  const v1::Job text = JobOnText(folder_.Write("text.txt", std::string(1 << 20, 'a')));
  const double made_of_text = MicrosecondsOf(text, 1);
  SizeUntilKept(text);
  SizeUntilKept(absent);
  SizeUntilKept(JobOnClicks());
  const int64_t made = sizer_->made();
  std::printf(
      "a kept sizing: %.0f us without files, %.0f us of an absent file, %.0f us of a file; "
      "made of 1 MiB of text: %.0f us\n",
      MicrosecondsOf(JobOnClicks(), 200), MicrosecondsOf(absent, 200), MicrosecondsOf(text, 200),
      made_of_text);
  EXPECT_EQ(sizer_->made(), made);
  SizerOptions options = Options();
  options.cache_bytes = 0;
  sizer_ = *Sizer::Start(options);
  EXPECT_TRUE(Size(absent).ok());
  std::printf(
      "made each time: %.0f us without files, %.0f us of an absent file, %.0f us of a file\n",
      MicrosecondsOf(JobOnClicks(), 100), MicrosecondsOf(absent, 100), MicrosecondsOf(text, 20));
}

TEST(ACacheOfSizings, ForgetsWhatWasUsedLeastLately) {
  KnownSizing known;
  known.identity = "files";
  SizingCache one(int64_t{1} << 20);
  one.Put("0", known, {});
  SizingCache cache(3 * one.bytes());
  for (const char* key : {"1", "2", "3"}) cache.Put(key, known, {});
  EXPECT_NE(cache.Find("1").known, nullptr);
  cache.Put("4", known, {});
  EXPECT_EQ(cache.Find("2").known, nullptr);
  for (const char* key : {"1", "3", "4"}) EXPECT_NE(cache.Find(key).known, nullptr) << key;
  cache.Put("4", known, {});
  EXPECT_EQ(cache.bytes(), 3 * one.bytes());
  for (const char* key : {"1", "3", "4", "5"}) cache.Remove(key);
  EXPECT_EQ(cache.bytes(), 0);
  SizingCache none(0);
  none.Put("1", known, {});
  EXPECT_EQ(none.Find("1").known, nullptr);
}

TEST(Rounds, AnswersAreLookedForAfterTheyWereAskedForAndShared) {
  SizingRounds rounds;
  std::atomic<int64_t> begun = 0, calls = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const int64_t before = begun;
        const auto sizing = rounds.Ask("key", steady_clock::now() + std::chrono::seconds(100), [&] {
          Sizing answer;
          answer.facts.train_size = ++begun;
          const auto end = steady_clock::now() + std::chrono::microseconds(200);
          while (steady_clock::now() < end) std::this_thread::yield();
          return absl::StatusOr<Sizing>(answer);
        });
        ++calls;
        ASSERT_TRUE(sizing.ok());
        EXPECT_GT(sizing->facts.train_size, before) << "an answer from before the question";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(begun, calls / 2);
}

TEST(Rounds, EachCallerHasADeadlineOfItsOwn) {
  SizingRounds rounds;
  absl::Notification asked, end;
  const auto good = [] { return absl::StatusOr<Sizing>(Sizing()); };
  const SteadyTime early = steady_clock::now();
  std::thread first([&] {  // its time is over when it has asked
    const auto sizing = rounds.Ask("key", early, [&] {
      asked.Notify();
      end.WaitForNotification();
      return absl::StatusOr<Sizing>(absl::UnavailableError("no time"));
    });
    EXPECT_TRUE(absl::IsUnavailable(sizing.status()));
  });
  asked.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(rounds.Ask("key", early, good).status()));
  EXPECT_TRUE(rounds.Ask("another", early + std::chrono::seconds(100), good).ok());
  end.Notify();
  first.join();
}

// Two wait for a round. If the one whose time runs out meanwhile leads it, the other asks anew.
TEST(Rounds, WhoSharesARoundIsNotCutByAnothersDeadline) {
  using std::chrono::milliseconds;
  for (int trial = 0; trial < 20; ++trial) {
    SizingRounds rounds;
    std::atomic<int> waiting = 0;
    absl::Notification under_way;
    const SteadyTime late = steady_clock::now() + std::chrono::seconds(100);
    const SteadyTime early = steady_clock::now() + milliseconds(30);
    std::thread first([&] {
      EXPECT_TRUE(rounds
                      .Ask("key", late,
                           [&] {
                             under_way.Notify();
                             while (waiting < 2) std::this_thread::yield();
                             const SteadyTime end = steady_clock::now() + milliseconds(2);
                             while (steady_clock::now() < end) std::this_thread::yield();
                             return absl::StatusOr<Sizing>(Sizing());
                           })
                      .ok());
    });
    under_way.WaitForNotification();
    std::thread hurried([&] {
      ++waiting;
      const auto ask = [&] {
        while (steady_clock::now() < early) std::this_thread::yield();
        return absl::StatusOr<Sizing>(absl::UnavailableError("no time"));
      };
      (void)rounds.Ask("key", early, ask);
    });
    std::thread patient([&] {
      ++waiting;
      const auto good = [] { return absl::StatusOr<Sizing>(Sizing()); };
      EXPECT_TRUE(rounds.Ask("key", late, good).ok());
    });
    for (std::thread* thread : {&first, &hurried, &patient}) thread->join();
  }
}

}  // namespace
}  // namespace trainyard
