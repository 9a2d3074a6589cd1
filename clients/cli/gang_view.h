#pragma once

// How the ranks of a gang look: where they run, and what their metrics tell.

#include <map>
#include <string>

#include "absl/time/time.h"
#include "clients/cli/terminal.h"
#include "trainyard/v1/resources.pb.h"
#include "trainyard/v1/run.pb.h"

namespace trainyard::cli {

// A line for each run of ranks that lie on one node and are in the same state; `wide`: for each
// rank. Texts are escaped.
std::string RenderGang(const Terminal& terminal, const v1::Gang& gang, bool wide, absl::Time now);

// Whether a name of a metric tells ranks apart ("rank.3.wait_ms", "ranks.slowest").
bool TellsOfRanks(absl::string_view name);

// Whether the point tells how the ranks of a gang compare.
bool HasRanks(const v1::MetricPoint& point);

// The nodes of the ranks of `gang`, by rank.
std::map<int, std::string> NodesByRank(const v1::Gang& gang);

// A table of the ranks of one point of which HasRanks is true, and which is the slowest: each rank
// if they are few, else the least, the median and the most of each value.
std::string RenderRanks(const Terminal& terminal, const v1::MetricPoint& point,
                        const std::map<int, std::string>& nodes);

// The same on one line, without nodes.
std::string RanksLine(const v1::MetricPoint& point);

}  // namespace trainyard::cli
