#pragma once

// How long each rank of a gang computes and how long it waits for the others; which one is slow.

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "executor/plan/graph/fold_tree.h"

namespace trainyard::engine {

// What a rank measured since its last report: times are means per step.
struct RankTimes {
  double compute_ms = 0;     // the whole step without wait_ms: waiting for data is part of it
  double wait_ms = 0;        // for other ranks: until what they exchange is there and added up
  double memory_bytes = 0;   // as Device::PeakMemoryBytes
  double planned_bytes = 0;  // of a slot, by the rank's plan
  double work = 1;           // of that of a logical rank, which other ranks may share
};

// Adds up the steps between two reports.
class StepTimes {
 public:
  void Add(absl::Duration took, absl::Duration waited) {
    took_ += took;
    waited_ += waited;
    ++steps_;
  }
  int64_t steps() const { return steps_; }
  // The means, without memory. Begins anew.
  RankTimes Take();

 private:
  absl::Duration took_, waited_;
  int64_t steps_ = 0;
};

// How the ranks share out the logical ranks: each `sharing` neighbours the shards of the same.
struct RankShares {
  int64_t logical_ranks = 1;
  int sharing = 1;

  // How many the rank has something of, of `ranks` ranks.
  int64_t of_rank(int ranks, int rank) const {
    return plan::HostedBy(logical_ranks, ranks / sharing, rank / sharing).size();
  }
};

// All below go by how long a rank computes for each logical rank that it hosts (plan::HostedBy): a
// rank that hosts more than others may take longer. The median is the lower one of two.

struct SlowestRank {
  int rank = 0;
  double ratio = 1;      // to the median rank
  double excess_ms = 0;  // per step: so much less it would compute if it were as fast as the median
};
SlowestRank FindSlowest(absl::Span<const RankTimes> ranks, const RankShares& shares);

// Up to so many ranks are reported one by one.
inline constexpr int kRanksOneByOne = 8;

// The ranks as values of a metric point, at most 40 however many they are: extremes and medians as
// "ranks.compute_ms.max" and "ranks.compute_ms.max_rank", of few ranks each as "rank.3.compute_ms".
std::map<std::string, double> RankMetrics(absl::Span<const RankTimes> ranks,
                                          const RankShares& shares);

// Looks for a rank that the others wait for all the time.
class StragglerWatch {
 public:
  static constexpr double kRatio = 1.5;        // to the median rank
  static constexpr double kShareOfStep = 0.1;  // that the others wait for it
  static constexpr int64_t kSteps = 50;        // in a row, and
  static constexpr int64_t kReports = 3;       // reports in a row

  // What `ranks` measured in `steps` steps. Returns what to tell of a straggler, once; else "". The
  // first report does not count: kernels are prepared in its steps.
  std::string Look(int64_t steps, absl::Span<const RankTimes> ranks, const RankShares& shares);

 private:
  bool begun_ = false;
  bool told_ = false;
  int rank_ = -1;        // that was slow in the last report; -1: none
  int64_t steps_ = 0;    // for which it has been slow
  int64_t reports_ = 0;  // likewise
};

}  // namespace trainyard::engine
