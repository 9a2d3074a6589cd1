#pragma once

// Which failures tell of a sick node, and which of a job that takes its nodes down. Pure.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "storage/records/attempt.h"
#include "storage/records/node.h"

namespace trainyard {

inline constexpr char kStartCategory[] = "START";  // a rank did not begin in time
inline constexpr int kJobsToCordon = 3;            // whose failures are the node's
inline constexpr absl::Duration kFailuresCount = absl::Hours(1);
inline constexpr absl::Duration kFailuresKept = absl::Hours(24);
inline constexpr size_t kMostFailuresKept = 64;   // of a node: the newest
inline constexpr int kNodesPerFailureCordon = 4;  // one of so many may be cordoned by failures

struct FailureOnNode {
  std::string node;
  NodeFailure failure;
};

// What became of an attempt's ranks at `now` that adds to the failures of nodes: those whose device
// or disk failed, that did not begin in time, or whose node was lost. What a rank says of its data,
// its memory or its numbers, and a process that died, is no word about the node.
std::vector<FailureOnNode> NewFailures(const JobRecord& job, const AttemptRecord& before,
                                       const AttemptRecord& after, absl::Time now);

// Whose loss of its node is undone by `after`: it rejoined, so that was none.
std::vector<RankRecord> NoLongerLost(const AttemptRecord& before, const AttemptRecord& after);

// The smallest number of jobs that explain all of these failures, `most` at most: each failure, and
// each loss of the node as a whole, struck one of them. A job that takes the node down again and
// again explains every loss alone, whoever ran beside it.
int JobsToBlame(const std::vector<NodeFailure>& failures, int most);

// Why the failures of a node say that it is sick: within an hour they struck three jobs or more, of
// which no two explain them all. "": they do not. A lifted cordon and, but for losses, a new boot
// make those before them count no more.
std::string SicknessOf(const NodeRecord& node, absl::Time now);

// Nodes that are to be cordoned for their failures now, and why: a quarter of those that are
// reachable at most, with those that are cordoned so already, and never the last that takes work.
struct NodeCordon {
  std::string name;
  std::string reason;
};
std::vector<NodeCordon> NodesToCordon(const std::vector<const NodeRecord*>& nodes, absl::Time now);

}  // namespace trainyard
