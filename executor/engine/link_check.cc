#include "executor/engine/link_check.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "executor/engine/fault.h"
#include "executor/engine/parallel/communicator.h"
#include "executor/engine/parallel/nccl_communicator.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kGrowth = 8;  // of the bytes, from one size to the next
constexpr int64_t kHostBytes = int64_t{4} << 20;
constexpr int64_t kGpuBytes = int64_t{64} << 20;  // links of GPUs move 4 MiB in some microseconds
constexpr absl::Duration kPatience = absl::Minutes(1);
// So long the host of a GPU looks again and again whether an exchange is done: Await sleeps between
// two looks for as long as a fast link needs for all of it.
constexpr std::chrono::milliseconds kSpin(40);
constexpr size_t kMostNamed = 4;
// All is measured again while a link seems to be slow: what another process slowed once counts by
// its best time.
constexpr int kMostPasses = 3;

// All meet all: in round r meet the ranks whose sum is r, modulo the number of rounds. One is left,
// which would meet itself; it meets the last rank instead if the ranks are even in number (the
// circle method of tournaments).
std::vector<int> TournamentOf(int rank, int ranks) {
  const int rounds = ranks % 2 == 0 ? ranks - 1 : ranks;
  std::vector<int> partners;
  for (int round = 0; round < rounds; ++round) {
    if (rank == rounds) {  // the last one, of an even number
      partners.push_back(round * (ranks / 2) % rounds);
      continue;
    }
    const int partner = (round - rank + rounds) % rounds;
    const int left_over = ranks % 2 == 0 ? rounds : kNobody;
    partners.push_back(partner == rank ? left_over : partner);
  }
  return partners;
}

// Adds the rounds in which each rank meets those `distance` places before and behind it. Ranks so
// far apart form cycles; along one, links take turns, and of an odd number the last has its own.
void AddRingRounds(int rank, int ranks, int distance, std::vector<int>& partners) {
  const int cycles = std::gcd(ranks, distance);
  const int length = ranks / cycles;
  int place = 0;
  for (int at = rank % cycles; at != rank; at = (at + distance) % ranks) ++place;
  const int next = (rank + distance) % ranks;
  const int before = (rank - distance + ranks) % ranks;
  if (length == 2) {
    partners.push_back(next);
    return;
  }
  // Of the link that leads from a place to the next one.
  const auto round_of = [&](int link) {
    return length % 2 == 1 && link == length - 1 ? 2 : link % 2;
  };
  const int to_next = round_of(place), to_before = round_of((place + length - 1) % length);
  for (int round = 0; round < 2 + length % 2; ++round) {
    partners.push_back(round == to_next ? next : round == to_before ? before : kNobody);
  }
}

std::vector<double> SortedRates(absl::Span<const LinkRate> links) {
  std::vector<double> rates;
  for (const LinkRate& link : links) rates.push_back(link.bytes_per_second);
  std::sort(rates.begin(), rates.end());
  return rates;
}

std::string RateText(double bytes_per_second) {
  if (bytes_per_second >= 1e8) return absl::StrFormat("%.1f GB/s", bytes_per_second / 1e9);
  if (bytes_per_second >= 1e5) return absl::StrFormat("%.1f MB/s", bytes_per_second / 1e6);
  return absl::StrFormat("%.1f kB/s", bytes_per_second / 1e3);
}

std::string SlowText(const SlowLinks& slow, absl::FunctionRef<std::string(int)> name) {
  std::vector<std::string> texts;
  for (const SlowRank& rank : slow.ranks) {
    texts.push_back(
        absl::StrCat(name(rank.rank), " is slow with ",
                     rank.slow_links == rank.links
                         ? "all of its peers"
                         : absl::StrCat(rank.slow_links, " of its ", rank.links, " peers")));
  }
  for (const LinkRate& link : slow.links) {
    texts.push_back(absl::StrCat("the link between ", name(link.first), " and ", name(link.second),
                                 " is slow, ", RateText(link.bytes_per_second)));
  }
  if (texts.size() > kMostNamed) {
    const size_t more = texts.size() - kMostNamed;
    texts.resize(kMostNamed);
    texts.push_back(absl::StrCat("and ", more, " more"));
  }
  return absl::StrJoin(texts, ", ");
}

// Of links that are all by one medium.
std::string DescribeMedium(absl::Span<const LinkRate> links,
                           absl::FunctionRef<std::string(int)> name) {
  const std::vector<double> rates = SortedRates(links);
  std::string text = absl::StrCat(links.size(), " ", links[0].medium, ", ");
  if (rates.size() == 1) return absl::StrCat(text, RateText(rates[0]), " each way");
  const auto slowest = std::min_element(
      links.begin(), links.end(),
      [](const LinkRate& a, const LinkRate& b) { return a.bytes_per_second < b.bytes_per_second; });
  absl::StrAppend(&text, "median ", RateText(rates[rates.size() / 2]), " each way, slowest ",
                  RateText(slowest->bytes_per_second), " (rank ", slowest->first, " to rank ",
                  slowest->second, ")");
  const std::string slow = SlowText(FindSlow(links), name);
  return slow.empty() ? text : absl::StrCat(text, ": ", slow);
}

// What a rank has measured in one round, as it goes to rank 0.
struct Reading {
  int32_t partner = kNobody;
  int32_t shares_memory = 0;
  double bytes_per_second = 0;
};

// Memory of a device.
class Buffer {
 public:
  static absl::StatusOr<Buffer> Allocate(kernels::Device& device, int64_t bytes) {
    TY_ASSIGN_OR_RETURN(void* const data, device.Allocate(bytes));
    // The first exchange shall not find pages that the system has yet to make.
    if (!device.IsGpu()) std::memset(data, 0, bytes);
    return Buffer(device, static_cast<char*>(data));
  }
  Buffer(Buffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
  ~Buffer() {
    if (data_ != nullptr) device_.Free(data_);
  }
  char* data() const { return data_; }

 private:
  Buffer(kernels::Device& device, char* data) : device_(device), data_(data) {}

  kernels::Device& device_;
  char* data_;
};

// Times exchanges of one rank with one other after the other.
class LinkTimer {
 public:
  // `send` and `receive` have room for `most_bytes`. All must outlive it.
  LinkTimer(kernels::Device& device, const Gang& gang, const Buffer& send, const Buffer& receive,
            int64_t most_bytes)
      : device_(device),
        gang_(gang),
        send_(send),
        receive_(receive),
        most_bytes_(most_bytes),
        stream_(device.MakeStream()),
        exchanged_(device.MakeEvent()) {}

  // The bytes per second, each way, of the link with `peer`, which calls it with this rank.
  absl::StatusOr<double> Measure(int peer) {
    LinkTimes times(most_bytes_);
    // Both begin at the same time, then and after each exchange.
    TY_RETURN_IF_ERROR(LongerOf(peer, absl::ZeroDuration()).status());
    while (times.NextBytes() > 0) {
      const SteadyClock::time_point begin = SteadyClock::now();
      TY_RETURN_IF_ERROR(Exchange(peer, times.NextBytes()));
      const absl::Duration took = absl::FromChrono(SteadyClock::now() - begin);
      TY_ASSIGN_OR_RETURN(const absl::Duration longer, LongerOf(peer, took));
      times.Add(longer);
    }
    return times.bytes_per_second();
  }

 private:
  absl::Status Exchange(int peer, int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    const Transfer transfer = {
        .peer = peer, .send = {send_.data(), size}, .receive = {receive_.data(), size}};
    DeviceCommunicator* const links = gang_.links();
    if (links == nullptr) {
      return WithFault(Fault::kGang, gang_.communicator().Exchange({&transfer, 1}));
    }
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, links->Exchange(*stream_, {&transfer, 1})));
    device_.RecordEvent(*exchanged_, *stream_);
    return AwaitExchanged(*links);
  }

  absl::Status AwaitExchanged(DeviceCommunicator& links) {
    const SteadyClock::time_point until = SteadyClock::now() + kSpin;
    while (SteadyClock::now() < until) {
      const absl::StatusOr<bool> passed = device_.Passed(*exchanged_);
      if (!passed.ok() || *passed) break;
    }
    const absl::Status waited = links.Await(*exchanged_);
    if (waited.ok()) return waited;
    // What is wrong with this rank's own device is not the gang's fault.
    const absl::Status own = device_.Passed(*exchanged_).status();
    return own.ok() ? WithFault(Fault::kGang, waited) : WithDeviceFault(own);
  }

  // The longer one of what this rank and `peer` call it with, between their hosts.
  absl::StatusOr<absl::Duration> LongerOf(int peer, absl::Duration mine) {
    int64_t ours = absl::ToInt64Nanoseconds(mine), theirs = 0;
    const Transfer transfer = {.peer = peer,
                               .send = Sent(absl::MakeSpan(&ours, 1)),
                               .receive = Received(absl::MakeSpan(&theirs, 1))};
    TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang_.communicator().Exchange({&transfer, 1})));
    return absl::Nanoseconds(std::max(ours, theirs));
  }

  kernels::Device& device_;
  const Gang& gang_;
  const Buffer& send_;
  const Buffer& receive_;
  const int64_t most_bytes_;
  const std::unique_ptr<kernels::Stream> stream_;
  const std::unique_ptr<kernels::Event> exchanged_;
};

// Failures name the other rank; this adds which link it was.
absl::Status NameLink(const Communicator& ranks, int peer, const absl::Status& status) {
  if (!absl::StrContains(status.message(), ranks.name(peer))) return status;
  return Annotate(status, absl::StrCat("when the link between ", ranks.name(ranks.rank()), " and ",
                                       ranks.name(peer), " was measured"));
}

// What this rank measures, in all rounds.
absl::StatusOr<std::vector<Reading>> MeasureOwn(kernels::Device& device, const Gang& gang) {
  const Communicator& ranks = gang.communicator();
  const int64_t most_bytes = gang.links() != nullptr ? kGpuBytes : kHostBytes;
  absl::StatusOr<Buffer> send = Buffer::Allocate(device, most_bytes);
  if (!send.ok()) return WithDeviceFault(send.status());
  absl::StatusOr<Buffer> receive = Buffer::Allocate(device, most_bytes);
  if (!receive.ok()) return WithDeviceFault(receive.status());
  LinkTimer timer(device, gang, *send, *receive, most_bytes);
  std::vector<Reading> readings;
  for (const int peer : PartnersOf(gang.rank(), gang.size())) {
    Reading& reading = readings.emplace_back(Reading{.partner = peer});
    if (peer == kNobody) continue;
    const absl::StatusOr<double> rate = timer.Measure(peer);
    if (!rate.ok()) return NameLink(ranks, peer, rate.status());
    reading.bytes_per_second = *rate;
    reading.shares_memory = ranks.shares_memory(peer) ? 1 : 0;
  }
  return readings;
}

void SetPatience(const Gang& gang, absl::Duration patience) {
  gang.communicator().SetPatience(patience);
  if (gang.links() != nullptr) gang.links()->SetPatience(patience);
}

using ByMedium = std::map<std::string, std::vector<LinkRate>>;
ByMedium Sorted(absl::Span<const LinkRate> links) {
  ByMedium sorted;
  for (const LinkRate& link : links) sorted[link.medium].push_back(link);
  return sorted;
}

bool AnySlow(absl::Span<const LinkRate> links) {
  for (const auto& [medium, its] : Sorted(links)) {
    const SlowLinks slow = FindSlow(its);
    if (!slow.ranks.empty() || !slow.links.empty()) return true;
  }
  return false;
}

std::string MediumOf(bool gpus, bool one_host) {
  if (gpus) return one_host ? "between GPUs of one host" : "between GPUs of two hosts";
  return one_host ? "by shared memory" : "by TCP";
}

// Every link, on rank 0; each time in the same order.
absl::StatusOr<std::vector<LinkRate>> MeasureOnce(kernels::Device& device, const Gang& gang) {
  SetPatience(gang, kPatience);
  absl::StatusOr<std::vector<Reading>> mine = MeasureOwn(device, gang);
  SetPatience(gang, absl::InfiniteDuration());
  if (!mine.ok()) return mine.status();
  std::vector<Reading> all(gang.leads() ? gang.size() * mine->size() : 0);
  TY_RETURN_IF_ERROR(gang.ToLeader(Sent(absl::MakeSpan(*mine)), Received(absl::MakeSpan(all))));
  std::vector<LinkRate> links;
  for (size_t i = 0; i < all.size(); ++i) {
    const Reading& reading = all[i];
    const int rank = static_cast<int>(i / mine->size());
    if (reading.partner <= rank) continue;  // told by the other rank, or nobody
    links.push_back({.first = rank,
                     .second = reading.partner,
                     .bytes_per_second = reading.bytes_per_second,
                     .medium = MediumOf(gang.links() != nullptr, reading.shares_memory != 0)});
  }
  return links;
}

}  // namespace

std::vector<int> PartnersOf(int rank, int ranks) {
  if (ranks < 2) return {};
  if (ranks <= kAllPairs) return TournamentOf(rank, ranks);
  std::vector<int> partners;
  for (int distance = 1; distance <= ranks / 2; distance *= 2) {
    AddRingRounds(rank, ranks, distance, partners);
  }
  return partners;
}

void LinkTimes::Add(absl::Duration took) {
  if (warm_ups_ < kWarmUps) {
    ++warm_ups_;
    return;
  }
  spent_ += took;
  fastest_ = std::min(fastest_, took);
  if (bytes_ < most_bytes_ && took < kShort && spent_ < kLong) {
    bytes_ = std::min(most_bytes_, bytes_ * kGrowth);
    fastest_ = absl::InfiniteDuration();
    exchanges_ = 0;
    return;
  }
  ++exchanges_;
  done_ = exchanges_ == kExchanges || spent_ >= kLong;
}

double LinkTimes::bytes_per_second() const {
  return static_cast<double>(bytes_) /
         absl::ToDoubleSeconds(std::max(fastest_, absl::Nanoseconds(1)));
}

SlowLinks FindSlow(absl::Span<const LinkRate> links) {
  SlowLinks found;
  if (links.empty()) return found;
  const std::vector<double> rates = SortedRates(links);
  const double usual = rates[rates.size() == 3 ? 2 : rates.size() / 2];
  std::map<int, SlowRank> of;
  std::vector<LinkRate> slow;
  for (const LinkRate& link : links) {
    const bool is_slow = link.bytes_per_second < kSlow * usual;
    if (is_slow) slow.push_back(link);
    for (const int rank : {link.first, link.second}) {
      SlowRank& its = of[rank];
      its.rank = rank;
      its.slow_links += is_slow ? 1 : 0;
      ++its.links;
    }
  }
  for (const auto& [number, rank] : of) {
    if (rank.links >= 2 && rank.slow_links == rank.links) found.ranks.push_back(rank);
  }
  for (const auto& [number, rank] : of) {
    const bool in_all = slow.size() >= 2 && rank.slow_links == static_cast<int>(slow.size());
    if (found.ranks.empty() && in_all) found.ranks.push_back(rank);
  }
  for (const LinkRate& link : slow) {
    const bool told = std::any_of(found.ranks.begin(), found.ranks.end(), [&](const SlowRank& s) {
      return s.rank == link.first || s.rank == link.second;
    });
    if (!told) found.links.push_back(link);
  }
  return found;
}

std::string DescribeLinks(absl::Span<const LinkRate> links,
                          absl::FunctionRef<std::string(int rank)> name) {
  std::vector<std::string> texts;
  for (const auto& [medium, its] : Sorted(links)) texts.push_back(DescribeMedium(its, name));
  if (texts.empty()) return "";
  return absl::StrCat("links between ranks: ", absl::StrJoin(texts, "; "));
}

absl::StatusOr<std::vector<LinkRate>> MeasureLinks(kernels::Device& device, const Gang& gang) {
  std::vector<LinkRate> best;
  if (gang.alone()) return best;
  // Another rank may still read what it trains on, for which nobody's patience counts.
  TY_RETURN_IF_ERROR(WithFault(Fault::kGang, gang.communicator().Barrier()));
  for (int pass = 0; pass < kMostPasses; ++pass) {
    TY_ASSIGN_OR_RETURN(const std::vector<LinkRate> links, MeasureOnce(device, gang));
    if (pass == 0) best = links;
    for (size_t i = 0; i < links.size(); ++i) {
      best[i].bytes_per_second = std::max(best[i].bytes_per_second, links[i].bytes_per_second);
    }
    TY_ASSIGN_OR_RETURN(const int64_t doubtful, gang.OfLeader(AnySlow(best) ? 1 : 0));
    if (doubtful == 0) break;
  }
  return best;
}

}  // namespace trainyard::engine
