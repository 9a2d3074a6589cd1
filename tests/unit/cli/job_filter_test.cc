#include "clients/cli/job_filter.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace trainyard::cli {
namespace {

TEST(JobFilter, LeavesOutEndedJobsByDefault) {
  EXPECT_EQ(*BuildJobFilter({}, "", false),
            "state != CANCELLED AND state != SUCCEEDED AND state != FAILED");
  EXPECT_EQ(*BuildJobFilter({}, "", true), "");
}

TEST(JobFilter, OneStateIsAskedForByName) {
  EXPECT_EQ(*BuildJobFilter({"running"}, "", false), "state = RUNNING");
}

TEST(JobFilter, SeveralStatesAreWrittenAsWhatTheyExclude) {
  EXPECT_EQ(
      *BuildJobFilter({"RUNNING", "queued"}, "", false),
      "state != STARTING AND state != SUSPENDING AND state != SUSPENDED AND state != CANCELLING "
      "AND state != CANCELLED AND state != SUCCEEDED AND state != FAILED");
}

TEST(JobFilter, AUsersFilterIsAdded) {
  EXPECT_EQ(*BuildJobFilter({"FAILED"}, "priority >= 5", false),
            "state = FAILED AND priority >= 5");
}

TEST(JobFilter, AUsersFilterOverStatesDecidesAlone) {
  EXPECT_EQ(*BuildJobFilter({}, "state = FAILED", false), "state = FAILED");
}

TEST(JobFilter, AUsersFilterThatOnlyContainsTheWordStateLeavesOutEndedJobs) {
  for (const char* filter : {"labels.estate = \"x\"", "labels.team = \"state = FAILED\""}) {
    EXPECT_EQ(
        *BuildJobFilter({}, filter, false),
        absl::StrCat("state != CANCELLED AND state != SUCCEEDED AND state != FAILED AND ", filter));
  }
  EXPECT_EQ(*BuildJobFilter({}, "priority > 1 AND state=FAILED", false),
            "priority > 1 AND state=FAILED");
}

TEST(JobFilter, AWrongStateIsRefusedWithASuggestion) {
  const absl::Status status = BuildJobFilter({"runing"}, "", false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("--state: 'runing' is not a state (did you mean 'RUNNING'?)"));
}

}  // namespace
}  // namespace trainyard::cli
