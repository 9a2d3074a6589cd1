#include "executor/agent/reconcile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace trainyard {

void PrintTo(const Action& action, std::ostream* out) { *out << action.kind << " " << action.name; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::Assignment Wanted(const std::string& uid, std::vector<int> slots,
                      v1::Assignment::Wish wish = v1::Assignment::RUN) {
  v1::Assignment assignment;
  assignment.mutable_key()->set_job_uid(uid);
  assignment.mutable_key()->set_attempt(1);
  assignment.mutable_slots()->Add(slots.begin(), slots.end());
  assignment.set_wish(wish);
  return assignment;
}

v1::DesiredSet Set(const std::vector<v1::Assignment>& assignments) {
  v1::DesiredSet set;
  set.mutable_assignments()->Add(assignments.begin(), assignments.end());
  return set;
}

PresentRank Alive(const std::string& uid, std::vector<int> slots) {
  return {.name = uid + ".1.0", .phase = PresentRank::kAlive, .slots = slots, .listens = true};
}
PresentRank Stopping(const std::string& uid, std::vector<int> slots) {
  return {.name = uid + ".1.0", .phase = PresentRank::kStopping, .slots = slots};
}
PresentRank Gone(const std::string& uid, std::vector<int> slots) {
  return {.name = uid + ".1.0", .phase = PresentRank::kGone, .slots = slots};
}

constexpr auto kSuspendWish = v1::Assignment::SUSPEND;

TEST(ReconcileTest, NothingWantedAndNothingPresentIsNothingToDo) {
  EXPECT_THAT(Reconcile(Set({}), {}, true), IsEmpty());
}

TEST(ReconcileTest, WhatIsMissingIsStarted) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}), Wanted("b", {1})}), {}, true),
              ElementsAre(Action{Action::kStart, "a.1.0"}, Action{Action::kStart, "b.1.0"}));
}

TEST(ReconcileTest, WithoutALeaseNothingIsStarted) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0})}), {}, false), IsEmpty());
}

TEST(ReconcileTest, WhatRunsAsWantedIsLeftAlone) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0})}), {Alive("a", {0})}, true), IsEmpty());
}

TEST(ReconcileTest, WhatIsNotWantedIsKilledAlsoWithoutALease) {
  EXPECT_THAT(Reconcile(Set({}), {Alive("a", {0})}, false),
              ElementsAre(Action{Action::kKill, "a.1.0"}));
}

TEST(ReconcileTest, WhatRunsUnderAnotherClaimGoesFirst) {
  v1::Assignment wanted = Wanted("a", {0});
  wanted.mutable_key()->set_claim("new");
  const auto under = [](PresentRank rank, const std::string& claim) {
    rank.claim = claim;
    return rank;
  };
  EXPECT_THAT(Reconcile(Set({wanted}), {under(Alive("a", {0}), "old")}, true),
              ElementsAre(Action{Action::kKill, "a.1.0"}));
  EXPECT_THAT(Reconcile(Set({wanted}), {under(Stopping("a", {0}), "old")}, true), IsEmpty());
  EXPECT_THAT(Reconcile(Set({wanted}), {under(Gone("a", {0}), "old")}, true),
              ElementsAre(Action{Action::kForget, "a.1.0"}));
  EXPECT_THAT(Reconcile(Set({wanted}), {}, true), ElementsAre(Action{Action::kStart, "a.1.0"}));
  EXPECT_THAT(Reconcile(Set({wanted}), {under(Alive("a", {0}), "new")}, true), IsEmpty());
  EXPECT_THAT(Reconcile(Set({wanted}), {under(Alive("a", {0}), "")}, true), IsEmpty())
      << "an agent of before started it";
}

TEST(ReconcileTest, NewerAttemptWaitsUntilTheOlderOneIsGone) {
  v1::Assignment second = Wanted("a", {0});
  second.mutable_key()->set_attempt(2);
  EXPECT_THAT(Reconcile(Set({second}), {Alive("a", {0})}, true),
              ElementsAre(Action{Action::kKill, "a.1.0"}));
  EXPECT_THAT(Reconcile(Set({second}), {Stopping("a", {0})}, true), IsEmpty());
  EXPECT_THAT(Reconcile(Set({second}), {Gone("a", {0})}, true),
              ElementsAre(Action{Action::kStart, "a.2.0"}));
}

TEST(ReconcileTest, SlotsOfOthersDoNotHoldAStartBack) {
  EXPECT_THAT(Reconcile(Set({Wanted("b", {1})}), {Stopping("a", {0})}, true),
              ElementsAre(Action{Action::kStart, "b.1.0"}));
}

TEST(ReconcileTest, TwoRanksForOneSlotAreNotBothStarted) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}), Wanted("b", {0, 1}), Wanted("c", {1})}), {}, true),
              ElementsAre(Action{Action::kStart, "a.1.0"}, Action{Action::kStart, "c.1.0"}));
}

TEST(ReconcileTest, RankThatEndedIsNeverStartedAgain) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0})}), {Gone("a", {0})}, true), IsEmpty());
}

TEST(ReconcileTest, RankListedTwiceIsStartedOnce) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}), Wanted("a", {1})}), {}, true),
              ElementsAre(Action{Action::kStart, "a.1.0"}));
}

TEST(ReconcileTest, SuspendIsAskedForOnce) {
  PresentRank rank = Alive("a", {0});
  const v1::DesiredSet desired = Set({Wanted("a", {0}, kSuspendWish)});
  EXPECT_THAT(Reconcile(desired, {rank}, true), ElementsAre(Action{Action::kSuspend, "a.1.0"}));
  rank.suspend_sent = true;
  EXPECT_THAT(Reconcile(desired, {rank}, true), IsEmpty());
}

TEST(ReconcileTest, WorkerThatDoesNotListenYetIsNotAskedToSuspend) {
  PresentRank rank = Alive("a", {0});
  rank.listens = false;
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}, kSuspendWish)}), {rank}, true), IsEmpty());
}

TEST(ReconcileTest, SuspendThatTakesTooLongIsAKill) {
  PresentRank rank = Alive("a", {0});
  rank.suspend_sent = rank.grace_over = true;
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}, kSuspendWish)}), {rank}, true),
              ElementsAre(Action{Action::kKill, "a.1.0"}));
}

TEST(ReconcileTest, SuspendBeforeTheStartIsDeclined) {
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0}, kSuspendWish)}), {}, true),
              ElementsAre(Action{Action::kDecline, "a.1.0"}));
}

TEST(ReconcileTest, GoneRankIsRetiredOnceDeliveredAndNotWanted) {
  PresentRank rank = Gone("a", {0});
  EXPECT_THAT(Reconcile(Set({}), {rank}, true), IsEmpty());
  rank.delivered = true;
  EXPECT_THAT(Reconcile(Set({Wanted("a", {0})}), {rank}, true), IsEmpty());
  EXPECT_THAT(Reconcile(Set({}), {rank}, true), ElementsAre(Action{Action::kRetire, "a.1.0"}));
  rank.retired = true;
  EXPECT_THAT(Reconcile(Set({}), {rank}, true), IsEmpty());
}

}  // namespace
}  // namespace trainyard
