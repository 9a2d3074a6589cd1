// What gets into the audit, and what is found when somebody tampers with it.

#include "server/audit/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "server/audit/refusal_sums.h"
#include "storage/base/file.h"
#include "storage/memory/memory_stores.h"
#include "tests/unit/server/rig.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<AuditEntry> AllOfThem(AuditStore& store) {
  return store.ListAudit({.by_chain = true}, 100'000).value();
}

std::vector<std::string> FindingsIn(const std::vector<AuditEntry>& entries,
                                    const std::vector<AuditHead>& heads = {}) {
  AuditVerifier verifier(heads);
  for (const AuditEntry& entry : entries) verifier.Take(entry);
  return verifier.Finish();
}

TEST(RefusalSumsTest, TellsTheFirstOfEachSourceAndSumsUpTheRest) {
  RefusalSums sums(absl::Seconds(10));
  const AuditEntry one{.source = "a", .method = "GetJob", .outcome = "UNAUTHENTICATED"};
  const AuditEntry other{.source = "b", .method = "GetJob", .outcome = "UNAUTHENTICATED"};
  EXPECT_TRUE(sums.Take(one, absl::ZeroDuration()).has_value());
  EXPECT_TRUE(sums.Take(other, absl::ZeroDuration()).has_value());
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(sums.Take(one, absl::Seconds(1)).has_value());
  EXPECT_THAT(sums.Due(absl::Seconds(9)), IsEmpty());
  const std::vector<AuditEntry> due = sums.Due(absl::Seconds(10));
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0].source, "a");
  EXPECT_EQ(due[0].count, 1000);
  // Whoever goes on is summed up for another window; whoever does not is as new.
  EXPECT_FALSE(sums.Take(one, absl::Seconds(11)).has_value());
  EXPECT_TRUE(sums.Take(other, absl::Seconds(11)).has_value());
  EXPECT_THAT(sums.Due(absl::Seconds(12), /*all=*/true), SizeIs(1));
}

TEST(RefusalSumsTest, OfVeryManySourcesTheRestIsOne) {
  RefusalSums sums(absl::Seconds(10), 4);
  int told = 0;
  for (int i = 0; i < 10'000; ++i) {
    const AuditEntry one{.source = absl::StrCat(i), .outcome = "UNAUTHENTICATED"};
    told += sums.Take(one, absl::ZeroDuration()).has_value() ? 1 : 0;
  }
  EXPECT_EQ(told, 5);
  const std::vector<AuditEntry> due = sums.Due(absl::Seconds(10));
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0].source, "others");
  EXPECT_EQ(due[0].count, 9'995);
}

TEST(SourceTest, IsTheAddressWithoutItsPort) {
  EXPECT_EQ(SourceOf("ipv4:10.0.0.7:51234"), "10.0.0.7");
  EXPECT_EQ(SourceOf("ipv6:%5B2001:db8::1%5D:51234"), "2001:db8::1");
  EXPECT_EQ(SourceOf("ipv6:[::1]:51234"), "::1");
  EXPECT_EQ(SourceOf("unix:/run/yard"), "unix:/run/yard");
}

class AuditTest : public ::testing::Test {
 protected:
  AuditTest() {
    spdlog::set_level(spdlog::level::off);
    char folder[] = "/tmp/trainyard-audit-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~AuditTest() override { std::filesystem::remove_all(folder_); }

  void Write(int calls) {
    AuditLog log(stores_.audit(), SystemClock(),
                 {.replica = "r", .heads_file = folder_ + "/heads"});
    for (int i = 0; i < calls; ++i) {
      log.Record({.principal = "user:ann", .method = "CancelJob", .resource = absl::StrCat(i)},
                 absl::OkStatus(), true);
    }
  }

  std::vector<AuditHead> Heads() {
    std::vector<AuditHead> heads;
    const std::string text = ReadFile(folder_ + "/heads", 1 << 20).value_or("");
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const auto head = ParseAuditHeadLine(std::string(line));
      EXPECT_TRUE(head.has_value()) << line;
      heads.push_back(*head);
    }
    return heads;
  }

  MemoryStores stores_{SystemClock()};
  std::string folder_;
};

TEST_F(AuditTest, ChainsAreWholeAndEndWithTheirHeads) {
  Write(600);
  Write(3);
  const std::vector<AuditEntry> entries = AllOfThem(stores_.audit());
  EXPECT_EQ(entries.size(), 607u) << "and that the servers started and stopped";
  EXPECT_THAT(FindingsIn(entries, Heads()), IsEmpty());
  EXPECT_EQ(Heads().back().sequence, 5);
}

TEST_F(AuditTest, EveryTamperingIsFoundWithItsPlace) {
  Write(20);
  const std::vector<AuditEntry> good = AllOfThem(stores_.audit());
  const std::vector<AuditHead> heads = Heads();
  std::vector<AuditEntry> bad = good;
  bad[7].principal = "user:bob";
  EXPECT_THAT(FindingsIn(bad), ElementsAre(AllOf(HasSubstr("entry 8 "), HasSubstr("was changed"))));
  bad = good;
  bad.erase(bad.begin() + 7);
  EXPECT_THAT(FindingsIn(bad), ElementsAre(AllOf(HasSubstr("entry 9 "), HasSubstr("removed"))));
  bad = good;
  bad.insert(bad.begin() + 7, bad[7]);
  EXPECT_THAT(FindingsIn(bad), SizeIs(1));
  bad = good;
  bad.resize(15);
  EXPECT_THAT(FindingsIn(bad), IsEmpty()) << "only who kept the head can tell";
  EXPECT_THAT(FindingsIn(bad, heads),
              ElementsAre(AllOf(HasSubstr("ends with entry 15"), HasSubstr("cut off"))));
  EXPECT_THAT(FindingsIn({}, heads), SizeIs(1));
  // Written anew from the eighth entry on, with digests that fit.
  bad = good;
  bad[7].principal = "user:bob";
  for (size_t i = 7; i < bad.size(); ++i) bad[i].digest = AuditDigest(bad[i - 1].digest, bad[i]);
  EXPECT_THAT(FindingsIn(bad), IsEmpty());
  EXPECT_THAT(FindingsIn(bad, heads), ElementsAre(HasSubstr("written anew")));
  // Fields cannot be shifted into one another.
  AuditEntry left{.principal = "ab", .source = "c"}, right{.principal = "a", .source = "bc"};
  EXPECT_NE(AuditDigest("", left), AuditDigest("", right));
}

TEST_F(AuditTest, WhatAStoreThatIsAwayDoesNotTakeIsWrittenLaterAndOnce) {
  {
    AuditLog log(stores_.audit(), SystemClock(), {.replica = "r", .most_pending = 100});
    stores_.SetAway(true);
    for (int i = 0; i < 1000; ++i) {
      log.Record({.principal = "user:ann", .method = "CancelJob"}, absl::OkStatus(), true);
    }
    stores_.SetAway(false);
    log.Record({.principal = "user:ann", .method = "PauseJob"}, absl::OkStatus(), true);
  }
  const std::vector<AuditEntry> entries = AllOfThem(stores_.audit());
  EXPECT_THAT(FindingsIn(entries), IsEmpty());
  int64_t told = 0;
  for (const AuditEntry& entry : entries) {
    told += entry.method == "CancelJob" || entry.method == "EntriesLost" ? entry.count : 0;
  }
  EXPECT_GE(told, 1000) << "what is lost for want of room is counted";
  EXPECT_LE(told, 1003) << "with what else was lost";
}

TEST_F(AuditTest, OnAServerChangesAndRefusalsAreInItAndReadsAreNot) {
  Rig rig;
  const auto get = [&](const std::string& token) {
    v1::GetJobRequest request;
    request.set_name("projects/default/jobs/a");
    v1::Job job;
    return rig.jobs().GetJob(Rig::Context(token).get(), request, &job).error_code();
  };
  ScriptedAgent node(rig);
  node.Register("n", 1);
  node.Welcomed();
  rig.Submit(SmallJob("a"));
  EXPECT_EQ(get(kAdminToken), grpc::StatusCode::OK);
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(get("nobody-0123456789abcdef"), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(get(kAgentToken), grpc::StatusCode::PERMISSION_DENIED);
  v1::CancelJobRequest cancel;
  cancel.set_name("projects/default/jobs/nothing");
  v1::Job job;
  EXPECT_EQ(rig.jobs().CancelJob(Rig::Context().get(), cancel, &job).error_code(),
            grpc::StatusCode::NOT_FOUND);
  cancel.set_name("projects/default/jobs/a");
  EXPECT_TRUE(rig.jobs().CancelJob(Rig::Context().get(), cancel, &job).ok());
  rig.Restart();  // which writes what was pending
  v1::ListAuditEntriesRequest request;
  request.set_by_chain(true);
  request.set_page_size(2);
  v1::ListAuditEntriesResponse page;
  std::vector<std::string> seen;
  int64_t refused = 0;
  do {
    ASSERT_TRUE(rig.access().ListAuditEntries(Rig::Context().get(), request, &page).ok());
    for (const v1::AuditEntry& entry : page.entries()) {
      if (entry.outcome() == "UNAUTHENTICATED") refused += entry.count();
      const bool of_server = absl::StartsWith(entry.method(), "Server");
      if (of_server || entry.outcome() == "UNAUTHENTICATED") continue;
      EXPECT_EQ(entry.source(), "127.0.0.1");
      EXPECT_TRUE(absl::StartsWith(entry.credential(), "tokens/")) << entry.ShortDebugString();
      seen.push_back(absl::StrCat(entry.principal(), " ", entry.method(), " ", entry.resource(),
                                  " ", entry.outcome()));
    }
    request.set_page_token(page.next_page_token());
  } while (!page.next_page_token().empty());
  EXPECT_EQ(refused, 500);
  EXPECT_THAT(seen, ElementsAre("user:ann SubmitJob projects/default/jobs/a OK",
                                "agent:n GetJob projects/default/jobs/a PERMISSION_DENIED",
                                "user:ann CancelJob projects/default/jobs/a OK"));
  EXPECT_THAT(AllOfThem(rig.stores().audit()).size(), ::testing::Lt(12u)) << "a flood is summed up";
  EXPECT_THAT(FindingsIn(AllOfThem(rig.stores().audit())), IsEmpty());
}

}  // namespace
}  // namespace trainyard
