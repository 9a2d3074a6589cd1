#include "executor/data/images/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/data/files.h"
#include "tests/unit/data/images/encoders.h"

namespace trainyard::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Listing {
  std::vector<std::string> names, contents, faults;  // a fault or a content each
  absl::Status status;
};

Listing List(const std::string& file) {
  const Folder folder;
  Listing listing;
  auto tar = TarReader::Open(folder.Write("a.tar", file));
  EXPECT_TRUE(tar.ok()) << tar.status();
  for (;;) {
    const auto member = tar->Next();
    listing.status = member.status();
    if (!member.ok() || !member->has_value()) return listing;
    listing.names.push_back((*member)->name);
    if (!(*member)->fault.empty()) {
      listing.faults.push_back((*member)->fault);
      continue;
    }
    std::string content(static_cast<size_t>((*member)->bytes), '\0');
    EXPECT_TRUE(ReadExactly(tar->file(), (*member)->offset, content.data(), (*member)->bytes).ok());
    listing.contents.push_back(content);
  }
}

const char* const kGnuMagic = "ustar  ";

TEST(Tar, HasItsMembersInOrder) {
  const std::string long_content(1500, 'x');
  const Listing listing = List(TarFile({{.name = "a/", .type = '5'},
                                        {.name = "a/1.jpg", .content = long_content},
                                        {.name = "./2.cls", .content = ""},
                                        {.name = "3", .content = "y", .type = '\0'}}));
  EXPECT_TRUE(listing.status.ok()) << listing.status;
  EXPECT_THAT(listing.names, ElementsAre("a/1.jpg", "./2.cls", "3"));
  EXPECT_THAT(listing.contents, ElementsAre(long_content, "", "y"));
}

TEST(Tar, MayLackItsEnd) {
  EXPECT_THAT(List("").names, IsEmpty());
  EXPECT_TRUE(List("").status.ok());
  const Listing listing = List(TarBlocks({.name = "a", .content = "1"}));
  EXPECT_TRUE(listing.status.ok());
  EXPECT_THAT(listing.names, ElementsAre("a"));
}

TEST(Tar, HasLongNamesInEveryDialect) {
  const std::string name = std::string(150, 'd') + "/" + std::string(120, 'f');
  const std::string magic = std::string(kGnuMagic) + '\0';
  const Listing listing = List(TarFile(
      {{.name = "tail.jpg", .content = "1", .prefix = "head/of"},
       {.name = "././@LongLink", .content = name + '\0', .type = 'L', .magic = magic},
       {.name = name, .content = "2", .magic = magic},
       {.name = "pax", .content = PaxRecord("mtime", "1.5") + PaxRecord("path", name), .type = 'x'},
       {.name = "short", .content = "3"},
       {.name = "pax", .content = PaxRecord("comment", "for all"), .type = 'g'},
       {.name = "last", .content = "4"}}));
  EXPECT_TRUE(listing.status.ok()) << listing.status;
  EXPECT_THAT(listing.names, ElementsAre("head/of/tail.jpg", name, name, "last"));
  EXPECT_THAT(listing.contents, ElementsAre("1", "2", "3", "4"));
}

TEST(Tar, TakesTheSizeOfAnExtendedHeader) {
  const Listing listing =
      List(TarFile({{.name = "pax", .content = PaxRecord("size", "3"), .type = 'x'},
                    {.name = "a", .content = "abc", .stated_bytes = 0},
                    {.name = "b", .content = "d"}}));
  EXPECT_TRUE(listing.status.ok()) << listing.status;
  EXPECT_THAT(listing.contents, ElementsAre("abc", "d"));
}

TEST(Tar, NamesWhatIsNoMemberToRead) {
  const Listing listing = List(
      TarFile({{.name = "../up"},
               {.name = "a/../../up"},
               {.name = "/etc/passwd"},
               {.name = ""},
               {.name = "hard", .type = '1'},
               {.name = "soft", .type = '2'},
               {.name = "device", .type = '3'},
               {.name = "sparse", .content = "x", .type = 'S'},
               {.name = "p", .content = PaxRecord("GNU.sparse.major", "1"), .type = 'x'},
               {.name = "pax-sparse", .content = "x"},
               {.name = "p", .content = PaxRecord("path", std::string("a\0b", 3)), .type = 'x'},
               {.name = "zero"},
               {.name = "other", .type = 'Z'},
               {.name = "..fine", .content = "!"}}));
  EXPECT_TRUE(listing.status.ok()) << listing.status;
  EXPECT_THAT(listing.faults,
              ElementsAre("a path that leaves the archive", "a path that leaves the archive",
                          "an absolute path", "a member without a name", "a hard link",
                          "a symbolic link", "a special file", "a sparse file", "a sparse file",
                          "a name with a zero byte", "a member of type 'Z'"));
  EXPECT_THAT(listing.contents, ElementsAre("!"));
}

struct Broken {
  const char* what;
  std::string file;
  const char* message;
};

TEST(Tar, ThatIsBrokenIsRefusedWithThePlace) {
  const std::string good = TarBlocks({.name = "a", .content = "1"});
  std::string negative = TarBlocks({.name = "a"});
  negative.replace(124, 12, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
  std::string letters = TarBlocks({.name = "a"});
  letters.replace(124, 12, "0000000000z ");
  const auto resum = [](std::string header) {
    header.replace(148, 8, "        ");
    int64_t sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    char text[8];
    snprintf(text, sizeof(text), "%06o", static_cast<unsigned>(sum));
    return header.replace(148, 7, text, 7);
  };
  const Broken cases[] = {
      {"gzip", std::string("\x1f\x8b\x08", 3) + std::string(600, 'x'),
       "byte 0: found 'xxxxxxxx', expected the ustar mark of a tar header (compressed"},
      {"half a header", good + "abc", "byte 1024: found 3 bytes, expected a header"},
      {"checksum", TarBlocks({.name = "a", .stated_checksum = 7}),
       "found a header with checksum 7, expected"},
      {"old format", TarBlocks({.name = "a", .magic = std::string(8, '\0')}),
       "expected the ustar mark"},
      {"truncated", TarBlocks({.name = "a", .content = "x", .stated_bytes = 5000}),
       "found a content of 5000 bytes, but the file ends after 512; is it truncated?"},
      {"huge", resum(negative), "found size"},
      {"no number", resum(letters), "found size '0000000000z ', expected an octal number"},
      {"folder with content", TarBlocks({.name = "a/", .content = "x", .type = '5'}),
       "found 1 bytes of content in a folder, expected none"},
      {"link with content", TarBlocks({.name = "a", .content = "x", .type = '2'}),
       "found 1 bytes of content in a symbolic link, expected none"},
      {"joined", TarFile({{.name = "a"}}) + TarFile({{.name = "b"}}),
       "the archive ends here, but the file goes on"},
      {"record", TarBlocks({.name = "p", .content = "99 path=x\n", .type = 'x'}) + good,
       "found '99 path=x\\n' in an extended header, expected LENGTH KEY=VALUE"},
      {"record length", TarBlocks({.name = "p", .content = "3 x", .type = 'x'}) + good,
       "in an extended header"},
      {"size", TarBlocks({.name = "p", .content = PaxRecord("size", "-1"), .type = 'x'}) + good,
       "found size='-1', expected a number"},
      {"lying size",
       TarBlocks({.name = "p", .content = PaxRecord("size", "9223372036854775807"), .type = 'x'}) +
           good,
       "found a content of 9223372036854775807 bytes"},
      {"global path",
       TarBlocks({.name = "p", .content = PaxRecord("path", "x"), .type = 'g'}) + good,
       "found path, size or a sparse map for all members"},
      {"nothing after", TarBlocks({.name = "p", .content = PaxRecord("path", "x"), .type = 'x'}),
       "found 0 bytes, expected a header"},
      {"large record",
       TarBlocks({.name = "p", .content = std::string((1 << 20) + 1, 'x'), .type = 'L'}),
       "found an extended header of 1048577 bytes, expected at most 1048576"},
  };
  for (const Broken& c : cases) {
    const Listing listing = List(c.file);
    EXPECT_EQ(listing.status.code(), absl::StatusCode::kInvalidArgument) << c.what;
    EXPECT_THAT(std::string(listing.status.message()), HasSubstr(c.message)) << c.what;
    EXPECT_THAT(std::string(listing.status.message()), HasSubstr("a.tar: byte ")) << c.what;
  }
}

}  // namespace
}  // namespace trainyard::data
