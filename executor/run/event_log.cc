#include "executor/run/event_log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "executor/run/crc32c.h"
#include "executor/run/plain_file.h"
#include "storage/base/status.h"

namespace trainyard::run {
namespace {

constexpr int64_t kHeaderBytes = 8;
constexpr int64_t kChunkBytes = 64 << 10;

void PutU32(uint32_t value, char* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

uint32_t GetU32(const char* in) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i)
    value |= static_cast<uint32_t>(static_cast<uint8_t>(in[i])) << (8 * i);
  return value;
}

// More zeros than a crash leaves: somebody made them, and whoever reads them is busy for long.
constexpr int64_t kMostZeros = 16 << 20;
// Likewise numbers that are so far apart: the next ones would be none.
constexpr int64_t kLongestJump = int64_t{1} << 40;

// Whether nothing but zeros, and not many, lies from `offset` on: what a crash of the machine
// leaves of blocks that were allocated and never written.
absl::StatusOr<bool> OnlyZerosFrom(int fd, int64_t offset, const std::string& path) {
  for (const int64_t most = offset + kMostZeros; offset < most;) {
    TY_ASSIGN_OR_RETURN(const std::string bytes, ReadAt(fd, offset, kChunkBytes, path));
    if (bytes.empty()) return true;
    if (bytes.find_first_not_of('\0') != std::string::npos) return false;
    offset += bytes.size();
  }
  return false;
}

absl::Status Damaged(const std::string& path, EventPosition at, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": record after sequence ", at.sequence,
                                          " at byte ", at.offset, " is damaged: ", what));
}

// Reads whole records one after the other, through a buffer.
class RecordCursor {
 public:
  RecordCursor(int fd, const std::string& path, EventPosition start)
      : fd_(fd), path_(path), position_(start), buffer_start_(start.offset) {}

  // The next record, or nothing when the rest is torn or not written yet.
  absl::StatusOr<std::optional<v1::RankEvent>> Next() {
    TY_ASSIGN_OR_RETURN(const absl::string_view header, Peek(kHeaderBytes));
    if (header.size() < kHeaderBytes) return std::nullopt;
    const int64_t length = GetU32(header.data());
    const uint32_t crc = GetU32(header.data() + 4);
    if (length == 0 || length > kMaxEventBytes) {
      TY_ASSIGN_OR_RETURN(const bool torn, OnlyZerosFrom(fd_, position_.offset, path_));
      if (torn) return std::nullopt;
      return Damaged(path_, position_, absl::StrCat("a length of ", length));
    }
    TY_ASSIGN_OR_RETURN(const absl::string_view record, Peek(kHeaderBytes + length));
    if (static_cast<int64_t>(record.size()) < kHeaderBytes + length) return std::nullopt;
    const absl::string_view payload = record.substr(kHeaderBytes);
    v1::RankEvent event;
    if (Crc32c(payload) != crc) {
      TY_ASSIGN_OR_RETURN(const bool last, EndsAt(position_.offset + kHeaderBytes + length));
      if (last) return std::nullopt;
      return Damaged(path_, position_, "wrong checksum");
    }
    if (!event.ParseFromArray(payload.data(), static_cast<int>(length))) {
      return Damaged(path_, position_, "not an event");
    }
    if (event.sequence() <= position_.sequence ||
        event.sequence() - position_.sequence > kLongestJump) {
      return Damaged(path_, position_, absl::StrCat("its sequence is ", event.sequence()));
    }
    position_ = {.offset = position_.offset + kHeaderBytes + length, .sequence = event.sequence()};
    return event;
  }

  EventPosition position() const { return position_; }

 private:
  // At least `bytes` from the position on, or what the file has; valid until the next call.
  absl::StatusOr<absl::string_view> Peek(int64_t bytes) {
    const int64_t skip = position_.offset - buffer_start_;
    if (static_cast<int64_t>(buffer_.size()) < skip + bytes) {
      TY_ASSIGN_OR_RETURN(buffer_,
                          ReadAt(fd_, position_.offset, std::max(bytes, kChunkBytes), path_));
      buffer_start_ = position_.offset;
    }
    return absl::string_view(buffer_).substr(position_.offset - buffer_start_, bytes);
  }

  absl::StatusOr<bool> EndsAt(int64_t offset) {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return ErrnoStatus(errno, path_);
    if (info.st_size <= offset) return true;
    return OnlyZerosFrom(fd_, offset, path_);
  }

  const int fd_;
  const std::string& path_;
  EventPosition position_;
  int64_t buffer_start_;
  std::string buffer_;
};

absl::StatusOr<FileDescriptor> OpenForAppend(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventWriter>> EventWriter::Open(const std::string& path,
                                                               Clock& clock) {
  EventPosition end;
  {
    TY_ASSIGN_OR_RETURN(const FileDescriptor fd, OpenForAppend(path));
    RecordCursor cursor(fd.get(), path, {});
    for (;;) {
      TY_ASSIGN_OR_RETURN(const std::optional<v1::RankEvent> event, cursor.Next());
      if (!event) break;
    }
    end = cursor.position();
  }
  return OpenAt(path, clock, end);
}

absl::StatusOr<std::unique_ptr<EventWriter>> EventWriter::OpenAt(const std::string& path,
                                                                 Clock& clock, EventPosition at) {
  TY_ASSIGN_OR_RETURN(FileDescriptor fd, OpenForAppend(path));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  at.offset = std::min<int64_t>(at.offset, info.st_size);
  if (info.st_size > at.offset && ftruncate(fd.get(), at.offset) != 0) {
    return ErrnoStatus(errno, path);
  }
  return std::unique_ptr<EventWriter>(new EventWriter(path, std::move(fd), at, clock));
}

absl::Status EventWriter::Append(v1::RankEvent event) {
  absl::MutexLock lock(&mu_);
  event.set_sequence(end_.sequence + 1);
  event.set_time_us(absl::ToUnixMicros(clock_.Now()));
  std::string record(kHeaderBytes, '\0');
  if (!event.AppendToString(&record)) return absl::InternalError("event cannot be serialized");
  const int64_t length = static_cast<int64_t>(record.size()) - kHeaderBytes;
  if (length > kMaxEventBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("event of ", length, " bytes is larger than ", kMaxEventBytes));
  }
  PutU32(static_cast<uint32_t>(length), record.data());
  PutU32(Crc32c(absl::string_view(record).substr(kHeaderBytes)), record.data() + 4);

  if (torn_ && ftruncate(fd_.get(), end_.offset) != 0) return ErrnoStatus(errno, path_);
  torn_ = true;
  for (size_t done = 0; done < record.size();) {
    const ssize_t n = write(fd_.get(), record.data() + done, record.size() - done);
    if (n >= 0) done += n;
    if (n >= 0 || errno == EINTR) continue;
    const int error =
        errno == EFBIG ? ENOSPC : errno;  // a limit on the size of files is a full disk
    torn_ = ftruncate(fd_.get(), end_.offset) != 0;
    return ErrnoStatus(error, path_);
  }
  torn_ = false;
  end_ = {.offset = end_.offset + static_cast<int64_t>(record.size()),
          .sequence = event.sequence()};
  return absl::OkStatus();
}

int64_t EventWriter::last_sequence() {
  absl::MutexLock lock(&mu_);
  return end_.sequence;
}

absl::StatusOr<std::vector<v1::RankEvent>> EventReader::Read(int limit, int64_t max_bytes) {
  std::vector<v1::RankEvent> events;
  if (!fd_.valid()) {
    fd_.Reset(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_.valid() && errno == ENOENT) return events;
    if (!fd_.valid()) return ErrnoStatus(errno, path_);
  }
  RecordCursor cursor(fd_.get(), path_, position_);
  const int64_t begin = position_.offset;
  while (static_cast<int>(events.size()) < limit && position_.offset - begin < max_bytes) {
    absl::StatusOr<std::optional<v1::RankEvent>> event = cursor.Next();
    if (!event.ok()) {
      if (events.empty()) return event.status();
      break;  // returns what lies before the damage; the next call reports it
    }
    if (!*event) break;
    events.push_back(**std::move(event));
    position_ = cursor.position();
  }
  return events;
}

}  // namespace trainyard::run
