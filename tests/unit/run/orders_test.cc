#include "executor/run/orders.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "executor/run/confinement.h"

namespace trainyard::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OrdersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    agent_.Reset(ends[0]);
    worker_.Reset(ends[1]);
  }
  // Reads until the line is whole.
  absl::StatusOr<Orders> Receive() {
    while (!reader_.done()) {
      const absl::Status read = reader_.Read(worker_.get());
      if (!read.ok()) return read;
    }
    return ParseOrders(reader_.line());
  }
  FileDescriptor agent_, worker_;
  OrdersReader reader_;
};

TEST_F(OrdersTest, ArriveWithTheFileInMemory) {
  const FileDescriptor file(memfd_create("state", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "what was left", 13), 13);
  const Orders sent{
      .run_directory = ".",
      .device = "cuda:1",
      .threads = 3,
      .kept_state_room = int64_t{5} << 32,
      .user = UnixUser{.name = "ann", .uid = 1001, .gid = 100, .groups = {100, 7}, .home = "/home"},
      .environment = {{"AWS_REGION", "\"x\\n"}}};
  ASSERT_TRUE(GiveOrders(agent_.get(), sent, file.get()).ok());
  const auto orders = Receive();
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_EQ(orders->run_directory, ".");
  EXPECT_EQ(orders->device, "cuda:1");
  EXPECT_EQ(orders->threads, 3);
  EXPECT_EQ(orders->kept_state_room, sent.kept_state_room);
  EXPECT_EQ(orders->environment, sent.environment);
  ASSERT_TRUE(orders->user.has_value());
  EXPECT_EQ(orders->user->name, "ann");
  EXPECT_EQ(orders->user->uid, 1001u);
  EXPECT_THAT(orders->user->groups, ElementsAre(100, 7));
  char bytes[64] = {};
  EXPECT_EQ(pread(reader_.TakeState().get(), bytes, sizeof bytes, 0), 13);
  EXPECT_STREQ(bytes, "what was left");
}

TEST_F(OrdersTest, OfAnAgentOfBeforeComeThroughAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  worker_.Reset(ends[0]);
  agent_.Reset(ends[1]);
  const std::string line = "{\"run_dir\": \"/r\", \"device\": \"cpu\", \"threads\": 2}\n";
  ASSERT_EQ(write(agent_.get(), line.data(), line.size()), ssize_t(line.size()));
  const auto orders = Receive();
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_EQ(orders->run_directory, "/r");
  EXPECT_FALSE(orders->user.has_value());
  EXPECT_FALSE(reader_.TakeState().valid());
}

TEST_F(OrdersTest, MayHaveSomethingBehindThem) {
  ASSERT_TRUE(GiveOrders(agent_.get(), {.run_directory = ".", .device = "cpu"}, -1).ok());
  ASSERT_EQ(write(agent_.get(), "a\nb", 3), 3);
  ASSERT_TRUE(Receive().ok());
  EXPECT_EQ(reader_.rest(), "a\nb");
}

TEST_F(OrdersTest, EndWithTheAgent) {
  agent_.Reset(-1);
  EXPECT_EQ(Receive().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(OrdersTest, ThatLackSomethingAreRefused) {
  for (const char* line : {"", "{", "[]", "{\"run_dir\": 3, \"device\": \"cpu\", \"threads\": 1}",
                           "{\"run_dir\": \"/r\", \"threads\": 1}",
                           "{\"run_dir\": \"/r\", \"device\": \"cpu\", \"threads\": 1, "
                           "\"user\": {\"uid\": 1}}"}) {
    EXPECT_EQ(ParseOrders(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

// A worker of before would take the folder and run as the agent.
TEST_F(OrdersTest, ForAUserAreNoneToAWorkerThatKnowsNoUsers) {
  ASSERT_TRUE(
      GiveOrders(agent_.get(), {.run_directory = ".", .device = "cpu", .user = UnixUser()}, -1)
          .ok());
  ASSERT_TRUE(Receive().ok());
  EXPECT_THAT(reader_.line(), ::testing::Not(HasSubstr("\"run_dir\"")));
}

// Nor one that would not know the roots.
TEST_F(OrdersTest, WithinRootsAreNoneToAWorkerThatKnowsNoRoots) {
  ASSERT_TRUE(
      GiveOrders(agent_.get(), {.run_directory = "/r", .device = "cpu", .confined = true}, -1)
          .ok());
  const auto orders = Receive();
  ASSERT_TRUE(orders.ok()) << orders.status();
  EXPECT_TRUE(orders->confined);
  EXPECT_EQ(orders->run_directory, "/r");
  EXPECT_THAT(reader_.line(), ::testing::Not(HasSubstr("\"run_dir\"")));
}

TEST(Confinement, SurvivesTheEnvironment) {
  const Roots roots{.data = {"/a:b", "/c\"d"}, .checkpoints = {}};
  const auto read = ParseConfinement(FormatConfinement(roots).c_str());
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  EXPECT_THAT((*read)->data, ElementsAre("/a:b", "/c\"d"));
  EXPECT_FALSE(ParseConfinement(nullptr)->has_value());
  EXPECT_FALSE(ParseConfinement("{").ok());
  EXPECT_FALSE(ParseConfinement("{\"data\": 1}").ok());
}

}  // namespace
}  // namespace trainyard::run
