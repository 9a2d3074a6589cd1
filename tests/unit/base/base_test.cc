#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "storage/base/arithmetic.h"
#include "storage/base/clock.h"
#include "storage/base/digest.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/process_stat.h"
#include "storage/base/retry_pause.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Arithmetic, IsReadBackFromItsText) {
  const Arithmetic cpu = {{"device", "CPU"}, {"loops", "avx512"}, {"caches", "32, 2048 KiB"}};
  EXPECT_EQ(ArithmeticToText(cpu), "caches: 32, 2048 KiB; device: CPU; loops: avx512");
  EXPECT_EQ(ArithmeticFromText(ArithmeticToText(cpu)), cpu);
  EXPECT_TRUE(ArithmeticFromText("").empty());
}

TEST(Arithmetic, IsUnknownWhereTheTextIsNot) {
  std::string many = "n0: v";
  for (size_t i = 1; i <= kMostArithmeticValues; ++i) many += "; n" + std::to_string(i) + ": v";
  for (const std::string& text :
       {std::string("device"), std::string("device: "), std::string(": CPU"),
        std::string("a: 1; a: 2"), std::string("a: 1;b: 2"), std::string("a: 1; "),
        std::string("a: \n"), "a: " + std::string(kLongestArithmeticText + 1, 'x'), many}) {
    EXPECT_TRUE(ArithmeticFromText(text).empty()) << text;
  }
}

TEST(Arithmetic, WhatIsUnknownIsTheSameAsNothing) {
  const Arithmetic cpu = {{"device", "CPU"}};
  EXPECT_TRUE(SameArithmetic(cpu, cpu));
  EXPECT_FALSE(SameArithmetic({}, cpu));
  EXPECT_FALSE(SameArithmetic(cpu, {}));
  EXPECT_FALSE(SameArithmetic({}, {}));
}

TEST(Arithmetic, CachesAndTheCLibraryAreNotKnownToChangeBits) {
  EXPECT_EQ(CertainArithmetic(
                {{"caches", "32 KiB"}, {"device", "CPU"}, {"glibc", "2.36"}, {"loops", "avx2"}}),
            (Arithmetic{{"device", "CPU"}, {"loops", "avx2"}}));
}

TEST(Arithmetic, SaysWhatDiffers) {
  const Arithmetic wide = {{"device", "CPU"}, {"loops", "avx512"}, {"engine", "1"}};
  const Arithmetic narrow = {
      {"device", "CPU"}, {"loops", "avx2"}, {"caches", "32 KiB"}, {"engine", "1"}};
  EXPECT_EQ(ArithmeticDifference(wide, "before", wide, "now"), "");
  EXPECT_EQ(ArithmeticDifference(wide, "on rank 0", narrow, "on rank 2"),
            "caches: unknown on rank 0, 32 KiB on rank 2; loops: avx512 on rank 0, avx2 on rank 2");
  EXPECT_EQ(ArithmeticDifference({}, "before", {{"device", "CPU"}}, "now"),
            "unknown before, device: CPU now");
  EXPECT_EQ(ArithmeticDifference({{"device", "CPU"}}, "before", {}, "now"),
            "device: CPU before, unknown now");
}

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "trainyard-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(FileTest, AtomicWriteReplacesTheOldContentAndLeavesNoTemporary) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two", 0600).ok());
  EXPECT_EQ(ReadFile(path).value(), "two");
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST(Errno, IsTheCallersOrTheMachines) {
  const auto code = [](int error) { return ErrnoStatus(error, "f").code(); };
  EXPECT_EQ(code(ENOENT), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(EACCES), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(EDQUOT), absl::StatusCode::kResourceExhausted);
  for (const int error : {EISDIR, ELOOP, ENAMETOOLONG}) {
    EXPECT_EQ(code(error), absl::StatusCode::kInvalidArgument) << error;
  }
  for (const int error : {EIO, ESTALE, EMFILE, ENFILE, ENOMEM}) {
    EXPECT_EQ(code(error), absl::StatusCode::kInternal) << error;
  }
  EXPECT_EQ(ErrnoStatus(EIO, "f").message(), "f: Input/output error");
}

TEST_F(FileTest, AtomicWriteIntoAMissingFolderSaysWhich) {
  const absl::Status status = WriteFileAtomically(folder_ + "/no/a", "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + "/no/a"));
}

TEST_F(FileTest, AFullDiskIsResourceExhausted) {
  FileDescriptor full(open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full.valid());
  EXPECT_EQ(WriteAll(full.get(), "x", "disk").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FileTest, ReadFileRefusesMoreThanItsLimit) {
  const std::string path = folder_ + "/big";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(1001, 'x')).ok());
  EXPECT_EQ(ReadFile(path, 1000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(path, 1001)->size(), 1001u);
}

TEST_F(FileTest, MakeDirectoriesIsIdempotentAndRefusesAFileInTheWay) {
  ASSERT_TRUE(MakeDirectories(folder_ + "/a/b/c").ok());
  ASSERT_TRUE(MakeDirectories(folder_ + "/a/b/c").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/f", "x").ok());
  EXPECT_FALSE(MakeDirectories(folder_ + "/f").ok());
  EXPECT_FALSE(MakeDirectories(folder_ + "/f/g").ok());
}

TEST_F(FileTest, ADescriptorClosesWhenReplaced) {
  FileDescriptor a(open("/dev/null", O_RDONLY));
  const int old = a.get();
  a = FileDescriptor(open("/dev/zero", O_RDONLY));
  EXPECT_NE(a.get(), -1);
  if (a.get() != old) {
    EXPECT_EQ(fcntl(old, F_GETFD), -1);
  }
}

TEST(DigestTest, MatchesTheVectorsOfFips180) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 parts;
  parts.Add("a");
  parts.Add("bc");
  EXPECT_EQ(parts.Finish(), Sha256Hex("abc"));
}

TEST(IdsTest, RandomHexHasItsLengthAndDoesNotRepeat) {
  EXPECT_EQ(RandomHex(16).size(), 32u);
  EXPECT_NE(RandomHex(16), RandomHex(16));
}

TEST(IdsTest, ResourceIdsAreChecked) {
  EXPECT_TRUE(IsResourceId("a"));
  EXPECT_TRUE(IsResourceId("char-gpt-2"));
  EXPECT_TRUE(IsResourceId(std::string(63, 'a')));
  for (const char* wrong : {"", "-a", "a-", "1a", "A", "a_b", "a/b", "ä", ".."}) {
    EXPECT_FALSE(IsResourceId(wrong)) << wrong;
  }
  EXPECT_FALSE(IsResourceId(std::string(64, 'a')));
}

TEST(IdsTest, MadeIdsAreResourceIdsWhateverTheHint) {
  for (const char* hint : {"Char GPT", "", "---", "123", "../../etc", "überlang  name!"}) {
    EXPECT_TRUE(IsResourceId(MakeJobId(hint))) << MakeJobId(hint);
  }
  EXPECT_TRUE(IsResourceId(MakeJobId(std::string(500, 'x'))));
  EXPECT_THAT(MakeJobId("Char GPT"), StartsWith("char-gpt-"));
}

TEST(SuggestTest, FindsTheNearestNameAndOnlyANearOne) {
  const std::vector<std::string> names = {"batch_size", "micro_batch_size", "steps", "seed"};
  EXPECT_EQ(DidYouMean("batchsize", names), " (did you mean 'batch_size'?)");
  EXPECT_EQ(DidYouMean("setps", names), " (did you mean 'steps'?)");
  EXPECT_EQ(DidYouMean("learning", names), "");
  EXPECT_EQ(DidYouMean(std::string(100000, 'x'), names), "");
}

TEST(SuggestTest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("abc", "acb"), 1);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(RetryPauseTest, DoublesUpToTheLongestAndBeginsAgainAfterASuccess) {
  RetryPause pause(absl::Milliseconds(10), absl::Milliseconds(35));
  for (const int ms : {10, 20, 35, 35}) EXPECT_EQ(pause.Next(), absl::Milliseconds(ms));
  pause.Reset();
  EXPECT_EQ(pause.Next(), absl::Milliseconds(10));
  EXPECT_EQ(RetryPause(absl::Seconds(2), absl::Seconds(1)).Next(), absl::Seconds(1));
}

TEST(ClockTest, AFakeClockMovesOnlyWhenTold) {
  FakeClock clock;
  const absl::Time before = clock.Now();
  EXPECT_EQ(clock.Now(), before);
  clock.Advance(absl::Seconds(3));
  EXPECT_EQ(clock.Now() - before, absl::Seconds(3));
  EXPECT_EQ(clock.SinceBoot(), absl::Seconds(3));
}

TEST(ClockTest, TimeSinceBootDoesNotGoBack) {
  const absl::Duration first = SystemClock().SinceBoot();
  EXPECT_LE(first, SystemClock().SinceBoot());
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(n, " is odd"));
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  TY_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

TEST(StatusTest, AssignOrReturnHandsTheErrorOn) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
}

TEST(StatusDeathTest, ABrokenCheckShowsItsValues) {
  const int n = 3;
  EXPECT_DEATH(TY_CHECK(n == 4, "n = ", n), "n == 4: n = 3");
}

TEST(Printable, KeepsUtf8AndReplacesEverythingElse) {
  EXPECT_EQ(Printable("plain\n\tz\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80"),
            "plain\n\tz\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(Printable("a\xff"
                      "b\xc3"),
            "a?b?");
  EXPECT_EQ(Printable("\xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80"), "?? ??? ????");  // forbidden forms
  EXPECT_EQ(Printable(absl::string_view("\x1b[31m\x7f\0x", 8)), "?[31m??x");
}

TEST(Escaped, TextIsShownAndNotObeyed) {
  EXPECT_EQ(EscapedLine("z\xc3\xbc\\ \xf0\x9f\x98\x80"), "z\xc3\xbc\\ \xf0\x9f\x98\x80");
  EXPECT_EQ(EscapedLine("a\x1b[2Jb\r\n\tc\x7f"), "a\\x1b[2Jb\\x0d\\n\\tc\\x7f");
  EXPECT_EQ(EscapedLine("\xc2\x9b"
                        "31m"),
            "\\x9b31m");  // C1: another way to say ESC [
  EXPECT_EQ(EscapedLine("\xe2\x80\xae"
                        "gnp.exe\xe2\x81\xa6"),
            "\\u202egnp.exe\\u2066");
  EXPECT_EQ(EscapedLine("\xff\xe2\x80"), "\\xff\\xe2\\x80");
  EXPECT_EQ(EscapedLine(absl::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(EscapedLines("a\n\tb\x1b"), "a\n\tb\\x1b");
}

TEST(Escaped, UnfinishedCharactersAreCounted) {
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, size_t>>{{"", 0},
                                                   {"a", 0},
                                                   {"a\xc3", 1},
                                                   {"a\xc3\xbc", 0},
                                                   {"\xf0\x9f\x98", 3},
                                                   {"\xf0\x9f\x98\x80", 0},
                                                   {"\xe2\x80", 2},
                                                   {"\x80\x80\x80\x80", 0}}) {
    EXPECT_EQ(UnfinishedBytes(text), bytes);
  }
}

// A server that was killed has its port until the last of its threads is gone; the first may go
// before the others.
TEST(ProcessStat, AProcessLivesAsLongAsAnyOfItsThreads) {
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] {
      for (;;) pause();
    }).detach();
    syscall(SYS_exit, 0);  // this thread alone
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  ProcessStat stat;
  while (stat.state != 'Z' && absl::Now() < deadline) stat = ReadProcessStat(child).value();
  EXPECT_EQ(stat.state, 'Z') << "the first thread has not ended";
  EXPECT_EQ(stat.parent, getpid());
  EXPECT_TRUE(stat.alive());
  kill(child, SIGKILL);
  while (stat.alive() && absl::Now() < deadline) stat = ReadProcessStat(child).value();
  EXPECT_FALSE(stat.alive()) << "nobody has waited for it yet";
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ReadProcessStat(child).ok());
}

}  // namespace
}  // namespace trainyard
