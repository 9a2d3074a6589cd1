#include "server/audit/audit_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/retry_pause.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

constexpr size_t kMostAtOnce = 256;
constexpr size_t kLongestField = 512;
constexpr absl::Duration kLook = absl::Seconds(1);       // at sums of refusals
constexpr absl::Duration kLastWords = absl::Seconds(1);  // to write when it is stopped
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50), kLongestRetry = absl::Seconds(1);

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// The call was done, or may have been.
bool MayBeDone(const absl::Status& status) {
  return status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

std::string SourceOf(absl::string_view peer) {
  if (absl::ConsumePrefix(&peer, "ipv4:")) return std::string(peer.substr(0, peer.rfind(':')));
  if (absl::ConsumePrefix(&peer, "ipv6:")) {
    const std::string plain =
        absl::StrReplaceAll(peer.substr(0, peer.rfind(':')), {{"%5B", ""}, {"%5D", ""}});
    return std::string(absl::StripSuffix(absl::StripPrefix(plain, "["), "]"));
  }
  return std::string(peer.substr(0, 100));
}

bool OnlyReads(absl::string_view method) {
  constexpr absl::string_view kReads[] = {"Get",  "List",  "Query",  "Explain",
                                          "Plan", "Watch", "Stream", "Tail"};
  return std::any_of(std::begin(kReads), std::end(kReads),
                     [method](absl::string_view begin) { return absl::StartsWith(method, begin); });
}

AuditLog::AuditLog(AuditStore& store, Clock& clock, AuditLogOptions options)
    : store_(store), clock_(clock), options_(std::move(options)) {
  head_.chain = absl::StrCat(options_.replica, "-", RandomHex(8));
  {
    absl::MutexLock lock(&mu_);
    Add({.principal = absl::StrCat("server:", options_.replica), .method = "ServerStarted"});
  }
  thread_ = std::thread([this] { Run(); });
}

AuditLog::~AuditLog() { Stop(); }

void AuditLog::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void AuditLog::Add(AuditEntry entry) {
  if (pending_.size() >= options_.most_pending) {
    ++lost_;
    return;
  }
  TellLost();
  for (std::string* field : {&entry.principal, &entry.source, &entry.method, &entry.resource,
                             &entry.outcome, &entry.detail}) {
    *field = CleanText(*field, kLongestField);
  }
  pending_.push_back(std::move(entry));
}

void AuditLog::TellLost() {
  if (lost_ == 0) return;
  pending_.push_back({.time = clock_.Now(),
                      .principal = absl::StrCat("server:", options_.replica),
                      .method = "EntriesLost",
                      .detail = "the store was away for too long",
                      .count = std::exchange(lost_, 0)});
}

void AuditLog::Record(Call call, const absl::Status& status, bool changes) {
  const bool refused = IsRefusal(status);
  if (!refused && !(changes && MayBeDone(status))) return;
  AuditEntry entry{.time = clock_.Now(),
                   .principal = std::move(call.principal),
                   .source = std::move(call.source),
                   .method = std::move(call.method),
                   .resource = std::move(call.resource),
                   .outcome = absl::StatusCodeToString(status.code()),
                   .detail = status.ok() ? std::move(call.detail) : std::string(status.message())};
  absl::MutexLock lock(&mu_);
  if (!refused) return Add(std::move(entry));
  std::optional<AuditEntry> now = refusals_.Take(std::move(entry), clock_.SinceBoot());
  if (now.has_value()) Add(*std::move(now));
}

std::vector<AuditEntry> AuditLog::Chain(std::vector<AuditEntry> entries) {
  for (AuditEntry& entry : entries) {
    entry.chain = head_.chain;
    entry.sequence = ++head_.sequence;
    // As the store keeps it, which the digest is over.
    entry.time = absl::FromUnixMicros(
        absl::ToUnixMicros(entry.time == absl::Time() ? clock_.Now() : entry.time));
    entry.digest = head_.digest = AuditDigest(head_.digest, entry);
  }
  return entries;
}

void AuditLog::Run() {
  std::vector<AuditEntry> writing;
  RetryPause pause(kFirstRetry, kLongestRetry);
  absl::Duration until = absl::InfiniteDuration();  // since it was stopped
  while (true) {
    bool stopping = false;
    const bool again = !writing.empty();  // the store was away
    {
      absl::MutexLock lock(&mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return !pending_.empty() || stopping_;
      };
      if (!again) mu_.AwaitWithTimeout(absl::Condition(&due), kLook);
      stopping = stopping_;
      for (AuditEntry& sum : refusals_.Due(clock_.SinceBoot(), stopping)) Add(std::move(sum));
      if (pending_.empty()) TellLost();
      while (!again && writing.size() < kMostAtOnce && !pending_.empty()) {
        writing.push_back(std::move(pending_.front()));
        pending_.pop_front();
      }
    }
    if (stopping) until = std::min(until, clock_.SinceBoot() + kLastWords);
    if (writing.empty()) {
      TellHead(stopping);
      if (stopping) return;
      continue;
    }
    if (!again) writing = Chain(std::move(writing));
    const CallLimit limit(stopping ? kLastWords : kUserCallLimit);
    const absl::Status written = store_.AppendAudit(writing);
    if (written.ok()) {
      writing.clear();
      pause.Reset();
      TellHead(false);
      continue;
    }
    const absl::Duration wait = pause.Next();
    spdlog::warn("audit: {} entries wait to be written: {}", writing.size(), written.ToString());
    absl::MutexLock lock(&mu_);
    if (clock_.SinceBoot() > until) return;
    mu_.AwaitWithTimeout(absl::Condition(&stopping_), stopping ? kFirstRetry : wait);
  }
}

void AuditLog::TellHead(bool last) {
  const absl::Duration now = clock_.SinceBoot();
  if (head_.sequence == told_sequence_ || (!last && now - told_ < options_.between_heads)) return;
  told_ = now;
  told_sequence_ = head_.sequence;
  if (options_.heads_file.empty()) return;
  const std::string line = AuditHeadLine(head_, clock_.Now()) + "\n";
  const FileDescriptor file(
      open(options_.heads_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const absl::Status written = file.valid() ? WriteAll(file.get(), line, options_.heads_file)
                                            : ErrnoStatus(errno, options_.heads_file);
  if (!written.ok())
    spdlog::warn("audit: the head of the chain was not kept: {}", written.ToString());
}

}  // namespace trainyard
