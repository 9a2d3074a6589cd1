#include "tests/conformance/store_suite.h"

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/status.h"
#include "storage/memory/memory_stores.h"
#include "storage/postgres/postgres.h"

namespace trainyard::testing {
namespace {

class MemoryBackend : public Backend {
 public:
  Stores& stores() override { return stores_; }
  void Pass(absl::Duration duration) override { clock_.Advance(duration); }

 private:
  FakeClock clock_{absl::FromUnixSeconds(1'800'000'000)};
  MemoryStores stores_{clock_};
};

class PostgresBackend : public Backend {
 public:
  PostgresBackend() : database_(NewDatabase()) {
    absl::StatusOr<std::unique_ptr<Stores>> stores =
        postgres::Open(SharedPostgres().Conninfo(database_));
    TY_CHECK(stores.ok(), stores.status().ToString());
    stores_ = *std::move(stores);
  }
  ~PostgresBackend() override {
    stores_.reset();
    SharedPostgres().DropDatabase(database_).IgnoreError();
  }

  Stores& stores() override { return *stores_; }

  // The database's clock cannot be moved: what is compared with it is.
  void Pass(absl::Duration duration) override {
    const std::string by =
        absl::StrCat(" - interval '", absl::ToInt64Microseconds(duration), " microseconds'");
    const auto passed = SharedPostgres().Query(
        database_, absl::StrCat("UPDATE leases SET lease_end = lease_end", by,
                                "; UPDATE leader SET lease_end = lease_end", by,
                                "; UPDATE jobs SET suspend_deadline = suspend_deadline", by,
                                ", not_before = not_before", by,
                                "; UPDATE join_tokens SET expire_time = expire_time", by,
                                "; UPDATE access_tokens SET expire_time = expire_time", by));
    TY_CHECK(passed.ok(), passed.status().ToString());
  }

 private:
  std::string database_;
  std::unique_ptr<Stores> stores_;
};

}  // namespace

PostgresFixture& SharedPostgres() {
  static const std::unique_ptr<PostgresFixture> fixture = [] {
    auto started = PostgresFixture::Start();
    TY_CHECK(started.ok(), started.status().ToString());
    // Made once, copied for each test: migrating takes longer than copying.
    TY_CHECK((*started)->CreateDatabase("migrated").ok(), "create");
    const absl::Status migrated = postgres::Migrate((*started)->Conninfo("migrated"));
    TY_CHECK(migrated.ok(), migrated.ToString());
    return *std::move(started);
  }();
  return *fixture;
}

std::string NewDatabase() {
  static int last = 0;
  const std::string name = absl::StrCat("test", ++last);
  const absl::Status created = SharedPostgres().CreateDatabase(name, "migrated");
  TY_CHECK(created.ok(), created.ToString());
  return name;
}

std::unique_ptr<Backend> MakeBackend(const std::string& kind) {
  if (kind == "memory") return std::make_unique<MemoryBackend>();
  return std::make_unique<PostgresBackend>();
}

EventWriter& EventWriter::Checkpoint(int64_t step, std::vector<std::string> removed) {
  CheckpointWritten written;
  written.checkpoint = {.step = step,
                        .uri = absl::StrCat("file:///checkpoints/step-", step),
                        .bytes = 1000,
                        .manifest_sha256 = absl::StrCat("manifest", step),
                        .weights_sha256 = absl::StrCat("weights", step)};
  written.removed_uris = std::move(removed);
  return Add(std::move(written));
}

JobRecord StoreSuite::NewJob(const std::string& job_id, int slots) {
  JobRecord job;
  job.project = "default";
  job.job_id = job_id;
  job.creator = "user:alice";
  job.spec = std::string("spec\0with any bytes \xff", 21);
  job.plan_summary = "plan";
  job.labels = {{"team", "vision"}, {"quote", "a\"b\\c'd"}};
  job.min_slots = job.max_slots = slots;
  job.max_restarts = 2;
  job.backoff = absl::Seconds(1);
  return job;
}

JobRecord StoreSuite::Submit(const std::string& job_id, int slots) {
  const absl::StatusOr<JobRecord> job = jobs().Submit(NewJob(job_id, slots));
  EXPECT_OK(job.status());
  return job.value_or(JobRecord());
}

JobRecord StoreSuite::Get(const std::string& job_id) {
  const absl::StatusOr<JobRecord> job = jobs().Get({"default", job_id});
  EXPECT_OK(job.status());
  return job.value_or(JobRecord());
}

void StoreSuite::Register(const std::string& node, int slots, const std::string& incarnation) {
  NodeRecord record;
  record.name = node;
  record.incarnation = incarnation;
  record.address = node + ".example";
  record.labels = {{"zone", "a"}};
  for (int i = 0; i < slots; ++i) {
    record.slots.push_back({.index = i, .device = "CPU", .model = "cpu x2", .cpu_threads = 2});
    // A node may have slots of agents that tell it and of others.
    if (i % 2 == 0) record.slots.back().arithmetic = {{"device", "CPU"}, {"loops", "avx2"}};
  }
  EXPECT_OK(fleet().RegisterNode(record, absl::Seconds(10)).status());
}

std::vector<RunningRank> StoreSuite::RegisterAs(const AgentIdentity& agent, int slots,
                                                const std::vector<RunningRank>& running) {
  NodeRecord record;
  record.name = agent.node;
  record.uid = agent.uid;
  record.instance = agent.instance;
  record.incarnation = "i1";
  record.address = agent.node + ".example";
  for (int i = 0; i < slots; ++i) record.slots.push_back({.index = i, .device = "CPU"});
  record.running = running;
  const absl::StatusOr<NodeRecord> registered = fleet().RegisterNode(record, absl::Seconds(10));
  EXPECT_OK(registered.status());
  return registered.ok() ? registered->running : std::vector<RunningRank>();
}

LostNode StoreSuite::Stands(const std::string& node) {
  const absl::StatusOr<std::vector<NodeRecord>> nodes = fleet().ListNodes();
  for (const NodeRecord& one : *nodes) {
    if (one.name == node) return {one.name, one.beat};
  }
  ADD_FAILURE() << "no node " << node;
  return {};
}

int64_t StoreSuite::Lead(const std::string& holder) {
  const absl::StatusOr<LeaderLease> lease =
      scheduler().Lead(holder, absl::Seconds(10), std::nullopt);
  EXPECT_OK(lease.status());
  return lease.ok() ? lease->epoch : 0;
}

int StoreSuite::Place(const JobRecord& job, const std::vector<std::string>& nodes,
                      const std::vector<int>& slots) {
  Placement placement{.job_uid = job.uid, .job_version = job.version};
  placement.reason = {reason::kPlaced, "placed"};
  for (size_t i = 0; i < nodes.size(); ++i) {
    placement.ranks.push_back({nodes[i], {slots.empty() ? 0 : slots[i]}});
  }
  const absl::StatusOr<int> changed = scheduler().Apply(Lead(), {.placements = {placement}});
  EXPECT_OK(changed.status());
  return changed.value_or(-1);
}

JobRecord StoreSuite::Run(const std::string& job_id, const std::vector<std::string>& nodes) {
  EXPECT_EQ(Place(Get(job_id), nodes), 1);
  const JobRecord job = Get(job_id);
  const auto attempts = fleet().ListAttempts(job.uid);
  const int64_t step = attempts.ok() ? attempts->back().restore_step : 0;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    EventWriter& writer = Writer(job, static_cast<int>(rank));
    writer.Add(RankStarted{1, "cpu x2"}).Restored(step);
    EXPECT_FALSE(Append(job, static_cast<int>(rank), nodes[rank], writer).fenced);
  }
  EXPECT_EQ(Get(job_id).state, JobState::kRunning);
  return Get(job_id);
}

AppendResult StoreSuite::Append(const JobRecord& job, int rank, const std::string& node,
                                EventWriter& events) {
  const auto result = fleet().AppendEvents({node, {job.uid, job.attempt, rank}, events.Take()});
  EXPECT_OK(result.status());
  return result.value_or(AppendResult());
}

void StoreSuite::ExpectGaplessFeed(const std::string& uid) {
  const auto feed = jobs().ReadFeed(uid, 0, 100000);
  ASSERT_OK(feed.status());
  for (size_t i = 0; i < feed->size(); ++i) {
    ASSERT_EQ((*feed)[i].sequence, static_cast<int64_t>(i) + 1);
  }
}

std::vector<StateChangeRecord> StoreSuite::StateChanges(const std::string& uid) {
  std::vector<StateChangeRecord> changes;
  const auto feed = jobs().ReadFeed(uid, 0, 100000);
  EXPECT_OK(feed.status());
  for (const FeedRecord& item : feed.value_or(std::vector<FeedRecord>())) {
    if (const auto* change = std::get_if<StateChangeRecord>(&item.what)) changes.push_back(*change);
  }
  return changes;
}

std::string QueryOrDie(const std::string& database, const std::string& sql) {
  const auto answer = SharedPostgres().Query(database, sql);
  EXPECT_OK(answer.status());
  return answer.value_or("");
}

std::unique_ptr<Stores> OpenOrDie(const std::string& conninfo) {
  auto stores = postgres::Open(conninfo);
  EXPECT_OK(stores.status());
  return *std::move(stores);
}

absl::Status RenewLease(FleetStore& fleet, const std::string& node, const std::string& incarnation,
                        absl::Duration lease, const NodeReport& report) {
  return fleet.RenewLeases({{node, incarnation, lease, report}})[0];
}

absl::StatusOr<std::vector<RankId>> ListRanks(FleetStore& fleet, const std::string& node) {
  TY_ASSIGN_OR_RETURN(const NodeRanks read, fleet.ReadRanks(node));
  std::vector<RankId> ids;
  for (const HeldRank& rank : read.ranks) ids.push_back(rank.id);
  return ids;
}

JobRecord Named(const std::string& id) {
  JobRecord job;
  job.project = "default";
  job.job_id = id;
  job.request_id = id;
  return job;
}

}  // namespace trainyard::testing
