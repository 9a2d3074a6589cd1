#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/scheduler/scheduler_state.h"
#include "storage/base/clock.h"
#include "storage/base/ids.h"
#include "storage/postgres/postgres.h"
#include "tests/bench/control/load.h"

namespace trainyard::bench {

// All slots are taken but those of `free_nodes`, so that a pass looks at the whole queue: jobs of
// eight demands, in an order of priorities, of which some start. Nodes take turns at `fingerprints`
// fingerprints of their arithmetic.
int RunPass(int queued, int nodes, int slots_per_node, int rounds, int fingerprints, int free_nodes,
            int group) {
  SchedulerSnapshot snapshot;
  snapshot.now = absl::Now();
  for (int n = 0; n < nodes; ++n) {
    NodeRecord node;
    node.name = absl::StrFormat("node-%05d", n);
    node.lease_end = snapshot.now + absl::Seconds(10);
    for (int s = 0; s < slots_per_node; ++s) {
      node.slots.push_back({.index = s, .device = "CUDA", .memory_bytes = int64_t{80} << 30});
      node.slots.back().arithmetic = {{"device", absl::StrFormat("GPU %d", n % fingerprints)},
                                      {"compute capability", "9.0"},
                                      {"multiprocessors", "132"},
                                      {"cuBLASLt", "120501"},
                                      {"cuDNN", "90100"},
                                      {"engine", "1"}};
    }
    snapshot.nodes.push_back(node);
    if (n < free_nodes) continue;
    JobRecord job;
    job.uid = absl::StrFormat("running-%05d", n);
    job.state = JobState::kRunning;
    job.attempt = 1;
    AttemptRecord attempt;
    attempt.job_uid = job.uid;
    attempt.attempt = 1;
    for (int s = 0; s < slots_per_node; ++s) {
      attempt.ranks.push_back({.id = {job.uid, 1, s}, .node = node.name, .slots = {s}});
    }
    snapshot.jobs.push_back(job);
    snapshot.attempts.push_back(attempt);
  }
  auto queue = std::make_shared<WaitingJobs>();
  for (int i = 0; i < queued; ++i) {
    JobRecord job;
    job.uid = absl::StrFormat("%08x", static_cast<uint32_t>(i) * 2654435761u);
    job.project = "default";
    job.job_id = absl::StrFormat("job-%d", i);
    job.version = 1;
    job.device = "CUDA";
    job.arithmetic_rule = ArithmeticRule::kSameInAttempt;
    job.priority = i % 5;
    job.min_slots = job.max_slots = 1 << i % 4;
    if (job.min_slots % group == 0) job.group_ranks = group;
    job.bytes_per_slot = i % 8 < 4 ? int64_t{1} << 30 : int64_t{40} << 30;
    job.create_time = snapshot.now - absl::Seconds(queued - i);
    queue->push_back(std::make_shared<const JobRecord>(std::move(job)));
  }
  std::sort(queue->begin(), queue->end(),
            [](const auto& a, const auto& b) { return RunsBefore(*a, *b); });
  snapshot.queue = std::move(queue);
  SnapshotChanges all{.now = snapshot.now, .whole = true, .jobs = snapshot.jobs};
  for (const auto& job : *snapshot.queue) all.jobs.push_back(*job);
  all.attempts = snapshot.attempts;
  all.nodes = snapshot.nodes;
  std::vector<double> whole_ms, anew_ms, again_ms;
  size_t placements = 0;
  for (int i = 0; i < rounds; ++i) {
    absl::Time begin = absl::Now();
    placements = PlanPass(snapshot, {}).decisions.placements.size();
    whole_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    SnapshotChanges changes = all;
    begin = absl::Now();
    SchedulerState state;
    state.Fold(std::move(changes));
    state.Plan({});
    anew_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    begin = absl::Now();
    state.Plan({});
    again_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  const nlohmann::json answer = {{"p50_ms", Quantile(whole_ms, 0.5)},
                                 {"anew_p50_ms", Quantile(anew_ms, 0.5)},
                                 {"again_p50_ms", Quantile(again_ms, 0.5)},
                                 {"placements", placements}};
  std::cout << answer.dump() << std::endl;
  return 0;
}

int RunDelta(const std::string& database, int rounds) {
  const auto stores = postgres::Open(database, {});
  if (!stores.ok()) {
    std::cerr << stores.status() << std::endl;
    return 1;
  }
  SchedulerStore& scheduler = (*stores)->scheduler();
  SchedulerState state;
  LeaseJudge judge(absl::Seconds(10));
  std::vector<double> times_ms, read_ms;
  double first_ms = 0;
  for (int i = 0; i <= rounds; ++i) {
    JobRecord job;
    job.project = "default";
    job.job_id = absl::StrFormat("delta-%s", RandomHex(8));
    job.device = "CUDA";
    if (!(*stores)->jobs().Submit(job).ok()) return 1;
    const absl::Time begin = absl::Now();
    auto changes = scheduler.ReadChanges(state.position(), i % 10 == 0);
    if (!changes.ok() || (i > 0 && changes->jobs.size() != 1)) {
      std::cerr << "not what changed: " << changes.status() << std::endl;
      return 1;
    }
    read_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    state.Fold(*std::move(changes));
    state.Judge(judge, SystemClock().SinceBoot());
    state.Plan({});
    const double took_ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
    if (i == 0) {
      first_ms = took_ms;
    } else {
      times_ms.push_back(took_ms);
    }
  }
  const nlohmann::json answer = {
      {"p50_ms", Quantile(times_ms, 0.5)},       {"p99_ms", Quantile(times_ms, 0.99)},
      {"read_p50_ms", Quantile(read_ms, 0.5)},   {"first_ms", first_ms},
      {"queued", state.fold().waiting().size()}, {"holders", state.fold().holders().size()},
      {"nodes", state.fold().nodes().size()}};
  std::cout << answer.dump() << std::endl;
  return 0;
}

}  // namespace trainyard::bench
