#pragma once

// Groups of neighbour ranks that share shards (parallel.layout.tensor): ranks 0 to P - 1 are one,
// ranks P to 2 P - 1 the next. They exchange activations in every layer, so each group is best on
// one node. Pure.

#include <string>
#include <vector>

#include "storage/scheduler_store.h"

namespace trainyard {

// Puts the ranks of a gang in an order, in which they are numbered, such that as many groups of
// `group` ranks as can be are on one node each; the others are on few. Nodes keep the order of
// their first rank, and ranks of a node their order. Of groups of one the order stays as it is.
void KeepGroupsTogether(std::vector<Placement::Rank>& ranks, int group);

// How many groups have ranks on more than one node.
int GroupsOverNodes(const std::vector<Placement::Rank>& ranks, int group);

// "1 of 3 groups of 4 ranks that share shards (parallel.layout.tensor) spans nodes: …"; "" if none
// does.
std::string DescribeGroupsOverNodes(const std::vector<Placement::Rank>& ranks, int group);

}  // namespace trainyard
