// The audit, on every store.

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

using ::testing::ElementsAre;

class Audit : public StoreSuite {
 protected:
  AuditStore& audit() { return backend_->stores().audit(); }

  static AuditEntry Entry(const std::string& chain, int64_t sequence, int seconds,
                          const std::string& principal = "user:ann") {
    return {.chain = chain,
            .sequence = sequence,
            .time = absl::FromUnixSeconds(1'800'000'000 + seconds) + absl::Microseconds(7),
            .principal = principal,
            .source = "10.0.0.7",
            .method = "CancelJob",
            .resource = "projects/default/jobs/a",
            .outcome = "OK",
            .detail = "ü \"quoted\"",
            .count = 3,
            .digest = "d"};
  }

  // "CHAIN/SEQUENCE" of a page.
  std::vector<std::string> Page(const AuditQuery& query, int limit = 10) {
    std::vector<std::string> names;
    const auto page = audit().ListAudit(query, limit);
    EXPECT_OK(page.status());
    for (const AuditEntry& entry : *page) {
      names.push_back(absl::StrCat(entry.chain, "/", entry.sequence));
    }
    return names;
  }
};

TEST_P(Audit, EntriesAreReadAsTheyWereAdded) {
  const AuditEntry entry = Entry("a", 1, 0);
  ASSERT_OK(audit().AppendAudit({entry}));
  const auto read = audit().ListAudit({.by_chain = true}, 10);
  ASSERT_OK(read.status());
  ASSERT_EQ(read->size(), 1u);
  // The digest is over all fields.
  EXPECT_EQ(AuditDigest("", read->front()), AuditDigest("", entry));
  EXPECT_EQ(read->front().digest, "d");
  AuditEntry again = entry;
  again.detail = "another";
  ASSERT_OK(audit().AppendAudit({again, Entry("a", 2, 0)}));
  EXPECT_EQ(audit().ListAudit({.by_chain = true}, 10)->front().detail, entry.detail);
  EXPECT_OK(audit().AppendAudit({}));
}

TEST_P(Audit, IsReadChainByChainOrFromTheNewestOn) {
  ASSERT_OK(audit().AppendAudit({Entry("b", 1, 0), Entry("a", 1, 1), Entry("a", 2, 5, "user:bob"),
                                 Entry("b", 2, 2), Entry("b", 10, 5)}));
  EXPECT_THAT(Page({.by_chain = true}), ElementsAre("a/1", "a/2", "b/1", "b/2", "b/10"));
  EXPECT_THAT(Page({.by_chain = true, .chain = "a", .sequence = 2}, 2), ElementsAre("b/1", "b/2"));
  EXPECT_THAT(Page({}), ElementsAre("b/10", "a/2", "b/2", "a/1", "b/1"));
  EXPECT_THAT(Page({}, 1), ElementsAre("b/10"));
  const AuditEntry last = Entry("b", 10, 5);
  EXPECT_THAT(Page({.chain = last.chain, .sequence = last.sequence, .time = last.time}, 2),
              ElementsAre("a/2", "b/2"));
  EXPECT_THAT(Page({.principal = "user:bob"}), ElementsAre("a/2"));
  EXPECT_THAT(Page({.principal = "user:ann",
                    .chain = last.chain,
                    .sequence = last.sequence,
                    .time = last.time}),
              ElementsAre("b/2", "a/1", "b/1"));
}

TEST(AuditOnPostgres, KeepsWhatItHas) {
  const std::string database = NewDatabase();
  const auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  ASSERT_OK(stores->audit().AppendAudit({{.chain = "a", .sequence = 1}}));
  for (const char* sql :
       {"UPDATE audit SET principal = 'x'", "DELETE FROM audit", "TRUNCATE audit"}) {
    EXPECT_FALSE(SharedPostgres().Query(database, sql).ok()) << sql;
  }
  EXPECT_EQ(stores->audit().ListAudit({.by_chain = true}, 10)->size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Stores, Audit, ::testing::Values("memory", "postgres"));

}  // namespace
}  // namespace trainyard::testing
