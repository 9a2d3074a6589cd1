// Submission, reading, listing, the user's arrows, deletion.

#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

TEST_P(StoreSuite, SubmittedJobReadsBackAsItWas) {
  JobRecord job = NewJob("a");
  job.request_id = "r1";
  job.priority = -7;
  job.device = "CUDA";
  job.group_ranks = 4;
  job.slot_step = 8;
  job.second_owner = true;
  job.min_slots = 8;
  job.max_slots = 24;
  job.bytes_per_slot = int64_t{80} << 30;
  const auto made = jobs().Submit(job);
  ASSERT_OK(made.status());
  const JobRecord read = Get("a");
  EXPECT_FALSE(read.uid.empty());
  EXPECT_EQ(read.uid, made->uid);
  EXPECT_EQ(read.spec, job.spec);
  EXPECT_EQ(read.plan_summary, job.plan_summary);
  EXPECT_EQ(read.labels, job.labels);
  EXPECT_EQ(read.priority, -7);
  EXPECT_EQ(read.device, "CUDA");
  EXPECT_EQ(read.group_ranks, 4);
  EXPECT_EQ(read.slot_step, 8);
  EXPECT_TRUE(read.second_owner);
  EXPECT_EQ(read.min_slots, 8);
  EXPECT_EQ(read.max_slots, 24);
  EXPECT_EQ(read.bytes_per_slot, job.bytes_per_slot);
  EXPECT_EQ(read.backoff, job.backoff);
  EXPECT_EQ(read.state, JobState::kQueued);
  EXPECT_EQ(read.reason.code, reason::kSubmitted);
  EXPECT_EQ(read.version, 1);
  EXPECT_EQ(read.create_time, made->create_time);
  EXPECT_EQ(read.update_time, made->update_time);
  EXPECT_EQ(read.end_time, absl::InfinitePast());
  EXPECT_EQ(read.suspend_deadline, absl::InfiniteFuture());
  const auto feed = jobs().ReadFeed(read.uid, 0, 10);
  ASSERT_OK(feed.status());
  ASSERT_EQ(feed->size(), 1u);
  const auto& submitted = std::get<StateChangeRecord>(feed->front().what);
  EXPECT_EQ(submitted.from, std::nullopt);  // it came from nowhere
  EXPECT_EQ(submitted.to, JobState::kQueued);
}

TEST_P(StoreSuite, ReplayedSubmissionReturnsTheFirstAnswer) {
  JobRecord job = NewJob("a");
  job.request_id = "r1";
  const auto first = jobs().Submit(job);
  ASSERT_OK(first.status());
  const auto again = jobs().Submit(job);
  ASSERT_OK(again.status());
  EXPECT_EQ(again->uid, first->uid);
  job.job_id.clear();  // any
  const auto unnamed = jobs().Submit(job);
  ASSERT_OK(unnamed.status());
  EXPECT_EQ(unnamed->uid, first->uid);
}

TEST_P(StoreSuite, AnotherPayloadUnderTheSameRequestIdIsAlreadyExists) {
  JobRecord job = NewJob("a");
  job.request_id = "r1";
  ASSERT_OK(jobs().Submit(job).status());
  for (const int what : {0, 1, 2, 3}) {
    JobRecord other = job;
    if (what == 0) other.spec = "other";
    if (what == 1) other.priority += 1;
    if (what == 2) other.labels["team"] = "speech";
    if (what == 3) other.job_id = "b";
    EXPECT_EQ(jobs().Submit(other).status().code(), absl::StatusCode::kAlreadyExists) << what;
  }
  job.project = "another";
  EXPECT_OK(jobs().Submit(job).status());
}

TEST_P(StoreSuite, TakenJobIdIsAlreadyExists) {
  Submit("a");
  EXPECT_EQ(jobs().Submit(NewJob("a")).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(StoreSuite, UidOfTheCallerIsKeptAndItsReplayFindsTheJob) {
  JobRecord job = NewJob("a");
  job.uid = "0123456789abcdef";
  ASSERT_OK(jobs().Submit(job).status());
  const auto again = jobs().Submit(job);
  ASSERT_OK(again.status());
  EXPECT_EQ(again->uid, job.uid);
}

TEST_P(StoreSuite, ConcurrentSubmissionsUnderOneRequestIdMakeOneJob) {
  JobRecord job = NewJob("");
  job.request_id = "r1";
  std::vector<std::string> uids(8);
  std::vector<std::thread> threads;
  for (std::string& uid : uids) {
    threads.emplace_back([&] {
      const auto made = jobs().Submit(job);
      EXPECT_OK(made.status());
      if (made.ok()) uid = made->uid;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(uids.begin(), uids.end()).size(), 1u);
  const auto page = jobs().List("default", {}, 10, "");
  ASSERT_OK(page.status());
  EXPECT_EQ(page->jobs.size(), 1u);
}

TEST_P(StoreSuite, TextsThatCannotBeStoredAreInvalid) {
  JobRecord job = NewJob("a");
  job.labels["team"] = std::string("a\0b", 3);
  EXPECT_EQ(jobs().Submit(job).status().code(), absl::StatusCode::kInvalidArgument);
  job = NewJob("a");
  job.request_id = "\xff";
  EXPECT_EQ(jobs().Submit(job).status().code(), absl::StatusCode::kInvalidArgument);
  Submit("a");
  const Reason bad{"CODE", std::string("\0", 1)};
  EXPECT_EQ(jobs().Cancel({"default", "a"}, 0, bad).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreSuite, MissingJobIsNotFoundByName) {
  const absl::Status status = jobs().Get({"default", "missing"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("projects/default/jobs/missing"), absl::string_view::npos);
  EXPECT_EQ(jobs().ReadFeed("missing", 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(jobs().ReadMetrics("missing", {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(jobs().ListCheckpoints("missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(jobs().Cancel({"default", "missing"}, 0, kUser).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_P(StoreSuite, PagesHoldEveryJobOnceNewestFirst) {
  for (int i = 0; i < 7; ++i) Submit(absl::StrCat("job", i));
  std::vector<std::string> seen;
  std::string cursor;
  do {
    const auto page = jobs().List("-", {}, 3, cursor);
    ASSERT_OK(page.status());
    EXPECT_LE(page->jobs.size(), 3u);
    for (const JobRecord& job : page->jobs) seen.push_back(job.job_id);
    cursor = page->next_cursor;
  } while (!cursor.empty());
  for (const char* wrong : {"1", ".x", "x.y", "-1.x", "9223372036854775807.x"}) {
    EXPECT_EQ(jobs().List("-", {}, 3, wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 7u);
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(jobs().List("-", {}, 3, "nonsense").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(jobs().List("-", {}, 0, "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreSuite, FiltersAreJoinedByAnd) {
  JobRecord high = NewJob("high");
  high.priority = 10;
  ASSERT_OK(jobs().Submit(high).status());
  JobRecord plain = NewJob("plain");
  plain.labels.clear();
  ASSERT_OK(jobs().Submit(plain).status());
  ASSERT_OK(jobs().Cancel({"default", "plain"}, 0, kUser).status());
  JobRecord elsewhere = NewJob("elsewhere");
  elsewhere.project = "other";
  ASSERT_OK(jobs().Submit(elsewhere).status());

  using F = JobFilter;
  const auto list = [&](const std::string& project, std::vector<F> filter) {
    std::set<std::string> ids;
    const auto page = jobs().List(project, filter, 100, "");
    EXPECT_OK(page.status());
    if (page.ok()) {
      for (const JobRecord& job : page->jobs) ids.insert(job.job_id);
    }
    return ids;
  };
  using Ids = std::set<std::string>;
  EXPECT_EQ(list("default", {}), (Ids{"high", "plain"}));
  EXPECT_EQ(list("-", {{F::Field::kState, F::Op::kEq, "", "QUEUED"}}), (Ids{"elsewhere", "high"}));
  EXPECT_EQ(list("-", {{F::Field::kState, F::Op::kNe, "", "QUEUED"}}), (Ids{"plain"}));
  EXPECT_EQ(list("-", {{F::Field::kPriority, F::Op::kGe, "", "10"}}), (Ids{"high"}));
  EXPECT_EQ(list("-", {{F::Field::kPriority, F::Op::kLt, "", "10"}}), (Ids{"elsewhere", "plain"}));
  EXPECT_EQ(list("-", {{F::Field::kLabel, F::Op::kEq, "team", "vision"}}),
            (Ids{"elsewhere", "high"}));
  EXPECT_EQ(list("-", {{F::Field::kLabel, F::Op::kEq, "quote", "a\"b\\c'd"}}),
            (Ids{"elsewhere", "high"}));
  EXPECT_EQ(list("-", {{F::Field::kLabel, F::Op::kNe, "team", "vision"}}), (Ids{"plain"}));
  EXPECT_EQ(list("default", {{F::Field::kJobId, F::Op::kEq, "", "high"},
                             {F::Field::kState, F::Op::kEq, "", "QUEUED"}}),
            (Ids{"high"}));
  EXPECT_EQ(
      jobs().List("-", {{F::Field::kState, F::Op::kEq, "", "SLEEPING"}}, 1, "").status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(jobs().List("-", {{F::Field::kJobId, F::Op::kLt, "", "a"}}, 1, "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreSuite, QueuedJobIsCancelledAtOnceAndCancellingAgainChangesNothing) {
  const JobRecord job = Submit("a");
  const auto cancelled = jobs().Cancel({"default", "a"}, job.version, kUser);
  ASSERT_OK(cancelled.status());
  EXPECT_EQ(cancelled->state, JobState::kCancelled);
  EXPECT_EQ(cancelled->reason, kUser);
  EXPECT_NE(cancelled->end_time, absl::InfinitePast());
  EXPECT_EQ(cancelled->spec, job.spec);
  const auto again = jobs().Cancel({"default", "a"}, job.version, kUser);
  ASSERT_OK(again.status());
  EXPECT_EQ(again->version, cancelled->version);
  EXPECT_EQ(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ExpectGaplessFeed(job.uid);
}

TEST_P(StoreSuite, ACancelledJobIsResumed) {
  const JobRecord job = Submit("a");
  ASSERT_OK(jobs().Cancel({"default", "a"}, job.version, kUser).status());
  const auto resumed = jobs().Resume({"default", "a"}, 0, kUser);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(resumed->state, JobState::kQueued);
  EXPECT_EQ(resumed->end_time, absl::InfinitePast());
  EXPECT_EQ(jobs().Resume({"default", "a"}, 0, kUser)->version, resumed->version);
  EXPECT_EQ(Get("a").end_time, absl::InfinitePast());
  EXPECT_EQ(JobsOf(*scheduler().ReadSnapshot()).size(), 1u);
  ASSERT_OK(jobs().Cancel({"default", "a"}, 0, kUser).status());
  EXPECT_EQ(Get("a").state, JobState::kCancelled);
  ExpectGaplessFeed(job.uid);
}

TEST_P(StoreSuite, QueuedJobIsPausedAtOnceAndResumed) {
  Submit("a");
  const auto paused = jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(1));
  ASSERT_OK(paused.status());
  EXPECT_EQ(paused->state, JobState::kSuspended);
  EXPECT_EQ(paused->suspend_cause, SuspendCause::kUser);
  EXPECT_EQ(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(1))->version, paused->version);
  const auto resumed = jobs().Resume({"default", "a"}, 0, kUser);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(resumed->state, JobState::kQueued);
  EXPECT_EQ(resumed->suspend_cause, SuspendCause::kNone);
  EXPECT_EQ(jobs().Resume({"default", "a"}, 0, kUser)->version, resumed->version);
  ASSERT_OK(jobs().Pause({"default", "a"}, 0, kUser, absl::Seconds(1)).status());
  EXPECT_EQ(jobs().Cancel({"default", "a"}, 0, kUser)->state, JobState::kCancelled);
}

TEST_P(StoreSuite, AnotherVersionIsAborted) {
  const JobRecord job = Submit("a");
  EXPECT_EQ(jobs().Cancel({"default", "a"}, job.version + 1, kUser).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(jobs().Pause({"default", "a"}, 99, kUser, absl::Seconds(1)).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(Get("a").version, job.version);
}

TEST_P(StoreSuite, OnlyEndedJobsAreDeletedAndNothingOfThemRemains) {
  Register("n1");
  Submit("a");
  EXPECT_EQ(jobs().Delete({"default", "a"}, 0).code(), absl::StatusCode::kFailedPrecondition);
  const JobRecord job = Run("a", {"n1"});
  EventWriter& writer = Writer(job);
  writer.Train(1).Checkpoint(1).Finished(1).Exited();
  Append(job, 0, "n1", writer);
  EXPECT_EQ(Get("a").state, JobState::kSucceeded);
  EXPECT_EQ(jobs().Delete({"default", "a"}, 1).code(), absl::StatusCode::kAborted);
  EXPECT_OK(jobs().Delete({"default", "a"}, 0));
  EXPECT_EQ(jobs().Delete({"default", "a"}, 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(jobs().ReadMetrics(job.uid, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fleet().ListAttempts(job.uid).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Append(job, 0, "n1", writer.Train(2)).fenced);
  Submit("a");  // the name is free again
}

}  // namespace
}  // namespace trainyard::testing
