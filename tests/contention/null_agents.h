#pragma once

// Agents without workers, at the level of the fleet's store: they read what their nodes should run
// and report what workers would, in a hurry.

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "storage/stores.h"

namespace trainyard::testing {

class NullAgents {
 public:
  struct Options {
    int nodes = 200;
    int slots = 4;
    int threads = 3;
    absl::Duration lease = absl::Seconds(3);
    absl::Duration heartbeat = absl::Milliseconds(200);
    uint64_t seed = 1;
  };
  // Half of the nodes have GPUs. The stores must outlive it.
  NullAgents(Stores& stores, const Options& options);
  ~NullAgents() { Stop(); }

  absl::Status Register();  // all of them
  void Start();             // renews all leases and runs what is placed
  void StopRunning();       // from here on leases are renewed, and nothing ends or begins
  void Stop();

  // The first `count` nodes are not heard of any more; or again, as new sessions.
  void Silence(int count);
  absl::Status Return();

  std::string NameOf(int node) const;
  AgentIdentity AgentOf(int node) const;
  int64_t finished() const { return finished_; }  // ranks, for good
  int64_t renewals() const { return renewals_; }
  // Renewals that were put off because somebody had the lease locked.
  int64_t put_off() const { return put_off_; }
  int64_t refused() const { return refused_; }  // of nodes that were not silent
  std::string complaint() const;

 private:
  struct Rank {
    int64_t sequence = 0;                  // of the newest event
    std::vector<RankEventRecord> pending;  // not acknowledged
    bool over = false;                     // Exited is among its events
  };
  // One thread's nodes: only it touches what its ranks are.
  struct Part {
    std::mt19937_64 random;
    std::set<int> nodes;
    std::map<std::pair<int, RankId>, Rank> ranks;
    std::thread thread;
  };

  void Work(Part& part);
  void Renew();
  std::set<int> TakeWoken(const Part& part);
  void LookAt(Part& part, int node, std::vector<RankEvents>& group);
  void Report(Part& part, const std::vector<RankEvents>& group);
  static void Add(Rank& rank, decltype(RankEventRecord::what) what);
  void Advance(Part& part, const DesiredRank& wanted, Rank& rank);
  void Complain(const std::string& what);
  NodeRecord Describe(int node);

  Stores& stores_;
  FleetStore& fleet_;
  const Options options_;
  std::vector<Part> parts_;
  std::thread renewer_;
  int64_t subscription_ = 0;
  std::atomic<bool> running_{false};
  std::atomic<int> silent_{0};  // nodes below this number
  std::atomic<int64_t> finished_{0}, renewals_{0}, put_off_{0}, refused_{0};
  std::atomic<int> session_{0};

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<int> woken_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::string> incarnations_ ABSL_GUARDED_BY(mu_);
  std::string complaint_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard::testing
