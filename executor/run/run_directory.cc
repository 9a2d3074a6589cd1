#include "executor/run/run_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "executor/run/plain_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::run {
namespace {

// Nanoseconds on Clock::SinceBoot: life, right, fence.
constexpr size_t kLeaseBytes = 3 * sizeof(int64_t);
constexpr size_t kLifeBytes = sizeof(int64_t);  // an older agent writes only the first
static_assert(std::atomic_ref<int64_t>::is_always_lock_free,
              "a lease is stored and loaded without a lock, across processes");

bool IsUid(absl::string_view uid) {
  if (uid.empty() || uid.size() > 64) return false;
  for (const char c : uid) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') return false;
  }
  return true;
}

constexpr int64_t kMostOfClaim = 1024;  // bytes

}  // namespace

std::string RunDirectory::NameOf(const v1::RankKey& key) {
  return absl::StrCat(key.job_uid(), ".", key.attempt(), ".", key.rank());
}

absl::StatusOr<v1::RankKey> RunDirectory::ParseName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  int64_t attempt = 0;
  int32_t rank = 0;
  v1::RankKey key;
  if (parts.size() == 3 && IsUid(parts[0]) && absl::SimpleAtoi(parts[1], &attempt) &&
      absl::SimpleAtoi(parts[2], &rank) && attempt > 0 && rank >= 0) {
    key.set_job_uid(parts[0]);
    key.set_attempt(attempt);
    key.set_rank(rank);
  }
  // Also refuses "+1" and " 1", which SimpleAtoi takes.
  if (NameOf(key) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' does not name a rank: expected {job uid}.{attempt}.{rank}"));
  }
  return key;
}

absl::Status RunDirectory::WriteAssignment(const v1::Assignment& assignment) const {
  v1::Assignment without_claim = assignment;
  without_claim.mutable_key()->clear_claim();
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(without_claim, &json, options);
  if (!printed.ok()) return absl::InternalError(printed.ToString());

  TY_RETURN_IF_ERROR(MakeDirectories(path_, 0700));
  const std::string& claim = assignment.key().claim();
  if (!claim.empty()) {
    TY_RETURN_IF_ERROR(ReplacePlainFile(claim_path(), claim, kForGroup));
  } else if (unlink(claim_path().c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, claim_path());
  }
  return ReplacePlainFile(assignment_path(), json, kForGroup);
}

absl::StatusOr<v1::Assignment> RunDirectory::ReadAssignment() const {
  TY_ASSIGN_OR_RETURN(const std::string json, ReadFile(assignment_path(), int64_t{16} << 20));
  v1::Assignment assignment;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &assignment);
  if (!parsed.ok()) {
    return absl::DataLossError(absl::StrCat(assignment_path(), ": ", parsed.ToString()));
  }
  absl::StatusOr<std::string> claim = ReadFile(claim_path(), kMostOfClaim);
  if (claim.ok()) {
    assignment.mutable_key()->set_claim(*std::move(claim));
  } else if (!absl::IsNotFound(claim.status())) {
    return claim.status();
  }
  return assignment;
}

absl::StatusOr<LeaseFile> LeaseFile::Open(const std::string& path, bool create) {
  FileDescriptor fd(
      open(path.c_str(), create ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, kForGroup));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  if (create && fchmod(fd.get(), kForGroup) != 0) return ErrnoStatus(errno, path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!create && info.st_size < static_cast<off_t>(kLifeBytes)) {
    return absl::DataLossError(absl::StrCat(path, ": shorter than a lease"));
  }
  const bool one_time = info.st_size == static_cast<off_t>(kLifeBytes);
  if (create && !one_time && info.st_size < static_cast<off_t>(kLeaseBytes)) {
    // Written, not truncated to size: a store into a hole of a full disk would be SIGBUS.
    const std::string ended(kLeaseBytes - info.st_size, '\0');
    errno = 0;  // a short write does not set it
    if (pwrite(fd.get(), ended.data(), ended.size(), info.st_size) !=
        static_cast<ssize_t>(ended.size())) {
      return ErrnoStatus(errno == 0 ? ENOSPC : errno, path);
    }
  }
  void* map = mmap(nullptr, kLeaseBytes, create ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                   fd.get(), 0);
  if (map == MAP_FAILED) return ErrnoStatus(errno, path);
  return LeaseFile(map, one_time);
}

LeaseFile::LeaseFile(LeaseFile&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)), one_time_(other.one_time_) {}

LeaseFile& LeaseFile::operator=(LeaseFile&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(one_time_, other.one_time_);
  return *this;
}

LeaseFile::~LeaseFile() {
  if (map_ != nullptr) munmap(map_, kLeaseBytes);
}

void LeaseFile::ExtendLife(absl::Duration until) { Extend(0, until); }
void LeaseFile::ExtendRight(absl::Duration until) {
  if (!one_time_) Extend(1, until);
}
void LeaseFile::ExtendFence(absl::Duration until) {
  if (!one_time_) Extend(2, until);
}

absl::Duration LeaseFile::Life() const { return Load(0); }

absl::Duration LeaseFile::Right() const {
  const absl::Duration right = one_time_ ? absl::ZeroDuration() : Load(1);
  return right > absl::ZeroDuration() ? right : Life();
}

absl::Duration LeaseFile::Fence() const { return one_time_ ? absl::ZeroDuration() : Load(2); }

void LeaseFile::Extend(int index, absl::Duration time) {
  std::atomic_ref<int64_t> until(static_cast<int64_t*>(map_)[index]);
  const int64_t ns = absl::ToInt64Nanoseconds(time);
  if (until.load(std::memory_order_relaxed) < ns) until.store(ns, std::memory_order_release);
}

absl::Duration LeaseFile::Load(int index) const {
  const std::atomic_ref<int64_t> until(static_cast<int64_t*>(map_)[index]);
  return absl::Nanoseconds(until.load(std::memory_order_acquire));
}

}  // namespace trainyard::run
