#pragma once

// Memory by which a rank exchanges with the other ranks of its gang.

#include <cstdint>

#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::plan {

// Gradients are exchanged in pieces of so many elements.
inline constexpr int64_t kExchangedElements = int64_t{64} << 10;

// Shared by two ranks of one host, or as much as the system may keep of a TCP connection.
inline constexpr int64_t kLinkBytes = (int64_t{2} << 20) + (int64_t{64} << 10);

// Host memory of one rank of a job of so many logical ranks: its links, and a piece of every
// partial sum that the groups bring.
int64_t GangBytes(const v1::JobSpec& spec, int64_t logical_ranks);

// Where tables are shared out: host memory by which one of `ranks` ranks exchanges what a batch
// looks up.
int64_t LookUpBytes(const Plan& plan, int64_t ranks);

// Memory of its GPU, where that is linked with those of the others: the slices of the largest
// bucket that they send to one rank.
int64_t ReceivedBytes(const Plan& plan);

// And what NCCL takes: buffers for every other rank on several channels. An estimate: it has not
// been measured on GPUs.
inline constexpr int64_t kNcclBytes = int64_t{300} << 20;

}  // namespace trainyard::plan
