#pragma once

// Which failures tell of a sick node, and which of a job that takes its nodes down. Pure.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/records/attempt.h"
#include "storage/records/node.h"

namespace trainyard {

inline constexpr char kStartCategory[] = "START";  // a rank did not begin in time
inline constexpr int kJobsToCordon = 3;  // so many jobs with failures show that a node is sick
inline constexpr absl::Duration kFailuresCount = absl::Hours(1);
inline constexpr absl::Duration kFailuresKept = absl::Hours(24);
inline constexpr size_t kMostFailuresKept = 64;   // of a node: the newest
inline constexpr int kNodesPerFailureCordon = 4;  // at most one in so many is cordoned for failures

struct FailureOnNode {
  std::string node;
  NodeFailure failure;
};

// The failures of nodes that a change of an attempt adds at `now`: of ranks whose device or disk
// failed, that did not begin in time, or whose node was lost. Failures of a rank's data, memory or
// numbers, and processes that died, say nothing about the node.
std::vector<FailureOnNode> NewFailures(const JobRecord& job, const AttemptRecord& before,
                                       const AttemptRecord& after, absl::Time now);

// The ranks that are LOST in `before` and not over in `after`: they rejoined, so their node's loss
// does not count.
std::vector<RankRecord> RejoinedRanks(const AttemptRecord& before, const AttemptRecord& after);

// The smallest number of jobs that together explain all of these failures, or `most` if that is
// less. A job explains its own failures, and each loss of the node as a whole that struck it. A job
// that takes the node down again and again thereby explains every loss alone, whoever ran beside
// it.
int JobsToBlame(const std::vector<NodeFailure>& failures, int most);

// Why the failures of a node say that it is sick: within an hour they struck three jobs or more,
// and no two jobs explain them all. "": they do not say so. Failures before the cordon was last
// lifted do not count, nor do those before a new boot, losses excepted.
std::string SicknessOf(const NodeRecord& node, absl::Time now);

// The nodes to cordon for their failures now, and why: together with those that are cordoned so
// already at most a quarter of the reachable nodes, and never the last that takes work.
struct NodeCordon {
  std::string name;
  std::string reason;
};
std::vector<NodeCordon> NodesToCordon(const std::vector<const NodeRecord*>& nodes, absl::Time now);

}  // namespace trainyard
