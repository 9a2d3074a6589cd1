#pragma once

// Measures the links between the ranks of a gang before it trains, and names those that are slow.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "executor/engine/gang.h"
#include "kernels/device.h"

namespace trainyard::engine {

// The timetable of measuring: with whom `rank` exchanges in each round, or kNobody. All ranks have
// as many rounds, and in each a rank has at most one partner. Up to kAllPairs ranks each meet every
// other, in at most that many rounds. Of more, each meets those that are 1, 2, 4, ... places away
// when all stand in a ring: about ranks * log2(ranks) pairs, in at most 3 * log2(ranks) rounds.
inline constexpr int kAllPairs = 32;
inline constexpr int kNobody = -1;
std::vector<int> PartnersOf(int rank, int ranks);

// Which exchanges measure one link: begins with few bytes, so that no link however slow takes long,
// takes more as long as an exchange is short, and ends after kExchanges of the last size, or
// when they took kLong. Both ends tell it the same times, and so make the same exchanges. All of
// them take about half a second at most, unless kFewestBytes alone take longer than kShort.
class LinkTimes {
 public:
  static constexpr int64_t kFewestBytes = 4 << 10;
  static constexpr int kWarmUps = 2;  // these may have to connect first, and do not count
  static constexpr int kExchanges = 5;
  static constexpr absl::Duration kShort = absl::Milliseconds(30);
  static constexpr absl::Duration kLong = absl::Milliseconds(250);

  // `most_bytes` is at least kFewestBytes.
  explicit LinkTimes(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // How many bytes the next exchange sends each way; 0: the link has been measured.
  int64_t NextBytes() const { return done_ ? 0 : bytes_; }
  // The exchange of NextBytes() took so long.
  void Add(absl::Duration took);
  // Each way, by the fastest exchange of the last size: what else the machines did only slows one.
  double bytes_per_second() const;

 private:
  const int64_t most_bytes_;
  int64_t bytes_ = kFewestBytes;
  int warm_ups_ = 0;
  int exchanges_ = 0;  // of this size
  absl::Duration fastest_ = absl::InfiniteDuration();
  absl::Duration spent_;
  bool done_ = false;
};

// A link between two ranks, as it was measured with as much sent both ways at once.
struct LinkRate {
  int first = 0, second = 0;    // ranks, first < second
  double bytes_per_second = 0;  // each way
  std::string medium;           // "by TCP"; only links by the same are compared
};

// A rank for which several links are slow.
struct SlowRank {
  int rank = 0;
  int slow_links = 0, links = 0;
};

struct SlowLinks {
  std::vector<SlowRank> ranks;  // with all of their links, of two or more; else the one of all
  std::vector<LinkRate> links;  // that lead to none of these ranks
};

// The links whose rate is less than kSlow of the median, the higher one of two. Of three links, as
// three ranks have them, it is that of the fastest, since two are slow where one rank is. `links`
// are all by one medium.
inline constexpr double kSlow = 0.5;
SlowLinks FindSlow(absl::Span<const LinkRate> links);

// What people are told, "" of no links; `name` names a rank with its address:
//   links between ranks: 10 by TCP, median 3.1 GB/s each way, slowest 0.4 GB/s (rank 3 to rank 5):
//   rank 5 (10.0.0.7:7011) is slow with all of its peers
std::string DescribeLinks(absl::Span<const LinkRate> links,
                          absl::FunctionRef<std::string(int rank)> name);

// Exchanges as PartnersOf says, between GPUs if the gang links them, else between hosts. Every rank
// calls it before it has allocated what it trains with, and when nothing else is exchanged. Returns
// all rates on rank 0, and none elsewhere. If a link is slow all are measured up to twice again,
// and the best time of each counts, since another process may have slowed it once.
//
// It takes two buffers of the device, which are gone when it returns: each has 4 MiB of a CPU, or
// 64 MiB of a GPU. So they share their memory with the plan, which has not been allocated yet.
//
// A link or a rank that is silent fails as in any exchange, with the fault kGang and the names of
// both ranks; so does a link that moves no byte for a minute, once all ranks have come.
absl::StatusOr<std::vector<LinkRate>> MeasureLinks(kernels::Device& device, const Gang& gang);

}  // namespace trainyard::engine
