// What admins say of projects, on every store.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/scheduler_fold.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

class Projects : public StoreSuite {
 protected:
  ProjectStore& projects() { return backend_->stores().projects(); }
};

TEST_P(Projects, AreWhatWasSaidOfThemLast) {
  EXPECT_EQ(projects().FindProject("vision").status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK(projects().SetProject({.name = "vision", .unix_user = "ann"}).status());
  const auto changed = projects().SetProject({.name = "vision", .unix_user = "vision-jobs"});
  ASSERT_OK(changed.status());
  const auto found = projects().FindProject("vision");
  ASSERT_OK(found.status());
  EXPECT_EQ(found->unix_user, "vision-jobs");
  EXPECT_EQ(found->update_time, changed->update_time);
}

TEST_P(Projects, AreListedByNameAPageAtATime) {
  for (const char* name : {"c", "a", "B"}) {
    ASSERT_OK(projects().SetProject({.name = name}).status());
  }
  const auto page = projects().ListProjects("", 2);
  ASSERT_OK(page.status());
  ASSERT_EQ(page->size(), 2u);
  EXPECT_EQ((*page)[0].name, "B");
  EXPECT_EQ((*page)[1].name, "a");
  const auto rest = projects().ListProjects("a", 2);
  ASSERT_OK(rest.status());
  ASSERT_EQ(rest->size(), 1u);
  EXPECT_EQ((*rest)[0].name, "c");
}

TEST_P(Projects, RanksAreToRunAsTheUserOfTheirProject) {
  Register("n1");
  Submit("j1");
  const JobRecord job = Run("j1", {"n1"});
  const auto unix_user = [&] {
    const auto desired = fleet().ReadDesired("n1");
    EXPECT_OK(desired.status());
    return desired->size() == 1 ? desired->front().unix_user : "no rank";
  };
  EXPECT_EQ(unix_user(), "");
  ASSERT_OK(projects().SetProject({.name = "other", .unix_user = "bob"}).status());
  EXPECT_EQ(unix_user(), "");
  ASSERT_OK(projects().SetProject({.name = job.project, .unix_user = "ann"}).status());
  EXPECT_EQ(unix_user(), "ann");
}

TEST_P(Projects, HaveUsersThatNodesMightKnow) {
  for (const char* good : {"ann", "_apt", "ann.b-c", "ann@example.org", "User1"}) {
    EXPECT_OK(CheckUnixUser(good));
  }
  for (const char* bad : {"", "root", "0", "1000", "-x", "a b", "a/b", "a:b"}) {
    EXPECT_EQ(CheckUnixUser(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_P(Projects, WhatIsNotSaidStays) {
  ASSERT_OK(projects().SetProject({.name = "p", .unix_user = "ann", .max_slots = 4}).status());
  ASSERT_OK(projects().SetProject({.name = "p", .max_jobs = 7}).status());
  auto project = projects().FindProject("p");
  ASSERT_OK(project.status());
  EXPECT_EQ(project->unix_user, "ann");
  EXPECT_EQ(project->max_slots, 4);
  EXPECT_EQ(project->max_jobs, 7);
  ASSERT_OK(projects().SetProject({.name = "p", .max_slots = kNoLimit, .max_jobs = 0}).status());
  project = projects().FindProject("p");
  EXPECT_EQ(project->max_slots, std::nullopt);
  EXPECT_EQ(project->max_jobs, 0);
}

TEST_P(Projects, TheLeaderHearsOfTheirSlots) {
  ASSERT_OK(projects().SetProject({.name = "a", .max_slots = 4}).status());
  ASSERT_OK(projects().SetProject({.name = "unlimited", .unix_user = "ann"}).status());
  SchedulerFold fold;
  const auto read = [&] {
    auto changes = scheduler().ReadChanges(fold.position(), false);
    EXPECT_OK(changes.status());
    fold.Fold(*std::move(changes));
    return *fold.slot_limits();
  };
  EXPECT_EQ(read(), (SlotLimits{{"a", 4}}));
  ASSERT_OK(projects().SetProject({.name = "a", .max_slots = 5}).status());
  ASSERT_OK(projects().SetProject({.name = "b", .max_slots = 0}).status());
  EXPECT_EQ(read(), (SlotLimits{{"a", 5}, {"b", 0}}));
  EXPECT_EQ(scheduler().ReadSnapshot()->slot_limits, (SlotLimits{{"a", 5}, {"b", 0}}));
  ASSERT_OK(projects().SetProject({.name = "a", .max_slots = kNoLimit}).status());
  EXPECT_EQ(read(), (SlotLimits{{"b", 0}}));
}

TEST_P(Projects, HaveNoMoreJobsThanTheyMay) {
  ASSERT_OK(projects().SetProject({.name = "default", .max_jobs = 2}).status());
  const JobRecord first = Named("first"), second = Named("second"), third = Named("third");
  JobRecord elsewhere = Named("elsewhere");
  elsewhere.project = "other";
  const auto answers = jobs().SubmitMany({first, second, third, elsewhere});
  EXPECT_OK(answers[0].status());
  EXPECT_OK(answers[1].status());
  EXPECT_EQ(answers[2].status(), TooManyJobs("default", 2));
  EXPECT_OK(answers[3].status());
  EXPECT_OK(jobs().Submit(second).status()) << "it was there before";
  EXPECT_EQ(jobs().Submit(third).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_OK(jobs().Cancel({"default", "first"}, 0, kUser).status());
  EXPECT_OK(jobs().Submit(third).status());
  EXPECT_EQ(jobs().Submit(Named("fourth")).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_OK(projects().SetProject({.name = "default", .max_jobs = kNoLimit}).status());
  EXPECT_OK(jobs().Submit(Named("fourth")).status());
}

TEST_P(Projects, WhatIsSentTwiceTakesOneRoom) {
  ASSERT_OK(projects().SetProject({.name = "default", .max_jobs = 2}).status());
  const JobRecord a = Named("a"), b = Named("b"), c = Named("c");
  const auto answers = jobs().SubmitMany({a, a, b, c});
  for (int i = 0; i < 3; ++i) EXPECT_OK(answers[i].status()) << i;
  EXPECT_EQ(answers[0]->uid, answers[1]->uid);
  EXPECT_EQ(answers[3].status(), TooManyJobs("default", 2));
}

// Whoever submits at the same time, on any server.
TEST_P(Projects, HaveNoMoreJobsThanTheyMayWhoeverIsFirst) {
  ASSERT_OK(projects().SetProject({.name = "default", .max_jobs = 10}).status());
  std::atomic<int> taken = 0;
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&, user] {
      for (int i = 0; i < 10; ++i) {
        taken += jobs().Submit(Named(absl::StrCat("j", user, "-", i))).ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(taken, 10);
}

INSTANTIATE_TEST_SUITE_P(Stores, Projects, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
