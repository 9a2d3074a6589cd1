#include "executor/data/images/tar.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMostExtendedBytes = 1 << 20;
constexpr size_t kLongestName = 4096;
// Writers fill their last record, of 10 KiB mostly.
constexpr int64_t kMostPadding = 1 << 20;

// Fields of a header: offset and length (POSIX.1-2001, ustar).
struct Field {
  int offset, length;
};
constexpr Field kName = {0, 100}, kSize = {124, 12}, kChecksum = {148, 8}, kMagic = {257, 8},
                kPrefix = {345, 155};
constexpr int kType = 156;

absl::string_view TextOf(const char* header, Field field) {
  const char* text = header + field.offset;
  return {text, strnlen(text, field.length)};
}

// Octal digits with spaces or zero bytes around them, or GNU's big-endian binary, which sets the
// first bit.
std::optional<int64_t> NumberOf(const char* header, Field field) {
  const auto* text = reinterpret_cast<const unsigned char*>(header + field.offset);
  uint64_t value = 0;
  if ((text[0] & 0x80) != 0) {
    value = text[0] & 0x7f;
    for (int i = 1; i < field.length; ++i) {
      if (value >> 54 != 0) return std::nullopt;
      value = value << 8 | text[i];
    }
    return static_cast<int64_t>(value);
  }
  int i = 0, digits = 0;
  while (i < field.length && text[i] == ' ') ++i;
  for (; i < field.length && text[i] >= '0' && text[i] <= '7'; ++i, ++digits) {
    value = value << 3 | (text[i] - '0');
  }
  for (; i < field.length; ++i) {
    if (text[i] != ' ' && text[i] != '\0') return std::nullopt;
  }
  if (digits == 0) return std::nullopt;
  return static_cast<int64_t>(value);
}

// POSIX puts the front of a long name into a field of its own.
std::string NameOf(const char* header) {
  const absl::string_view name = TextOf(header, kName);
  const bool posix = header[kMagic.offset + 5] == '\0';
  const absl::string_view prefix = posix ? TextOf(header, kPrefix) : absl::string_view();
  return prefix.empty() ? std::string(name) : absl::StrCat(prefix, "/", name);
}

bool AllZero(const char* block) {
  return std::all_of(block, block + kBlock, [](char c) { return c == 0; });
}

int64_t ChecksumOf(const char* header) {
  int64_t sum = 0;
  for (int i = 0; i < kBlock; ++i) {
    const bool own = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.length;
    sum += own ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return sum;
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, 80)), "'");
}

// What a name of a member must not be; "" when it is fine.
std::string FaultOfName(const std::string& name) {
  if (name.empty()) return "a member without a name";
  if (name.size() > kLongestName) return "a name of more than 4096 bytes";
  if (name.find('\0') != std::string::npos) return "a name with a zero byte";
  if (name[0] == '/') return "an absolute path";
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    if (part == "..") return "a path that leaves the archive";
  }
  return "";
}

// Whether a member says something of the one that follows.
bool Extends(char type) { return type == 'x' || type == 'g' || type == 'L' || type == 'K'; }

std::string FaultOfType(char type) {
  switch (type) {
    case '0':
    case '\0':
    case '7':
      return "";
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
    case '4':
    case '6':
      return "a special file";
    case 'S':
      return "a sparse file";
    default:
      return absl::StrCat("a member of type ", Quoted(absl::string_view(&type, 1)));
  }
}

}  // namespace

absl::StatusOr<TarReader> TarReader::Open(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(RegularFile file, OpenRegularFile(uri));
  return TarReader(std::move(file));
}

absl::Status TarReader::Broken(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_.path, ": byte ", at_, ": ", what));
}

absl::Status TarReader::CheckHeader(const char* header) const {
  const absl::string_view magic(header + kMagic.offset, kMagic.length);
  if (magic != absl::string_view("ustar\00000", 8) && magic != absl::string_view("ustar  \0", 8)) {
    return Broken(absl::StrCat("found ", Quoted(magic), ", expected the ustar mark of a tar header",
                               at_ == 0 ? " (compressed archives are not read)" : ""));
  }
  const std::optional<int64_t> stated = NumberOf(header, kChecksum);
  const int64_t sum = ChecksumOf(header);
  if (stated == sum) return absl::OkStatus();
  return Broken(
      absl::StrCat("found a header with checksum ", stated.value_or(-1), ", expected ", sum));
}

// Zeros end the archive and fill the file. What comes after them was appended, and would be lost.
absl::Status TarReader::CheckEnd() const {
  const int64_t left = file_.bytes - at_;
  std::string rest(static_cast<size_t>(std::min(left, kMostPadding)), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file_, at_, rest.data(), static_cast<int64_t>(rest.size())));
  if (left <= kMostPadding && rest.find_first_not_of('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return Broken(absl::StrCat("the archive ends here, but the file goes on for ", left,
                             " bytes; list archives one by one instead of joining them"));
}

absl::StatusOr<int64_t> TarReader::ContentBytes(const char* header,
                                                const Extended& extended) const {
  const char type = header[kType];
  std::optional<int64_t> bytes = NumberOf(header, kSize);
  if (!bytes) {
    return Broken(absl::StrCat("found size ",
                               Quoted(absl::string_view(header + kSize.offset, kSize.length)),
                               ", expected an octal number"));
  }
  if (!Extends(type) && extended.bytes) bytes = extended.bytes;
  if (type >= '1' && type <= '6' && *bytes != 0) {
    return Broken(absl::StrCat("found ", *bytes, " bytes of content in ",
                               type == '5' ? "a folder" : FaultOfType(type), ", expected none"));
  }
  const int64_t left = file_.bytes - at_ - kBlock;
  if (*bytes > left) {
    return Broken(absl::StrCat("found a content of ", *bytes, " bytes, but the file ends after ",
                               left, "; is it truncated?"));
  }
  return *bytes;
}

absl::StatusOr<std::string> TarReader::ReadText(int64_t bytes) const {
  if (bytes > kMostExtendedBytes) {
    return Broken(absl::StrCat("found an extended header of ", bytes, " bytes, expected at most ",
                               kMostExtendedBytes));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  TY_RETURN_IF_ERROR(ReadExactly(file_, at_ + kBlock, text.data(), bytes));
  return text;
}

// Records "LENGTH KEY=VALUE\n", LENGTH counting all of the record.
absl::Status TarReader::ParseRecords(const std::string& text, Extended& extended) const {
  for (absl::string_view left = text; !left.empty();) {
    const size_t space = left.find(' ');
    size_t length = 0;
    const bool whole = space != absl::string_view::npos && space <= 7 &&
                       absl::SimpleAtoi(left.substr(0, space), &length) && length > space + 1 &&
                       length <= left.size() && left[length - 1] == '\n';
    const absl::string_view record =
        whole ? left.substr(space + 1, length - space - 2) : absl::string_view();
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) {
      return Broken(absl::StrCat("found ", Quoted(left),
                                 " in an extended header, expected LENGTH KEY=VALUE"));
    }
    const absl::string_view key = record.substr(0, equals);
    const absl::string_view value = record.substr(equals + 1);
    if (key == "path") extended.name = std::string(value);
    if (absl::StartsWith(key, "GNU.sparse.")) extended.sparse = true;
    if (key == "size") {
      int64_t bytes = 0;
      if (!absl::SimpleAtoi(value, &bytes) || bytes < 0) {
        return Broken(absl::StrCat("found size=", Quoted(value), ", expected a number"));
      }
      extended.bytes = bytes;
    }
    left.remove_prefix(length);
  }
  return absl::OkStatus();
}

absl::Status TarReader::ReadExtended(char type, int64_t bytes, Extended& extended) const {
  TY_ASSIGN_OR_RETURN(const std::string text, ReadText(bytes));
  extended.any = extended.any || type != 'g';
  if (type == 'L') extended.name = text.substr(0, text.find('\0'));
  if (type == 'x') return ParseRecords(text, extended);
  if (type == 'g') {
    Extended all;
    TY_RETURN_IF_ERROR(ParseRecords(text, all));
    if (all.name || all.bytes || all.sparse) {
      return Broken("found path, size or a sparse map for all members, expected them one by one");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TarMember>> TarReader::Next() {
  Extended extended;
  for (;;) {
    const int64_t left = file_.bytes - at_;
    if (left == 0 && !extended.any) return std::nullopt;
    if (left < kBlock) return Broken(absl::StrCat("found ", left, " bytes, expected a header"));
    char header[kBlock];
    TY_RETURN_IF_ERROR(ReadExactly(file_, at_, header, kBlock));
    if (AllZero(header) && !extended.any) {
      TY_RETURN_IF_ERROR(CheckEnd());
      at_ = file_.bytes;
      return std::nullopt;
    }
    TY_RETURN_IF_ERROR(CheckHeader(header));
    TY_ASSIGN_OR_RETURN(const int64_t bytes, ContentBytes(header, extended));
    const char type = header[kType];
    if (Extends(type)) TY_RETURN_IF_ERROR(ReadExtended(type, bytes, extended));
    TarMember member{.offset = at_ + kBlock, .bytes = bytes};
    at_ += std::min(left, kBlock + (bytes + kBlock - 1) / kBlock * kBlock);
    if (Extends(type)) continue;
    if (type == '5') {
      extended = Extended();
      continue;
    }
    member.name = extended.name ? *extended.name : NameOf(header);
    member.fault = FaultOfType(extended.sparse ? 'S' : type);
    if (member.fault.empty()) member.fault = FaultOfName(member.name);
    return member;
  }
}

}  // namespace trainyard::data
