#pragma once

// Host memory by which a rank exchanges with the other ranks of its gang.

#include <cstdint>

namespace trainyard::plan {

// Gradients are exchanged in pieces of so many elements.
inline constexpr int64_t kExchangedElements = int64_t{64} << 10;

// Shared by two ranks of one host, or as much as the system may keep of a TCP connection.
inline constexpr int64_t kLinkBytes = (int64_t{2} << 20) + (int64_t{64} << 10);

// Of one of `ranks` ranks: its links, and a piece of every partial sum that the ranks bring.
int64_t GangBytes(int64_t logical_ranks, int64_t ranks);

}  // namespace trainyard::plan
