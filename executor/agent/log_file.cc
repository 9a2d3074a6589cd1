#include "executor/agent/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/run/plain_file.h"
#include "storage/base/file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

int64_t SizeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// Bytes [from, from + limit) of the file, fewer at its end; nothing when it is missing.
absl::StatusOr<std::string> ReadRange(const std::string& path, int64_t from, int64_t limit) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return std::string();
  if (!fd.valid()) return ErrnoStatus(errno, path);
  return run::ReadAt(fd.get(), from, limit, path);
}

// Copies the bytes of `from` from `offset` on to `to`, at most `limit`: a file that grows as fast
// as it is copied would otherwise never end. Returns how many were copied.
absl::StatusOr<int64_t> CopyFile(const std::string& from, int64_t offset, int64_t limit,
                                 const std::string& to) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  const FileDescriptor out(open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!out.valid()) return ErrnoStatus(errno, to);
  for (int64_t copied = 0;;) {
    TY_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadRange(from, offset + copied, std::min(kChunk, limit - copied)));
    if (bytes.empty()) return copied;
    TY_RETURN_IF_ERROR(WriteAll(out.get(), bytes, to));
    copied += bytes.size();
  }
}

}  // namespace

LogFile::Starts LogFile::ReadStarts() const {
  Starts starts;
  const absl::StatusOr<std::string> text = ReadFile(path_ + ".start", 100);
  if (!text.ok()) return starts;
  const std::vector<std::string> numbers = absl::StrSplit(*text, ' ');
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &starts.old) ||
      !absl::SimpleAtoi(numbers[1], &starts.current)) {
    return Starts{};
  }
  return starts;
}

absl::Status LogFile::RotateIfLarger(int64_t limit) {
  const int64_t size = SizeOf(path_);
  if (size <= limit) return absl::OkStatus();
  // Usually the file is only a few bytes too long, and nothing is skipped.
  const int64_t skipped = std::max<int64_t>(0, size - 2 * limit);
  const Starts before = ReadStarts();
  const std::string copy = path_ + ".1.tmp";
  const absl::StatusOr<int64_t> copied = CopyFile(path_, skipped, 3 * limit, copy);
  // A full disk: better no old lines than no room for events.
  if (!copied.ok()) unlink(copy.c_str());
  if (truncate(path_.c_str(), 0) != 0) return ErrnoStatus(errno, path_);
  Starts now{.old = before.current + skipped,
             .current = before.current + skipped + copied.value_or(size - skipped)};
  if (copied.ok() && rename(copy.c_str(), (path_ + ".1").c_str()) != 0) {
    return ErrnoStatus(errno, path_);
  }
  if (!copied.ok()) {
    unlink((path_ + ".1").c_str());
    now.old = now.current;
  }
  return run::WritePlainFile(path_ + ".start", absl::StrCat(now.old, " ", now.current));
}

absl::StatusOr<LogFile::Chunk> LogFile::Read(int64_t offset, int64_t max_bytes) const {
  const Starts starts = ReadStarts();
  Chunk chunk;
  chunk.end = starts.current + SizeOf(path_);
  if (offset < 0) offset += chunk.end;
  chunk.offset = std::clamp(offset, starts.old, chunk.end);
  if (chunk.offset < starts.current) {
    TY_ASSIGN_OR_RETURN(chunk.data, ReadRange(path_ + ".1", chunk.offset - starts.old, max_bytes));
  }
  const int64_t have = static_cast<int64_t>(chunk.data.size());
  if (have < max_bytes) {
    const int64_t from = std::max(chunk.offset + have, starts.current);
    TY_ASSIGN_OR_RETURN(const std::string rest,
                        ReadRange(path_, from - starts.current, max_bytes - have));
    if (have == 0) chunk.offset = from;
    chunk.data += rest;
  }
  return chunk;
}

std::string LogFile::LastLines(int64_t max_bytes) const {
  const absl::StatusOr<Chunk> chunk = Read(-max_bytes, max_bytes);
  if (!chunk.ok()) return "";
  absl::string_view text = chunk->data;
  const size_t line_end = text.find('\n');
  const bool cut = chunk->offset > 0 && static_cast<int64_t>(text.size()) == max_bytes;
  if (cut && line_end != absl::string_view::npos) text.remove_prefix(line_end + 1);
  return Printable(text);
}

}  // namespace trainyard
