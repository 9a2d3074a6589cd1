// What ranks with a GPU each owe each other beside the contract of every communicator: the order of
// streams, recordings, and waits that end.

#include "executor/engine/parallel/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <deque>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"
#include "tests/gpu/gang/gpu_rank.h"
#include "tests/gpu/gang/rank_device.h"
#include "tests/unit/engine/parallel/rounds.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

#define TY_NEEDS_GPUS(gpus)                                                           \
  if (GpusHere() < (gpus)) {                                                          \
    GTEST_SKIP() << "needs " << (gpus) << " GPUs, and " << GpusHere() << " are here"; \
  }

std::vector<std::string> RunRanks(int ranks, const GpuBody& body) {
  return Gang(TestRendezvous(ranks, LinkKind::kMemory), MeetingOnGpus(body)).Results();
}

// Memory for what this rank sends to each rank, and for what it receives from each.
struct Buffers {
  Buffers(GpuRank& rank, size_t bytes) {
    for (int r = 0; r < rank.size(); ++r) {
      const DeviceBytes& sent = sends.emplace_back(*rank.device, bytes);
      const DeviceBytes& received = receives.emplace_back(*rank.device, bytes);
      if (r == rank.rank()) continue;
      transfers.push_back({.peer = r, .send = sent.span(), .receive = received.span()});
    }
  }
  void Write(GpuRank& rank, kernels::Stream& stream, uint64_t seed) const {
    for (int r = 0; r < rank.size(); ++r) {
      sends[r].Write(stream, Content(seed, rank.rank(), r, sends[r].span().size()));
    }
  }
  absl::Status Check(GpuRank& rank, kernels::Stream& stream, uint64_t seed) const {
    std::vector<std::string> found(rank.size(), std::string(sends[0].span().size(), '-'));
    for (int r = 0; r < rank.size(); ++r) receives[r].Read(stream, found[r].data());
    TY_RETURN_IF_ERROR(rank.Await(stream));
    for (int r = 0; r < rank.size(); ++r) {
      if (r != rank.rank() && found[r] != Content(seed, r, rank.rank(), found[r].size())) {
        return absl::DataLossError(absl::StrCat("seed ", seed, ": not what rank ", r, " sent"));
      }
    }
    return absl::OkStatus();
  }
  std::deque<DeviceBytes> sends, receives;
  std::vector<Transfer> transfers;
};

absl::Status ExchangeOnce(GpuRank& rank, size_t bytes, uint64_t seed) {
  const Buffers buffers(rank, bytes);
  buffers.Write(rank, *rank.stream, seed);
  TY_RETURN_IF_ERROR(rank.links->Exchange(*rank.stream, buffers.transfers));
  return buffers.Check(rank, *rank.stream, seed);
}

// Every stream moves memory of its own; the host waits only at the end, and in another order.
absl::Status UseManyStreams(GpuRank& rank, const Gang::Say&) {
  constexpr int kStreams = 5, kRounds = 4;
  std::vector<std::unique_ptr<kernels::Stream>> streams;
  std::deque<Buffers> buffers;
  for (int s = 0; s < kStreams; ++s) {
    streams.push_back(rank.device->MakeStream());
    buffers.emplace_back(rank, 1000 * s + 1);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int s = 0; s < kStreams; ++s) {
      buffers[s].Write(rank, *streams[s], 100 * round + s);
      TY_RETURN_IF_ERROR(rank.links->Exchange(*streams[s], buffers[s].transfers));
    }
  }
  for (int i = 0; i < kStreams; ++i) {
    const int s = (i + rank.rank()) % kStreams;
    TY_RETURN_IF_ERROR(buffers[s].Check(rank, *streams[s], 100 * (kRounds - 1) + s));
  }
  return absl::OkStatus();
}

TEST(NcclCommunicator, ManyStreamsExchangeInTheOrderOfCalls) {
  TY_NEEDS_GPUS(3);
  EXPECT_THAT(RunRanks(3, UseManyStreams), Each(""));
}

TEST(NcclCommunicator, AnotherStreamGoesOnBehindAnEvent) {
  TY_NEEDS_GPUS(2);
  EXPECT_THAT(RunRanks(2,
                       [](GpuRank& rank, const Gang::Say&) -> absl::Status {
                         const std::unique_ptr<kernels::Stream> copies = rank.device->MakeStream();
                         const std::unique_ptr<kernels::Event> written = rank.device->MakeEvent();
                         const std::unique_ptr<kernels::Event> exchanged = rank.device->MakeEvent();
                         const Buffers buffers(rank, 70'001);
                         buffers.Write(rank, *copies, 7);
                         rank.device->RecordEvent(*written, *copies);
                         rank.device->StreamWait(*rank.stream, *written);
                         TY_RETURN_IF_ERROR(rank.links->Exchange(*rank.stream, buffers.transfers));
                         rank.device->RecordEvent(*exchanged, *rank.stream);
                         rank.device->StreamWait(*copies, *exchanged);
                         return buffers.Check(rank, *copies, 7);
                       }),
              Each(""));
}

absl::Status GatherOnDevice(GpuRank& rank, const std::vector<size_t>& bytes, size_t gap) {
  std::vector<size_t> at(1);
  for (const size_t one : bytes) at.push_back(at.back() + one + gap);
  const DeviceBytes memory(*rank.device, at.back());
  std::string expected(at.back(), '-');
  std::string before = expected;
  std::vector<absl::Span<char>> parts;
  for (int r = 0; r < rank.size(); ++r) {
    const std::string content = Content(3, r, r, bytes[r]);
    expected.replace(at[r], bytes[r], content);
    if (r == rank.rank()) before.replace(at[r], bytes[r], content);
    parts.push_back(memory.span().subspan(at[r], bytes[r]));
  }
  memory.Write(*rank.stream, before);
  TY_RETURN_IF_ERROR(rank.links->AllGather(*rank.stream, parts));
  std::string found(expected.size(), '.');
  memory.Read(*rank.stream, found.data());
  TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
  return found == expected ? absl::OkStatus() : absl::DataLossError("not what was gathered");
}

absl::Status GatherParts(GpuRank& rank, const Gang::Say&) {
  const int n = rank.size();
  for (const size_t bytes : {1, 4096, 100'003}) {
    TY_RETURN_IF_ERROR(GatherOnDevice(rank, std::vector<size_t>(n, bytes), 0));
    TY_RETURN_IF_ERROR(GatherOnDevice(rank, std::vector<size_t>(n, bytes), 5));
  }
  std::vector<size_t> other(n);
  for (int r = 0; r < n; ++r) other[r] = 1000 * r;  // the first has none
  return GatherOnDevice(rank, other, 0);
}

TEST(NcclCommunicator, PartsOfAnyLengthAreGathered) {
  TY_NEEDS_GPUS(1);
  for (const int ranks : {1, 2, 4}) {
    if (ranks > GpusHere()) break;
    EXPECT_THAT(RunRanks(ranks, GatherParts), Each("")) << ranks;
  }
}

TEST(NcclCommunicator, OneRankExchangesWithItself) {
  TY_NEEDS_GPUS(1);
  EXPECT_THAT(
      RunRanks(1,
               [](GpuRank& rank, const Gang::Say&) -> absl::Status {
                 const DeviceBytes from(*rank.device, 100), to(*rank.device, 100);
                 const std::string sent = Content(1, 0, 0, 100);
                 from.Write(*rank.stream, sent);
                 TY_RETURN_IF_ERROR(rank.links->Exchange(
                     *rank.stream, {{.peer = 0, .send = from.span(), .receive = to.span()}}));
                 std::string received(100, '-');
                 to.Read(*rank.stream, received.data());
                 TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
                 if (rank.links->bytes_sent() != 0) return absl::InternalError("counted");
                 if (!absl::StrContains(rank.links->description(), "1 rank with a GPU each")) {
                   return absl::InternalError(rank.links->description());
                 }
                 return received == sent ? absl::OkStatus() : absl::DataLossError(received);
               }),
      Each(""));
}

// An exchange, a copy of what came, and an exchange of that: as one launch, several times.
absl::Status RecordAndReplay(GpuRank& rank, const Gang::Say&) {
  constexpr size_t kBytes = 200'003;
  const int next = (rank.rank() + 1) % rank.size();
  const int last = (rank.rank() + rank.size() - 1) % rank.size();
  const DeviceBytes first(*rank.device, kBytes), second(*rank.device, kBytes);
  const DeviceBytes third(*rank.device, kBytes), fourth(*rank.device, kBytes);
  absl::Status status;
  const auto pass = [&](kernels::Stream& stream, const DeviceBytes& from, const DeviceBytes& to) {
    const absl::Status passed =
        next == last ? rank.links->Exchange(
                           stream, {{.peer = next, .send = from.span(), .receive = to.span()}})
                     : rank.links->Exchange(stream, {{.peer = next, .send = from.span()},
                                                     {.peer = last, .receive = to.span()}});
    if (status.ok()) status = passed;
  };
  const auto program = std::make_shared<kernels::Kernels>();
  program->push_back({[&](kernels::Stream& stream) { pass(stream, first, second); }});
  program->push_back({[&](kernels::Stream& stream) {
    rank.device->Copy(stream, third.span().data(), second.span().data(), kBytes);
  }});
  program->push_back({[&](kernels::Stream& stream) { pass(stream, third, fourth); }});
  for (const kernels::Kernel& kernel : *program) kernel.launch(*rank.stream);
  TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
  TY_ASSIGN_OR_RETURN(const kernels::Kernel recorded, rank.device->Record(*rank.stream, program));
  TY_RETURN_IF_ERROR(status);
  const int two_back = (last + rank.size() - 1) % rank.size();
  for (uint64_t seed = 0; seed < 5; ++seed) {
    first.Write(*rank.stream, Content(seed, rank.rank(), 0, kBytes));
    recorded.launch(*rank.stream);
    std::string found(kBytes, '-');
    fourth.Read(*rank.stream, found.data());
    TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
    if (found != Content(seed, two_back, 0, kBytes)) {
      return absl::DataLossError(absl::StrCat("replay ", seed));
    }
    // Between two launches of it there may be others.
    TY_RETURN_IF_ERROR(ExchangeOnce(rank, 10, seed));
  }
  return absl::OkStatus();
}

TEST(NcclCommunicator, ARecordingWithExchangesIsReplayed) {
  TY_NEEDS_GPUS(2);
  for (const int ranks : {2, 3}) {
    if (ranks > GpusHere()) break;
    EXPECT_THAT(RunRanks(ranks, RecordAndReplay), Each("")) << ranks;
  }
}

// What NCCL does for one GPU alone: all of its calls, on the machine that has no more.
absl::Status LinkWithItself(GpuRank& rank, const Gang::Say&) {
  TY_ASSIGN_OR_RETURN(const kernels::LinksId name, rank.device->NameLinks());
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Links> links, rank.device->Link(name, 0, 1));
  absl::Status status;
  const auto settle = [&](absl::Status called) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    absl::StatusOr<bool> ready = false;
    while (called.ok() && ready.ok() && !*ready && absl::Now() < until) ready = links->Ready();
    if (status.ok()) status = !called.ok() ? called : ready.status();
    if (status.ok() && !*ready) status = absl::DeadlineExceededError("not ready");
  };
  settle(absl::OkStatus());
  constexpr size_t kBytes = 100'003;
  const DeviceBytes from(*rank.device, kBytes), to(*rank.device, kBytes);
  const auto program = std::make_shared<kernels::Kernels>();
  program->push_back({[&](kernels::Stream& stream) {
    settle(links->Exchange(stream, {{.peer = 0,
                                     .send = from.span().data(),
                                     .send_bytes = kBytes,
                                     .receive = to.span().data(),
                                     .receive_bytes = kBytes}}));
    settle(links->Gather(stream, {{.data = to.span().data(), .bytes = kBytes}}));
  }});
  program->front().launch(*rank.stream);
  TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
  TY_ASSIGN_OR_RETURN(kernels::Kernel recorded, rank.device->Record(*rank.stream, program));
  TY_RETURN_IF_ERROR(status);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::string sent = Content(seed, 0, 0, kBytes);
    from.Write(*rank.stream, sent);
    recorded.launch(*rank.stream);
    std::string received(kBytes, '-');
    to.Read(*rank.stream, received.data());
    TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
    if (received != sent) return absl::DataLossError("not what was sent");
  }
  recorded = {};
  return links->Close();
}

TEST(NcclCommunicator, OneGpuIsLinkedWithItself) {
  TY_NEEDS_GPUS(1);
  EXPECT_THAT(RunRanks(1, LinkWithItself), Each(""));
}

// Rank 0 waits for its GPU, which needs that of rank 1, whose host waits for rank 0 meanwhile.
TEST(NcclCommunicator, AGpuDoesItsPartWhateverItsHostWaitsFor) {
  TY_NEEDS_GPUS(2);
  EXPECT_THAT(RunRanks(2,
                       [](GpuRank& rank, const Gang::Say&) -> absl::Status {
                         const Buffers buffers(rank, 300'000);
                         buffers.Write(rank, *rank.stream, 1);
                         TY_RETURN_IF_ERROR(rank.links->Exchange(*rank.stream, buffers.transfers));
                         if (rank.rank() == 0) TY_RETURN_IF_ERROR(rank.Await(*rank.stream));
                         TY_RETURN_IF_ERROR(rank.host->Barrier());
                         return buffers.Check(rank, *rank.stream, 1);
                       }),
              Each(""));
}

TEST(NcclCommunicator, RanksThatCallInDifferentOrdersHangUntilPatienceIsOver) {
  TY_NEEDS_GPUS(2);
  const auto ranks = TestRendezvous(2, LinkKind::kMemory);
  Gang gang(ranks, MeetingOnGpus([](GpuRank& rank, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(ExchangeOnce(rank, 10, 1));
              // Rank 0 gathers before it exchanges, rank 1 exchanges before it gathers.
              const Buffers buffers(rank, 4096);
              const DeviceBytes block(*rank.device, 8192);
              const std::vector<absl::Span<char>> parts = {block.span().subspan(0, 4096),
                                                           block.span().subspan(4096)};
              rank.links->SetPatience(absl::Milliseconds(400));
              if (rank.rank() == 0) {
                TY_RETURN_IF_ERROR(rank.links->AllGather(*rank.stream, parts));
              }
              TY_RETURN_IF_ERROR(rank.links->Exchange(*rank.stream, buffers.transfers));
              if (rank.rank() == 1) {
                TY_RETURN_IF_ERROR(rank.links->AllGather(*rank.stream, parts));
              }
              return rank.Await(*rank.stream);
            }));
  EXPECT_THAT(gang.Results(),
              Each(AllOf(HasSubstr("within 400ms"), HasSubstr(Name(ranks, 0)),
                         HasSubstr(Name(ranks, 1)), HasSubstr("does not make the same calls"))));
}

TEST(NcclCommunicator, ARankThatIsKilledInARecordingThatRunsIsNamed) {
  TY_NEEDS_GPUS(3);
  const auto ranks = TestRendezvous(3, LinkKind::kMemory);
  Gang gang(ranks, MeetingOnGpus([](GpuRank& rank, const Gang::Say& say) -> absl::Status {
              const Buffers buffers(rank, 1 << 20);
              const auto program = std::make_shared<kernels::Kernels>();
              program->push_back({[&](kernels::Stream& stream) {
                (void)rank.links->Exchange(stream, buffers.transfers);  // Await tells
              }});
              program->front().launch(*rank.stream);
              TY_ASSIGN_OR_RETURN(const kernels::Kernel recorded,
                                  rank.device->Record(*rank.stream, program));
              for (int i = 0;; ++i) {
                recorded.launch(*rank.stream);
                if (absl::Status status = rank.Await(*rank.stream); !status.ok()) {
                  // It stays failed, and what was enqueued has ended.
                  if (rank.links->Exchange(*rank.stream, buffers.transfers) != status ||
                      rank.Await(*rank.stream) != status || rank.links->Health() != status) {
                    return absl::InternalError("another failure");
                  }
                  TY_RETURN_IF_ERROR(rank.device->Synchronize(*rank.stream));
                  return status;
                }
                if (i == 2) say("replayed");
              }
            }));
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(gang.Hears(r, "replayed"));
  const absl::Time start = absl::Now();
  gang.Signal(1, SIGKILL);
  for (const int r : {0, 2}) {
    EXPECT_EQ(gang.Result(r), absl::StrCat("UNAVAILABLE: ", Name(ranks, 1), " ended"));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(NcclCommunicator, ARankThatLeavesWhatIsNotDoneMakesTheOthersFail) {
  TY_NEEDS_GPUS(2);
  const auto ranks = TestRendezvous(2, LinkKind::kMemory);
  Gang gang(ranks, MeetingOnGpus([](GpuRank& rank, const Gang::Say&) -> absl::Status {
              TY_RETURN_IF_ERROR(ExchangeOnce(rank, 10, 1));
              // Both receive what nobody sends, and rank 1 leaves without waiting. The memory is
              // the device's: to free it would be to wait.
              TY_ASSIGN_OR_RETURN(void* const memory, rank.device->Allocate(10));
              TY_RETURN_IF_ERROR(rank.links->Exchange(
                  *rank.stream,
                  {{.peer = 1 - rank.rank(), .receive = {static_cast<char*>(memory), 10}}}));
              return rank.rank() == 1 ? absl::OkStatus() : rank.Await(*rank.stream);
            }));
  EXPECT_THAT(gang.Result(0), AllOf(HasSubstr(absl::StrCat("CANCELLED: ", Name(ranks, 1))),
                                    HasSubstr("is not done at their end")));
  EXPECT_EQ(gang.Result(1), "");
}

// Meets on hosts, and then only with those who do.
Gang::Body MeetingLate(std::function<absl::Status(GpuRank&, const Gang::Say&)> before,
                       absl::Duration timeout) {
  return [=](const Rendezvous& rendezvous, const Gang::Say& say) -> std::string {
    GpuRank rank;
    auto host = Meet(rendezvous);
    if (!host.ok()) return host.status().ToString();
    rank.host = *std::move(host);
    absl::Status status = before(rank, say);
    if (!status.ok()) return status.ToString();
    if (rank.device == nullptr) {
      auto device = OpenGpuOf(rendezvous.rank);
      if (!device.ok()) return device.status().ToString();
      rank.device = *std::move(device);
    }
    auto links = NcclCommunicator::Make(*rank.device, *rank.host, timeout);
    return links.ok() ? "" : links.status().ToString();
  };
}

// Waits for the others to give up.
absl::Status StayAway(GpuRank& rank) {
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (rank.host->Failure().ok() && absl::Now() < until) std::this_thread::yield();
  return rank.host->Failure();
}

TEST(NcclCommunicator, ARankThatDoesNotComeIsNamedInTime) {
  TY_NEEDS_GPUS(3);
  const auto ranks = TestRendezvous(3, LinkKind::kMemory);
  const absl::Time start = absl::Now();
  Gang gang(ranks, MeetingLate(
                       [](GpuRank& rank, const Gang::Say&) {
                         return rank.rank() == 2 ? StayAway(rank) : absl::OkStatus();
                       },
                       absl::Milliseconds(500)));
  EXPECT_THAT(gang.Results(),
              Each(AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(Name(ranks, 2)))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(NcclCommunicator, ARankThatIsKilledBeforeItComesIsNamed) {
  TY_NEEDS_GPUS(3);
  const auto ranks = TestRendezvous(3, LinkKind::kMemory);
  Gang gang(ranks, MeetingLate(
                       [](GpuRank& rank, const Gang::Say& say) {
                         say("here");
                         return rank.rank() == 1 ? StayAway(rank) : absl::OkStatus();
                       },
                       absl::Seconds(20)));
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(gang.Hears(r, "here"));
  gang.Signal(1, SIGKILL);
  for (const int r : {0, 2}) {
    EXPECT_EQ(gang.Result(r), absl::StrCat("UNAVAILABLE: ", Name(ranks, 1), " ended"));
  }
}

// A device of no use.
class UnlinkedDevice : public kernels::Device {
 public:
  std::string Description() const override { return "a toy"; }
  std::map<std::string, std::string> Arithmetic() const override { return {}; }
  absl::StatusOr<void*> Allocate(size_t) override { return Never(); }
  void Free(void*) override {}
  std::unique_ptr<kernels::Stream> MakeStream() override { return nullptr; }
  void CopyIn(kernels::Stream&, void*, const void*, size_t) override {}
  void CopyOut(kernels::Stream&, void*, const void*, size_t) override {}
  void Copy(kernels::Stream&, void*, const void*, size_t) override {}
  absl::Status Synchronize(kernels::Stream&) override { return Never(); }
  absl::StatusOr<kernels::Kernel> Record(kernels::Stream&,
                                         std::shared_ptr<const kernels::Kernels>) override {
    return Never();
  }

 private:
#define TY_BIND(Op) \
  absl::StatusOr<kernels::Kernel> Bind(const kernels::Op&) override { return Never(); }
  TY_FOR_EACH_OP(TY_BIND)
#undef TY_BIND
  static absl::Status Never() { return absl::UnimplementedError("a toy"); }
};

TEST(NcclCommunicator, ARankWhoseDeviceCannotBeLinkedSaysSoToAll) {
  TY_NEEDS_GPUS(2);
  for (const int without : {0, 1}) {
    const auto ranks = TestRendezvous(2, LinkKind::kMemory);
    Gang gang(ranks, MeetingLate(
                         [without](GpuRank& rank, const Gang::Say&) -> absl::Status {
                           if (rank.rank() != without) return absl::OkStatus();
                           rank.device = std::make_unique<UnlinkedDevice>();
                           return absl::OkStatus();
                         },
                         absl::Seconds(20)));
    EXPECT_THAT(gang.Results(), Each(AllOf(HasSubstr(Name(ranks, without)),
                                           HasSubstr("is linked with no other device"))))
        << without;
  }
}

}  // namespace
}  // namespace trainyard::engine::testing
