#pragma once

// Snapshots for tests of the planner, written short.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/scheduler/planner.h"
#include "storage/records/reason_codes.h"
#include "storage/scheduler_store.h"

namespace trainyard {

inline absl::Time TestNow() { return absl::FromUnixSeconds(1000000); }

struct NodeSpec {
  std::string name;
  int cpu = 0;
  int cuda = 0;
  int64_t bytes = int64_t{8} << 30;
  bool draining = false;
  absl::Duration leaves_in = absl::InfiniteDuration();  // infinite: it stays
  bool reachable = true;
  absl::Duration lease_left = absl::Seconds(10);
  Arithmetic arithmetic;  // of all slots
};

inline NodeRecord MakeNode(const NodeSpec& spec) {
  NodeRecord node{.name = spec.name, .incarnation = "a", .address = "127.0.0.1"};
  for (int i = 0; i < spec.cpu + spec.cuda; ++i) {
    node.slots.push_back({.index = i,
                          .device = i < spec.cpu ? "CPU" : "CUDA",
                          .memory_bytes = spec.bytes,
                          .cpu_threads = 1,
                          .arithmetic = spec.arithmetic});
  }
  node.draining = spec.draining;
  node.leave_time = TestNow() + spec.leaves_in;
  node.reachable = spec.reachable;
  node.lease_end = TestNow() + spec.lease_left;
  return node;
}

struct JobSpecs {
  std::string id;
  int slots = 1;
  int priority = 0;
  int age_seconds = 0;
  std::string device;
  int64_t bytes = int64_t{1} << 30;
  int most_slots = 0;  // beyond `slots`: elastic
  int logical_ranks = 0;
  ArithmeticRule rule = ArithmeticRule::kSameInAttempt;
  std::string arithmetic;  // that it is bound to
  int group = 1;           // of ranks that share shards
  int step = 1;            // of slots
  std::string project = "default";
};

inline JobRecord MakeJob(const JobSpecs& spec) {
  JobRecord job;
  job.uid = "uid-" + spec.id;
  job.project = spec.project;
  job.job_id = spec.id;
  job.priority = spec.priority;
  job.min_slots = spec.slots;
  job.max_slots = std::max(spec.slots, spec.most_slots);
  job.logical_ranks = spec.logical_ranks;
  job.device = spec.device;
  job.arithmetic_rule = spec.rule;
  job.arithmetic = spec.arithmetic;
  job.group_ranks = spec.group;
  job.slot_step = spec.step;
  job.bytes_per_slot = spec.bytes;
  job.create_time = TestNow() - absl::Seconds(spec.age_seconds);
  job.state = JobState::kQueued;
  job.reason = {reason::kSubmitted, "waits for the scheduler to look at it"};
  return job;
}

struct Snapshots {
  SchedulerSnapshot snapshot;

  Snapshots() { snapshot.now = TestNow(); }
  Snapshots& Node(const NodeSpec& spec) {
    snapshot.nodes.push_back(MakeNode(spec));
    return *this;
  }
  Snapshots& Queued(const JobSpecs& spec) {
    snapshot.jobs.push_back(MakeJob(spec));
    return *this;
  }
  // Holds these slots of one node.
  Snapshots& Running(const JobSpecs& spec, const std::string& node, const std::vector<int>& slots,
                     JobState state = JobState::kRunning) {
    JobRecord job = MakeJob(spec);
    if (spec.most_slots == 0) job.min_slots = job.max_slots = static_cast<int>(slots.size());
    job.state = state;
    job.attempt = 1;
    snapshot.jobs.push_back(job);
    AttemptRecord attempt{.job_uid = job.uid, .attempt = 1};
    attempt.world_size = static_cast<int>(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      RankRecord rank{.id = {job.uid, 1, static_cast<int>(i)}, .node = node, .slots = {slots[i]}};
      rank.state = RankState::kRunning;
      attempt.ranks.push_back(rank);
    }
    snapshot.attempts.push_back(attempt);
    return *this;
  }
};

inline Pass PassOver(const Snapshots& s) { return PlanPass(s.snapshot, PlannerOptions{}); }

// Uids of the jobs that the pass places, in order.
inline std::vector<std::string> PlacedIn(const Pass& pass) {
  std::vector<std::string> uids;
  for (const Placement& placement : pass.decisions.placements) uids.push_back(placement.job_uid);
  return uids;
}

// What the pass found of a job that waits.
inline QueuedJob EntryIn(const Pass& pass, const std::string& uid) {
  for (const QueuedJob& entry : pass.queue) {
    if (entry.uid == uid) return entry;
  }
  ADD_FAILURE() << uid << " is not in the queue";
  return {};
}

}  // namespace trainyard
