// How fast the store on PostgreSQL is with fsync on, in a cluster of its own. Prints a table and,
// last, JSON.

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "storage/postgres/postgres.h"
#include "tests/conformance/postgres_fixture.h"

namespace trainyard::testing {
namespace {

constexpr absl::Duration kPerCase = absl::Seconds(5);

JobRecord MakeJob(const std::string& id) {
  JobRecord job;
  job.project = "default";
  job.job_id = job.request_id = id;
  job.spec = std::string(1500, 's');
  job.plan_summary = std::string(500, 'p');
  return job;
}

// Calls `body(thread, i)` on `threads` threads for a while; returns calls per second.
template <typename Body>
double Rate(int threads, const Body& body) {
  std::atomic<int64_t> calls = 0;
  const absl::Time start = absl::Now();
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (int i = 0; absl::Now() - start < kPerCase; ++i) {
        body(t, i);
        ++calls;
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return static_cast<double>(calls) / absl::ToDoubleSeconds(absl::Now() - start);
}

double Submissions(Stores& stores, int threads) {
  return Rate(threads, [&](int t, int i) {
    const auto made = stores.jobs().Submit(MakeJob(absl::StrCat("job-", threads, "-", t, "-", i)));
    TY_CHECK(made.ok(), made.status().ToString());
  });
}

// Metric points of `threads` jobs at once, `batch` points in one call.
double Points(Stores& stores, int threads, int batch) {
  const std::string run = absl::StrCat("points-", threads, "-", batch, "-");
  std::vector<std::string> uids;
  const auto lease = stores.scheduler().Lead("bench", absl::Hours(1), std::nullopt);
  for (int t = 0; t < threads; ++t) {
    NodeRecord node;
    node.name = absl::StrCat(run, t);
    node.slots = {{.index = 0}};
    TY_CHECK(stores.fleet().RegisterNode(node, absl::Hours(1)).ok(), "register");
    const auto job = stores.jobs().Submit(MakeJob(node.name));
    uids.push_back(job->uid);
    const Placement placement{.job_uid = job->uid, .job_version = 1, .ranks = {{node.name, {0}}}};
    TY_CHECK(*stores.scheduler().Apply(lease->epoch, {.placements = {placement}}) == 1, "place");
  }
  return batch * Rate(threads, [&](int t, int i) {
           std::vector<RankEventRecord> events;
           for (int64_t step = int64_t{i} * batch + 1; step <= int64_t{i + 1} * batch; ++step) {
             events.push_back({step, absl::Now(),
                               MetricRecord{step,
                                            MetricSplit::kTrain,
                                            {{"grad_norm", 0.7},
                                             {"learning_rate", 1e-3},
                                             {"loss", 1.25},
                                             {"samples_per_second", 1e3},
                                             {"step_ms", 20.5}}}});
           }
           const auto result =
               stores.fleet().AppendEvents({absl::StrCat(run, t), {uids[t], 1, 0}, events});
           TY_CHECK(result.ok() && !result->fenced, result.status().ToString());
         });
}

int Main() {
  auto server = PostgresFixture::Start({.fsync = true});
  TY_CHECK(server.ok(), server.status().ToString());
  TY_CHECK(postgres::Migrate((*server)->Conninfo()).ok(), "migrate");
  auto stores = postgres::Open((*server)->Conninfo(), {.max_connections = 16});
  TY_CHECK(stores.ok(), stores.status().ToString());
  std::string json = "{";
  for (const int threads : {1, 16}) {
    const double rate = Submissions(**stores, threads);
    std::printf("%2d threads: %8.0f submissions/s\n", threads, rate);
    absl::StrAppend(&json, "\"submit_per_s_", threads, "\": ", static_cast<int64_t>(rate), ", ");
  }
  for (const auto& [threads, batch] : {std::pair{1, 1}, {1, 100}, {8, 1}, {8, 100}}) {
    const double rate = Points(**stores, threads, batch);
    std::printf("%2d jobs, %3d points a batch: %8.0f metric points/s\n", threads, batch, rate);
    absl::StrAppend(&json, "\"points_per_s_", threads, "x", batch,
                    "\": ", static_cast<int64_t>(rate), threads == 8 && batch == 100 ? "}" : ", ");
  }
  std::printf("%s\n", json.c_str());
  return 0;
}

}  // namespace
}  // namespace trainyard::testing

int main() { return trainyard::testing::Main(); }
