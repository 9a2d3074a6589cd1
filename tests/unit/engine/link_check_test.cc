#include "executor/engine/link_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "executor/engine/fault.h"
#include "kernels/device.h"
#include "tests/unit/engine/in_threads.h"
#include "tests/unit/engine/wrapped_communicator.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Pairs = std::set<std::pair<int, int>>;

// The pairs that meet, each of which does so once and in the same round for both; a rank names one
// partner in each round, so none is in two places.
Pairs PairsOf(int ranks) {
  std::vector<std::vector<int>> partners;
  for (int rank = 0; rank < ranks; ++rank) partners.push_back(PartnersOf(rank, ranks));
  Pairs pairs;
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(partners[rank].size(), partners[0].size()) << "rank " << rank << " of " << ranks;
    for (size_t round = 0; round < partners[rank].size(); ++round) {
      const int partner = partners[rank][round];
      if (partner == kNobody) continue;
      EXPECT_TRUE(partner >= 0 && partner < ranks && partner != rank);
      EXPECT_EQ(partners[partner][round], rank) << "round " << round << " of " << ranks << " ranks";
      if (partner < rank) continue;
      EXPECT_TRUE(pairs.emplace(rank, partner).second)
          << rank << " meets " << partner << " twice, of " << ranks << " ranks";
    }
  }
  return pairs;
}

TEST(PartnersOf, FewRanksMeetEachOtherOnceInAsFewRoundsAsThereCanBe) {
  EXPECT_THAT(PartnersOf(0, 1), IsEmpty());
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 31, 32}) {
    EXPECT_THAT(PairsOf(ranks), SizeIs(ranks * (ranks - 1) / 2));
    EXPECT_THAT(PartnersOf(0, ranks), SizeIs(ranks % 2 == 0 ? ranks - 1 : ranks));
  }
}

TEST(PartnersOf, ManyRanksMeetThoseAtPowersOfTwo) {
  for (const int ranks : {33, 48, 63, 64, 100}) {
    Pairs expected;
    size_t rounds = 0;
    for (int distance = 1; distance <= ranks / 2; distance *= 2) {
      rounds += 3;
      for (int rank = 0; rank < ranks; ++rank) {
        expected.insert(std::minmax(rank, (rank + distance) % ranks));
      }
    }
    EXPECT_EQ(PairsOf(ranks), expected) << ranks << " ranks";
    EXPECT_LE(PartnersOf(0, ranks).size(), rounds);
  }
}

// What is exchanged with a link that takes `latency` and then moves so many bytes per second.
struct Measured {
  int64_t last_bytes = 0;
  int exchanges = 0;
  absl::Duration spent;
  double rate = 0;
};
Measured Measure(double bytes_per_second, absl::Duration latency) {
  LinkTimes times(int64_t{4} << 20);
  Measured measured;
  while (times.NextBytes() > 0 && measured.exchanges < 100) {
    measured.last_bytes = times.NextBytes();
    const absl::Duration took =
        latency + absl::Seconds(static_cast<double>(measured.last_bytes) / bytes_per_second);
    ++measured.exchanges;
    measured.spent += took;
    times.Add(took);
  }
  measured.rate = times.bytes_per_second();
  return measured;
}

TEST(LinkTimes, MeasureAFastLinkByLargeExchanges) {
  const Measured fast = Measure(4e9, absl::Microseconds(5));
  EXPECT_EQ(fast.last_bytes, 4 << 20);
  EXPECT_EQ(fast.exchanges, 2 + 4 + 5) << "two warm-ups, four smaller sizes";
  EXPECT_NEAR(fast.rate, 4e9, 0.05e9);
  EXPECT_LT(fast.spent, absl::Milliseconds(20));
}

TEST(LinkTimes, AreShortOnASlowLink) {
  for (const double rate : {1e9, 1e8, 1e7, 3e6, 1e6, 3e5}) {
    for (const absl::Duration latency : {absl::ZeroDuration(), absl::Milliseconds(20)}) {
      const Measured slow = Measure(rate, latency);
      EXPECT_LT(slow.spent, absl::Milliseconds(700)) << rate;
      EXPECT_LE(slow.rate, rate * 1.01);
    }
    EXPECT_GT(Measure(rate, absl::ZeroDuration()).rate, rate * 0.99);
  }
  EXPECT_EQ(Measure(1e4, absl::ZeroDuration()).exchanges, 3) << "0.4 s each";
}

TEST(LinkTimes, TakeTheFastestExchangeAndNoneOfTheWarmUps) {
  LinkTimes times(LinkTimes::kFewestBytes);
  for (const int micros : {1, 1, 900, 400, 800, 700, 600}) {
    EXPECT_EQ(times.NextBytes(), 4096);
    times.Add(absl::Microseconds(micros));
  }
  EXPECT_EQ(times.NextBytes(), 0);
  EXPECT_DOUBLE_EQ(times.bytes_per_second(), 4096 / 400e-6);
}

// All links between `ranks` ranks, of `rate` GB/s; of `rank` with the first `slow` others: 0.4.
std::vector<LinkRate> Links(int ranks, double rate, int rank = -1, int slow = 0) {
  std::vector<LinkRate> links;
  for (int second = 1; second < ranks; ++second) {
    for (int first = 0; first < second; ++first) {
      const bool its = (first == rank || second == rank) && slow-- > 0;
      links.push_back({.first = first,
                       .second = second,
                       .bytes_per_second = (its ? 0.4 : rate) * 1e9,
                       .medium = "by TCP"});
    }
  }
  return links;
}

std::string Name(int rank) { return absl::StrCat("rank ", rank, " (10.0.0.", rank, ":7000)"); }

TEST(DescribeLinks, OfEqualLinksNoneIsSlow) {
  for (const int ranks : {2, 3, 4, 5, 9}) {
    const SlowLinks slow = FindSlow(Links(ranks, 3.1));
    EXPECT_TRUE(slow.ranks.empty() && slow.links.empty()) << ranks;
  }
  EXPECT_EQ(DescribeLinks(Links(4, 3.1), Name),
            "links between ranks: 6 by TCP, median 3.1 GB/s each way, slowest 3.1 GB/s (rank 0 to "
            "rank 1)");
}

TEST(DescribeLinks, TwoRanksHaveOneLinkToCompareWithNone) {
  EXPECT_EQ(DescribeLinks(Links(2, 0.0123), Name),
            "links between ranks: 1 by TCP, 12.3 MB/s each way");
  EXPECT_EQ(DescribeLinks({}, Name), "");
}

TEST(DescribeLinks, NamesALinkThatIsSlow) {
  EXPECT_EQ(DescribeLinks(Links(5, 3.1, 3, 1), Name),
            "links between ranks: 10 by TCP, median 3.1 GB/s each way, slowest 0.4 GB/s (rank 0 to "
            "rank 3): the link between rank 0 (10.0.0.0:7000) and rank 3 (10.0.0.3:7000) is slow, "
            "0.4 GB/s");
  // Half of the median is not slow.
  std::vector<LinkRate> half = Links(5, 3);
  half[4].bytes_per_second = 1.5e9;
  EXPECT_THAT(DescribeLinks(half, Name), Not(HasSubstr("slow,")));
}

TEST(DescribeLinks, NamesARankThatIsSlowWithAll) {
  for (const int ranks : {3, 4, 5, 8}) {
    EXPECT_THAT(DescribeLinks(Links(ranks, 3.1, 2, ranks - 1), Name),
                ::testing::EndsWith("): rank 2 (10.0.0.2:7000) is slow with all of its peers"))
        << ranks;
  }
  EXPECT_THAT(DescribeLinks(Links(5, 3.1, 4, 3), Name),
              ::testing::EndsWith("): rank 4 (10.0.0.4:7000) is slow with 3 of its 4 peers"));
}

TEST(DescribeLinks, NamesTheRanksOfASlowHostAndFewLinks) {
  std::vector<LinkRate> links = Links(8, 3.1);
  for (LinkRate& link : links) {
    if (link.first == 1 || link.second == 1 || link.first == 6 || link.second == 6) {
      link.bytes_per_second = 4e8;
    }
  }
  EXPECT_THAT(DescribeLinks(links, Name),
              ::testing::EndsWith("): rank 1 (10.0.0.1:7000) is slow with all of its peers, "
                                  "rank 6 (10.0.0.6:7000) is slow with all of its peers"));
  // Seven links in a chain, of which no rank has all.
  std::vector<LinkRate> chain = Links(8, 3.1);
  for (LinkRate& link : chain) {
    if (link.second == link.first + 1) link.bytes_per_second = 4e8;
  }
  EXPECT_THAT(DescribeLinks(chain, Name), ::testing::EndsWith("0.4 GB/s, and 3 more"));
}

TEST(DescribeLinks, ComparesThoseOfOneKind) {
  std::vector<LinkRate> links = Links(5, 1);
  for (LinkRate& link : links) {
    if (link.second > 2) continue;
    link.medium = "by shared memory";
    link.bytes_per_second = 9e9;
  }
  const std::string even = DescribeLinks(links, Name);
  EXPECT_THAT(even,
              AllOf(HasSubstr("7 by TCP, median 1.0 GB/s"),
                    HasSubstr("; 3 by shared memory, median 9.0 GB/s"), Not(HasSubstr("is slow"))));
  links[0].bytes_per_second = 2e9;
  EXPECT_THAT(DescribeLinks(links, Name),
              ::testing::EndsWith("the link between rank 0 (10.0.0.0:7000) and rank 1 "
                                  "(10.0.0.1:7000) is slow, 2.0 GB/s"));
}

TEST(MeasureLinks, RankZeroHasTheRateOfEachLink) {
  InThreads(3, [&](Communicator& communicator) {
    const auto device = kernels::OpenCpu(1).value();
    const auto links = MeasureLinks(*device, Gang(&communicator));
    ASSERT_TRUE(links.ok()) << links.status();
    if (communicator.rank() > 0) {
      EXPECT_THAT(*links, IsEmpty());
      return;
    }
    std::vector<std::pair<int, int>> pairs;
    for (const LinkRate& link : *links) {
      pairs.emplace_back(link.first, link.second);
      EXPECT_GT(link.bytes_per_second, 0);
      EXPECT_EQ(link.medium, communicator.shares_memory(1) ? "by shared memory" : "by TCP");
    }
    std::sort(pairs.begin(), pairs.end());
    EXPECT_THAT(pairs, ElementsAre(std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)));
  });
}

// Of which the link to one rank moves about 5 MB a second.
class SlowLinkCommunicator : public WrappedCommunicator {
 public:
  SlowLinkCommunicator(Communicator& real, int slow_peer)
      : WrappedCommunicator(real), slow_peer_(slow_peer) {}

  absl::Status Exchange(absl::Span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) {
      if (transfer.peer != slow_peer_) continue;
      absl::SleepFor(absl::Nanoseconds(200) * static_cast<int64_t>(transfer.send.size()));
    }
    return WrappedCommunicator::Exchange(transfers);
  }

 private:
  const int slow_peer_;
};

TEST(MeasureLinks, NamesASlowLink) {
  InThreads(3, [&](Communicator& real) {
    SlowLinkCommunicator communicator(real, real.rank() == 1 ? 0 : kNobody);
    const auto device = kernels::OpenCpu(1).value();
    const auto links = MeasureLinks(*device, Gang(&communicator));
    ASSERT_TRUE(links.ok()) << links.status();
    if (communicator.rank() > 0) return;
    const LinkRate slowest =
        *std::min_element(links->begin(), links->end(), [](const LinkRate& a, const LinkRate& b) {
          return a.bytes_per_second < b.bytes_per_second;
        });
    EXPECT_EQ(std::pair(slowest.first, slowest.second), std::pair(0, 1));
    EXPECT_LT(slowest.bytes_per_second, 5.1e6);
    EXPECT_THAT(DescribeLinks(*links, [&](int rank) { return real.name(rank); }),
                ::testing::ContainsRegex("slowest [0-9.]+ [Mk]B/s .rank 0 to rank 1.: .*is slow"));
  });
}

TEST(MeasureLinks, ARankThatIsAloneHasNone) {
  const auto device = kernels::OpenCpu(1).value();
  EXPECT_THAT(*MeasureLinks(*device, Gang()), IsEmpty());
}

TEST(MeasureLinks, ARankThatLeavesIsNamedWithTheOneThatWaitsForIt) {
  InThreads(2, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      ASSERT_TRUE(communicator.Barrier().ok());
      return;
    }
    const auto device = kernels::OpenCpu(1).value();
    const absl::Status status = MeasureLinks(*device, Gang(&communicator)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(FaultOf(status), Fault::kGang);
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(absl::StrCat("when the link between ", communicator.name(0),
                                              " and ", communicator.name(1), " was measured: ")),
                      HasSubstr("left")));
  });
}

}  // namespace
}  // namespace trainyard::engine
