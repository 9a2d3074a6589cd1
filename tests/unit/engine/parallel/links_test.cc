// Single links, and what somebody could do to them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "absl/time/clock.h"
#include "executor/engine/parallel/handover.h"
#include "executor/engine/parallel/rendezvous.h"
#include "executor/engine/parallel/shared_memory.h"
#include "executor/engine/parallel/sockets.h"
#include "executor/engine/parallel/tcp_link.h"
#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {
namespace {

using ::testing::HasSubstr;

const LinkNames kNamesOfA = {.self = "rank 0 (a)", .peer = "rank 1 (b)"};
const LinkNames kNamesOfB = {.self = "rank 1 (b)", .peer = "rank 0 (a)"};

Session SessionOfA() {
  Session session;
  session.send_key.fill('a');
  session.receive_key.fill('b');
  return session;
}
Session SessionOfB() {
  Session session;
  session.send_key.fill('b');
  session.receive_key.fill('a');
  return session;
}

// What a link sends for `payload`, as many times as it is asked to.
std::vector<std::string> Recorded(const std::string& payload, int times) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const FileDescriptor wire(ends[1]);
  const auto link = MakeTcpLink(FileDescriptor(ends[0]), SessionOfA(), kNamesOfA);
  std::vector<std::string> messages;
  for (int i = 0; i < times; ++i) {
    link->Begin(payload, {});
    EXPECT_TRUE(link->Progress().ok());
    EXPECT_TRUE(link->done());
    char buffer[4096];
    const ssize_t n = read(wire.get(), buffer, sizeof buffer);
    messages.emplace_back(buffer, std::max<ssize_t>(n, 0));
  }
  return messages;
}

// What the other end makes of `messages`: the first failure.
absl::Status Received(const std::vector<std::string>& messages, const std::string& payload) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const FileDescriptor wire(ends[1]);
  const auto link = MakeTcpLink(FileDescriptor(ends[0]), SessionOfB(), kNamesOfB);
  for (const std::string& message : messages) {
    EXPECT_TRUE(WriteAll(wire.get(), message, "wire").ok());
    std::string received(payload.size(), '-');
    link->Begin({}, absl::MakeSpan(received));
    while (!link->done()) {
      const absl::StatusOr<bool> moved = link->Progress();
      if (!moved.ok()) return moved.status();
      if (!*moved) return absl::OutOfRangeError("more is expected");
    }
    if (received != payload) return absl::DataLossError("another message");
  }
  return absl::OkStatus();
}

TEST(TcpLink, NoByteOfAMessageCanBeChanged) {
  const std::string payload = "gradients";
  const auto messages = Recorded(payload, 1);
  ASSERT_TRUE(Received(messages, payload).ok());
  for (size_t at = 0; at < messages[0].size(); ++at) {
    auto changed = messages;
    changed[0][at] ^= 4;
    const absl::Status status = Received(changed, payload);
    EXPECT_TRUE(absl::IsUnavailable(status)) << at << " " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (a) does not verify"));
  }
}

TEST(TcpLink, MessagesCanBeNeitherRepeatedNorReordered) {
  const std::string payload = "gradients";
  const auto messages = Recorded(payload, 2);
  EXPECT_TRUE(Received(messages, payload).ok());
  EXPECT_FALSE(Received({messages[0], messages[0]}, payload).ok());
  EXPECT_FALSE(Received({messages[1], messages[0]}, payload).ok());
  // The payload of one message does not go with the header of another.
  EXPECT_FALSE(
      Received({messages[0], messages[1].substr(0, 48) + messages[0].substr(48)}, payload).ok());
}

// A connection that loses what is sent is told from one whose other end does not read.
TEST(TcpLink, AConnectionThatIsCutIsStuckAndAFullOneIsNot) {
  for (const bool cut : {false, true}) {
    auto place = LocalRendezvous(1);
    ASSERT_TRUE(place.ok());
    const FileDescriptor listener((*place)[0].listening_fd);
    auto near = ConnectTo((*place)[0].addresses[0], 0);
    ASSERT_TRUE(near.ok());
    const FileDescriptor far = AcceptFrom(listener.get());
    ASSERT_TRUE(far.valid());
    if (cut) {
      sock_filter drop_all = {BPF_RET | BPF_K, 0, 0, 0};
      sock_fprog program = {1, &drop_all};
      if (setsockopt(far.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) {
        GTEST_SKIP() << "this user may attach no filter to a socket: " << std::strerror(errno);
      }
    }
    const auto link = MakeTcpLink(*std::move(near), SessionOfA(), kNamesOfA);
    const std::string payload(32 << 20, 'x');
    link->Begin(payload, {});
    const absl::Time start = absl::Now();
    bool stuck = false;
    while (!stuck && absl::Now() - start < (cut ? absl::Seconds(10) : absl::Seconds(1))) {
      ASSERT_TRUE(link->Progress().ok());
      pollfd wait{link->fd(), link->events(), 0};
      poll(&wait, 1, 20);
      stuck = link->Stuck(absl::Milliseconds(300));
    }
    EXPECT_EQ(stuck, cut);
    EXPECT_FALSE(link->done());
  }
}

SharedMemory NewMemory(FileDescriptor& fd) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create(fd);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

TEST(SharedMemoryTest, BytesPassInOrder) {
  FileDescriptor fd;
  const SharedMemory memory = NewMemory(fd);
  RingWriter writer(memory.head().rings[0], memory.ring(0));
  RingReader reader(memory.head().rings[0], memory.ring(0));
  const std::string content = Content(3, 0, 1, 5'000'000);
  std::string received(content.size(), '-');
  absl::Span<const char> unsent = content;
  absl::Span<char> missing = absl::MakeSpan(received);
  std::minstd_rand random(7);
  while (!missing.empty()) {
    auto sent = writer.Write(unsent.first(std::min<size_t>(unsent.size(), random() % 300'000)));
    ASSERT_TRUE(sent.ok());
    unsent.remove_prefix(*sent);
    auto got = reader.Read(missing.first(std::min<size_t>(missing.size(), random() % 300'000)));
    ASSERT_TRUE(got.ok());
    missing.remove_prefix(*got);
  }
  EXPECT_EQ(received, content);
}

TEST(SharedMemoryTest, CountersThatCannotBeAreNotBelieved) {
  const uint64_t kRing = SharedMemory::kRingBytes;
  for (const uint64_t nonsense : {kRing + 101, uint64_t{99}, ~uint64_t{0}}) {
    FileDescriptor fd;
    const SharedMemory memory = NewMemory(fd);
    RingCounters& counters = memory.head().rings[0];
    RingReader reader(counters, memory.ring(0));
    std::string buffer(2 * kRing, '-');
    counters.written = 100;
    ASSERT_EQ(*reader.Read(absl::MakeSpan(buffer)), 100u);
    counters.written = nonsense;
    EXPECT_FALSE(reader.Read(absl::MakeSpan(buffer)).ok()) << nonsense;
  }
  for (const uint64_t nonsense : {kRing + 1, uint64_t{99}, ~uint64_t{0}}) {
    FileDescriptor fd;
    const SharedMemory memory = NewMemory(fd);
    RingCounters& counters = memory.head().rings[0];
    RingWriter writer(counters, memory.ring(0));
    const std::string buffer(2 * kRing, '-');
    ASSERT_EQ(*writer.Write(absl::MakeConstSpan(buffer).first(100)), 100u);
    counters.read = 100;
    ASSERT_EQ(*writer.Write(buffer), kRing);
    counters.read = nonsense;
    const bool possible = nonsense == kRing + 1;  // of kRing + 100 that were written
    EXPECT_EQ(writer.Write(buffer).ok(), possible) << nonsense;
  }
}

TEST(SharedMemoryTest, MemoryThatCouldShrinkIsNotMapped) {
  FileDescriptor fd;
  {
    const SharedMemory memory = NewMemory(fd);
    EXPECT_NE(ftruncate(fd.get(), 0), 0);
    EXPECT_TRUE(SharedMemory::Map(fd.get()).ok());
  }
  const FileDescriptor loose(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), SharedMemory::kBytes), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(loose.get()).status()));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(loose.get()).status()));
  const FileDescriptor no_memory(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Map(no_memory.get()).status()));
}

TEST(HandoverTest, FileDescriptorsArriveWithTheirWords) {
  auto a = Handover::Open();
  auto b = Handover::Open();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_FALSE(b->Receive().has_value());
  const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(a->Send(b->name(), "words", {null.get(), null.get()}).ok());
  const auto parcel = b->Receive();
  ASSERT_TRUE(parcel.has_value());
  EXPECT_EQ(parcel->words, "words");
  ASSERT_EQ(parcel->fds.size(), 2u);
  EXPECT_EQ(fcntl(parcel->fds[0].get(), F_GETFD), FD_CLOEXEC);
  EXPECT_FALSE(a->Send("trainyard-nobody", "words", {null.get()}).ok());

  absl::Status full;
  for (int i = 0; i < 10'000 && full.ok(); ++i) full = a->Send(b->name(), "w", {null.get()});
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
}

}  // namespace
}  // namespace trainyard::engine::testing
