// Many submissions at once: each is answered for itself, and as it would be alone.

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/losing_proxy.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::HasSubstr;

class Batches : public StoreSuite {
 protected:
  using Answers = std::vector<absl::StatusOr<JobRecord>>;

  static JobRecord Requested(const std::string& job_id, const std::string& request_id) {
    JobRecord job = NewJob(job_id);
    job.request_id = request_id;
    return job;
  }
  static std::vector<JobRecord> Many(int count) {
    std::vector<JobRecord> jobs;
    for (int i = 0; i < count; ++i) {
      jobs.push_back(Requested(absl::StrCat("job-", i), absl::StrCat("r-", i)));
      jobs.back().priority = i % 7;
    }
    return jobs;
  }
  int64_t Count() {
    const auto page = jobs().List("-", {}, 10000, "");
    EXPECT_OK(page.status());
    return static_cast<int64_t>(page->jobs.size());
  }
  // `answer` is the job that was asked for, and it is stored as a single submission is.
  void ExpectStored(const absl::StatusOr<JobRecord>& answer, const JobRecord& asked) {
    ASSERT_OK(answer.status());
    const JobRecord read = Get(asked.job_id);
    EXPECT_EQ(read.uid, answer->uid);
    EXPECT_EQ(read.create_time, answer->create_time);
    EXPECT_EQ(read.spec, asked.spec);
    EXPECT_EQ(read.labels, asked.labels);
    EXPECT_EQ(read.priority, asked.priority);
    EXPECT_EQ(read.request_id, asked.request_id);
    EXPECT_EQ(read.state, JobState::kQueued);
    EXPECT_EQ(read.version, 1);
    const auto feed = jobs().ReadFeed(read.uid, 0, 10);
    ASSERT_OK(feed.status());
    ASSERT_EQ(feed->size(), 1u);
    EXPECT_EQ(std::get<StateChangeRecord>(feed->front().what).to, JobState::kQueued);
  }
};

TEST_P(Batches, EveryJobIsStoredAsIfItWereSubmittedAlone) {
  const std::vector<JobRecord> asked = Many(600);
  const Answers answers = jobs().SubmitMany(asked);
  ASSERT_EQ(answers.size(), asked.size());
  for (size_t i = 0; i < asked.size(); i += 37) ExpectStored(answers[i], asked[i]);
  std::set<std::string> uids;
  for (const auto& answer : answers) {
    ASSERT_OK(answer.status());
    uids.insert(answer->uid);
  }
  EXPECT_EQ(uids.size(), asked.size());
  EXPECT_EQ(Count(), 600);
  EXPECT_TRUE(jobs().SubmitMany({}).empty());
}

TEST_P(Batches, JobsAreAsOldAsTheirPlaceSays) {
  const Answers answers = jobs().SubmitMany(Many(50));
  for (size_t i = 1; i < answers.size(); ++i) {
    EXPECT_LT(answers[i - 1]->create_time, answers[i]->create_time) << i;
  }
  EXPECT_EQ(jobs().List("default", {}, 1, "")->jobs.front().job_id, "job-49");
}

TEST_P(Batches, AReplayIsAnsweredWithTheSameJobs) {
  const std::vector<JobRecord> asked = Many(20);
  const Answers first = jobs().SubmitMany(asked);
  const Answers again = jobs().SubmitMany(asked);
  ASSERT_EQ(again.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_OK(again[i].status());
    EXPECT_EQ(again[i]->uid, first[i]->uid);
    EXPECT_EQ(again[i]->create_time, first[i]->create_time);
  }
  // One by one, too, and what was submitted alone is found by a batch.
  EXPECT_EQ(jobs().Submit(asked[7])->uid, first[7]->uid);
  JobRecord alone = Requested("alone", "r-alone");
  const auto made = jobs().Submit(alone);
  const Answers both = jobs().SubmitMany({alone, Requested("new", "r-new")});
  EXPECT_EQ(both[0]->uid, made->uid);
  EXPECT_OK(both[1].status());
  EXPECT_EQ(Count(), 22);
}

TEST_P(Batches, OneThatIsRefusedFailsNoOther) {
  Submit("taken");
  std::vector<JobRecord> asked = Many(8);
  asked[2].job_id = "taken";
  asked[4].labels["team"] = std::string("a\0b", 3);
  asked[5].min_slots = 0;
  const Answers answers = jobs().SubmitMany(asked);
  ASSERT_EQ(answers.size(), asked.size());
  // With the words that it would get alone.
  for (const size_t refused : {2, 4, 5}) {
    EXPECT_EQ(answers[refused].status(), jobs().Submit(asked[refused]).status());
  }
  EXPECT_EQ(answers[2].status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(answers[4].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(answers[5].status().code(), absl::StatusCode::kInvalidArgument);
  for (const size_t stored : {0, 1, 3, 6, 7}) ExpectStored(answers[stored], asked[stored]);
  EXPECT_EQ(Count(), 6);
}

TEST_P(Batches, DuplicatesWithinABatchAreAnsweredByTheFirst) {
  JobRecord job = Requested("a", "r1");
  JobRecord differs = job;
  differs.priority += 1;
  JobRecord unnamed = job;
  unnamed.job_id.clear();
  JobRecord same_uid = Requested("x", "");
  same_uid.uid = "0123456789abcdef";
  JobRecord other_uid = Requested("y", "");
  other_uid.uid = same_uid.uid;
  const Answers answers =
      jobs().SubmitMany({job, job, differs, Requested("a", "r2"), unnamed, Requested("b", "r1"),
                         Requested("a", ""), same_uid, same_uid, other_uid});
  ASSERT_EQ(answers.size(), 10u);
  ASSERT_OK(answers[0].status());
  for (const size_t replay : {1, 4}) {
    ASSERT_OK(answers[replay].status());
    EXPECT_EQ(answers[replay]->uid, answers[0]->uid);
  }
  for (const size_t refused : {2, 3, 5, 6, 9}) {
    EXPECT_EQ(answers[refused].status().code(), absl::StatusCode::kAlreadyExists) << refused;
  }
  EXPECT_THAT(std::string(answers[2].status().message()), HasSubstr("request id 'r1' was used"));
  EXPECT_THAT(std::string(answers[3].status().message()), HasSubstr("exists already"));
  ASSERT_OK(answers[7].status());
  ASSERT_OK(answers[8].status());
  EXPECT_EQ(answers[8]->uid, same_uid.uid);
  EXPECT_EQ(Count(), 2);
  EXPECT_EQ(Get("a").priority, job.priority);
}

TEST_P(Batches, BatchesAndSingleSubmissionsAtOnceMakeEachJobOnce) {
  const std::vector<JobRecord> asked = Many(300);
  std::vector<Answers> seen(6);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < seen.size(); ++t) {
    threads.emplace_back([&, t] {
      if (t % 2 == 0) {
        seen[t] = jobs().SubmitMany(asked);
      } else {
        for (const JobRecord& job : asked) seen[t].push_back(jobs().Submit(job));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < asked.size(); ++i) {
    for (const Answers& answers : seen) {
      ASSERT_OK(answers[i].status());
      EXPECT_EQ(answers[i]->uid, seen[0][i]->uid);
    }
  }
  EXPECT_EQ(Count(), 300);
}

INSTANTIATE_TEST_SUITE_P(Stores, Batches, ::testing::Values("memory", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace trainyard::testing
