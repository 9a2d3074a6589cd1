// What admins say of projects, on every store.

#include <gmock/gmock.h>

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

INSTANTIATE_TEST_SUITE_P(Stores, Projects, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
