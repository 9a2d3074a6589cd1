// Migrations, and what the tables themselves refuse.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/store_suite.h"

namespace trainyard::testing {
namespace {

TEST(Migrations, MayBeAppliedByManyAtOnceAndAgain) {
  ASSERT_OK(SharedPostgres().CreateDatabase("fresh"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] { EXPECT_OK(postgres::Migrate(SharedPostgres().Conninfo("fresh"))); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(QueryOrDie("fresh", "SELECT count(*) FROM schema_migrations"),
            absl::StrCat(postgres::SchemaVersion()));
  EXPECT_OK(postgres::Migrate(SharedPostgres().Conninfo("fresh")));
}

TEST(Migrations, NewerDatabaseIsRefused) {
  const std::string database = NewDatabase();
  QueryOrDie(database, "INSERT INTO schema_migrations VALUES (9999, '9999_future', 'x')");
  const absl::Status status = postgres::Migrate(SharedPostgres().Conninfo(database));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("9999_future"), absl::string_view::npos);
}

// A migration that only adds says with which programs of before the database goes on working.
TEST(Migrations, NewerDatabaseThatWorksWithThisProgramIsTaken) {
  const std::string database = NewDatabase();
  QueryOrDie(database,
             absl::StrCat("INSERT INTO schema_migrations VALUES (9999, '9999_future', 'x', now(), ",
                          postgres::SchemaVersion(), ")"));
  EXPECT_OK(postgres::Migrate(SharedPostgres().Conninfo(database)));
  QueryOrDie(
      database,
      absl::StrCat("INSERT INTO schema_migrations VALUES (10000, '10000_later', 'x', now(), ",
                   postgres::SchemaVersion() + 1, ")"));
  EXPECT_EQ(postgres::Migrate(SharedPostgres().Conninfo(database)).code(),
            absl::StatusCode::kFailedPrecondition);
}

// While servers are replaced, those that know all but the newest migrations may be restarted.
TEST(Migrations, ProgramsThatKnowWhatAMigrationAsksForAreThoseBeforeIt) {
  EXPECT_EQ(
      QueryOrDie(NewDatabase(),
                 "SELECT count(*) FROM (SELECT works_with, row_number() OVER (ORDER BY version) "
                 "- 1 AS before, version FROM schema_migrations) AS m "
                 "WHERE version >= 20 AND works_with > before"),
      "0");
}

TEST(Migrations, ChangedMigrationIsRefused) {
  const std::string database = NewDatabase();
  QueryOrDie(database, "UPDATE schema_migrations SET sha256 = 'x' WHERE version = 2");
  EXPECT_EQ(postgres::Migrate(SharedPostgres().Conninfo(database)).code(),
            absl::StatusCode::kFailedPrecondition);
}

// Whoever wants the same lock would wait behind a migration that waits for it without a bound.
TEST(Migrations, WaitBrieflyForALockAndSucceedOnceItIsFree) {
  ASSERT_OK(SharedPostgres().CreateDatabase("contended"));
  // Until this transaction ends nobody knows whether the table's name is taken.
  std::thread holder([] {
    SharedPostgres()
        .Query("contended", "BEGIN; CREATE TABLE jobs (); SELECT pg_sleep(60)")
        .IgnoreError();
  });
  while (QueryOrDie("postgres",
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = 'contended' AND "
                    "wait_event = 'PgSleep'") != "1") {
  }
  const absl::Time begin = absl::Now();
  const absl::Status status = postgres::Migrate(SharedPostgres().Conninfo("contended"));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  QueryOrDie("postgres",
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = "
             "'contended' AND wait_event = 'PgSleep'");
  holder.join();
  EXPECT_OK(postgres::Migrate(SharedPostgres().Conninfo("contended")));
  EXPECT_OK(SharedPostgres().DropDatabase("contended"));
}

// As servers write it that do not know migration 0022.
std::string SubmissionOfBefore(const std::string& id) {
  return absl::StrCat(
      "INSERT INTO job_specs (job_uid, project, job_id, create_time, spec, plan_summary) VALUES ('",
      id, "', 'default', '", id,
      "', now(), '', ''); INSERT INTO jobs (uid, project, job_id, creator, "
      "labels, priority, min_slots, max_slots, device, bytes_per_slot, total_steps, max_restarts, "
      "backoff_us, create_time, update_time, state, reason_code, reason_message, suspend_cause, "
      "version, attempt, restarts, step, newest_checkpoint_uri, feed_sequence) VALUES ('",
      id, "', 'default', '", id,
      "', '', '{}', 0, 1, 1, '', 0, 0, 0, 0, now(), now(), 'QUEUED', "
      "'SUBMITTED', '', 'NONE', 1, 0, 0, 0, '', 1)");
}

TEST(Migrations, JobsOfServersBeforeHaveNoResizeAndMayBeGivenARange) {
  ASSERT_OK(SharedPostgres().CreateDatabase("before"));
  const std::string conninfo = SharedPostgres().Conninfo("before");
  ASSERT_OK(postgres::Migrate(conninfo, 21));
  QueryOrDie("before", SubmissionOfBefore("a"));
  ASSERT_OK(postgres::Migrate(conninfo));
  QueryOrDie("before", SubmissionOfBefore("b"));  // one that goes on beside those of today
  {
    const std::unique_ptr<Stores> stores = OpenOrDie(conninfo);
    for (const char* id : {"a", "b"}) {
      const absl::StatusOr<JobRecord> job = stores->jobs().Get({"default", id});
      ASSERT_TRUE(job.ok()) << job.status();
      EXPECT_EQ(job->logical_ranks, 0);
      EXPECT_EQ(job->arithmetic_rule, ArithmeticRule::kUnknown);
      EXPECT_EQ(job->arithmetic, "");
      EXPECT_EQ(job->group_ranks, 1);
      EXPECT_EQ(job->slot_step, 1);
      EXPECT_FALSE(job->second_owner);
      EXPECT_EQ(job->layout, "");
      EXPECT_EQ(job->max_slots, 1);
      EXPECT_FALSE(job->resize.has_value());
      EXPECT_OK(stores->jobs().SetSlotRange({"default", id}, 0, {1, 3, 5}, "x").status());
      EXPECT_EQ(stores->jobs().Get({"default", id})->max_slots, 3);
    }
  }
  EXPECT_OK(SharedPostgres().DropDatabase("before"));
}

// They would give it numbers of slots between the steps.
TEST(Migrations, ServersBeforeSeeTheLeastSlotsOfAJobThatTakesThemInSteps) {
  ASSERT_OK(SharedPostgres().CreateDatabase("steps"));
  ASSERT_OK(postgres::Migrate(SharedPostgres().Conninfo("steps")));
  {
    const std::unique_ptr<Stores> stores = OpenOrDie(SharedPostgres().Conninfo("steps"));
    const auto both = [&] {
      const absl::StatusOr<JobRecord> job = stores->jobs().Get({"default", "a"});
      EXPECT_EQ(job->slot_step, 2);
      return absl::StrCat(QueryOrDie("steps", "SELECT min_slots || ' ' || max_slots FROM jobs"),
                          ", ", job->min_slots, " ", job->max_slots);
    };
    JobRecord job = Named("a");
    job.slot_step = job.min_slots = 2;
    job.max_slots = 6;
    ASSERT_OK(stores->jobs().Submit(job).status());
    EXPECT_EQ(both(), "2 2, 2 6");
    ASSERT_OK(stores->jobs().SetSlotRange({"default", "a"}, 0, {4, 8, 5, 2}, "x").status());
    EXPECT_EQ(both(), "4 4, 4 8");
    ASSERT_OK(stores->jobs().SetSlotRange({"default", "a"}, 0, {2, 4, 5, 2}, "x").status());
    EXPECT_EQ(both(), "2 2, 2 4");
    // One of a server of before, which knows no steps, gets them with its first range.
    QueryOrDie("steps",
               "UPDATE jobs SET min_slots = 2, max_slots = 2, slot_step = 1, most_slots = 0");
    EXPECT_EQ(stores->jobs().Get({"default", "a"})->slot_step, 1);
    ASSERT_OK(stores->jobs().SetSlotRange({"default", "a"}, 0, {2, 4, 5, 2}, "x").status());
    EXPECT_EQ(both(), "2 2, 2 4");
    ASSERT_OK(stores->jobs().Cancel({"default", "a"}, 0, {"TEST", "a test"}).status());
    EXPECT_EQ(stores->jobs().Get({"default", "a"})->max_slots, 4) << "in the history, too";
    ASSERT_OK(stores->jobs().Resume({"default", "a"}, 0, {"TEST", "a test"}).status());
    EXPECT_EQ(both(), "2 2, 2 4");
  }
  EXPECT_OK(SharedPostgres().DropDatabase("steps"));
}

TEST(Constraints, TransitionTableIsThatOfTheCode) {
  std::vector<std::string> code;
  for (const JobTransition& t : kJobTransitions) {
    code.push_back(absl::StrCat(JobStateName(t.from), "|", JobTriggerName(t.trigger), "|",
                                JobStateName(t.to)));
  }
  std::sort(code.begin(), code.end());
  std::vector<std::string> sql = absl::StrSplit(
      QueryOrDie(NewDatabase(), "SELECT from_state, trigger, to_state FROM job_transitions"), '\n');
  std::sort(sql.begin(), sql.end());
  EXPECT_EQ(code, sql);
}

// Tries every pair of states on a job's row, which moves to where the second one lies.
constexpr char kTryAllMoves[] = R"sql(
INSERT INTO jobs SELECT 'u', 'p', 'j', '', NULL, '{}', 0, 1, 1, '', 0, 0, 0, 0, now(), 'QUEUED', '', '',
  'NONE', 1, 0, 0, 0, now(), NULL, NULL, NULL, NULL, NULL, '', 0;
CREATE TABLE template AS SELECT * FROM jobs;
CREATE TABLE legal (pair text);
CREATE FUNCTION put(state_ text, left_ text, ended_ boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE template SET state = state_, left_state = left_, end_time = CASE WHEN ended_ THEN now() END,
                      suspend_deadline = CASE WHEN state_ = 'SUSPENDING' THEN now() END;
  IF ended_ THEN INSERT INTO ended_jobs
    SELECT (jsonb_populate_record(NULL::ended_jobs, to_jsonb(t) || '{"label_pairs": []}')).* FROM template t;
  ELSE INSERT INTO jobs SELECT * FROM template; END IF;
END $$;
DO $$
DECLARE a text; b text;
  ends text[] := ARRAY['CANCELLED', 'SUCCEEDED', 'FAILED'];
  states text[] := ARRAY['QUEUED', 'STARTING', 'RUNNING', 'SUSPENDING', 'SUSPENDED', 'CANCELLING'] || ends;
BEGIN
  FOREACH a IN ARRAY states LOOP FOREACH b IN ARRAY states LOOP
    CONTINUE WHEN a = b;
    SET LOCAL session_replication_role = replica;  -- no triggers
    DELETE FROM jobs;
    DELETE FROM ended_jobs;
    PERFORM put(a, NULL, a = ANY (ends));
    SET LOCAL session_replication_role = origin;
    BEGIN
      IF (a = ANY (ends)) <> (b = ANY (ends)) THEN
        PERFORM put(b, a, b = ANY (ends));
      ELSIF a = ANY (ends) THEN
        UPDATE ended_jobs SET state = b;
      ELSE
        UPDATE jobs SET state = b, suspend_deadline = CASE WHEN b = 'SUSPENDING' THEN now() END;
      END IF;
      INSERT INTO legal VALUES (a || ' ' || b);
    EXCEPTION WHEN check_violation THEN NULL;
    END;
  END LOOP; END LOOP;
END $$;
SELECT pair FROM legal)sql";

TEST(Constraints, DatabaseAllowsTheLegalMovesAndNoOther) {
  std::set<std::string> code;
  for (const JobTransition& t : kJobTransitions) {
    if (t.from != t.to) code.insert(absl::StrCat(JobStateName(t.from), " ", JobStateName(t.to)));
  }
  const std::set<std::string> sql = absl::StrSplit(QueryOrDie(NewDatabase(), kTryAllMoves), '\n');
  EXPECT_EQ(code, sql);
}

TEST(Constraints, AttemptGrowsByOneWithAPlacementOnly) {
  const std::string database = NewDatabase();
  auto stores = OpenOrDie(SharedPostgres().Conninfo(database));
  ASSERT_OK(stores->jobs().Submit(Named("a")).status());
  EXPECT_FALSE(SharedPostgres().Query(database, "UPDATE jobs SET attempt = 1").ok());
  EXPECT_FALSE(
      SharedPostgres().Query(database, "UPDATE jobs SET attempt = 2, state = 'STARTING'").ok());
}

}  // namespace
}  // namespace trainyard::testing
