#include "server/audit/audit_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "storage/base/file.h"
#include "storage/base/ids.h"
#include "storage/base/retry_pause.h"
#include "storage/base/status.h"
#include "storage/call_limit.h"
#include "storage/records/text.h"

namespace trainyard {
namespace {

constexpr size_t kMostAtOnce = 1024;
constexpr size_t kLongestField = 512;
constexpr absl::Duration kGather = absl::Milliseconds(100);
constexpr absl::Duration kLook = absl::Seconds(1);       // at sums of refusals
constexpr absl::Duration kLastWords = absl::Seconds(1);  // to write when it is stopped
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50), kLongestRetry = absl::Seconds(1);

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// The call was done, or may have been: all codes but those with which calls end before they write.
bool MayBeDone(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
      return false;
    default:
      return true;
  }
}

// As the store can keep it, and short.
void Clean(AuditEntry& entry) {
  for (std::string* field : {&entry.principal, &entry.credential, &entry.source, &entry.method,
                             &entry.resource, &entry.outcome, &entry.detail}) {
    *field = CleanText(*field, kLongestField);
  }
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
  head_.epoch = options_.epoch;
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
  pending_.push_back(std::move(entry));
}

void AuditLog::TellLost() {
  if (lost_ == 0) return;
  pending_.push_back({.time = clock_.Now(),
                      .principal = absl::StrCat("server:", options_.replica),
                      .method = "EntriesLost",
                      .detail = "there was no room for them until the store took others",
                      .count = std::exchange(lost_, 0)});
}

void AuditLog::Record(Call call, const absl::Status& status, bool changes) {
  const bool refused = IsRefusal(status);
  if (!refused && !(changes && MayBeDone(status))) return;
  AuditEntry entry{.time = clock_.Now(),
                   .principal = std::move(call.principal),
                   .credential = std::move(call.credential),
                   .source = std::move(call.source),
                   .method = std::move(call.method),
                   .resource = std::move(call.resource),
                   .outcome = absl::StatusCodeToString(status.code()),
                   .detail = std::move(call.detail)};
  if (!status.ok()) {
    absl::StrAppend(&entry.detail, entry.detail.empty() ? "" : ": ", status.message());
  }
  Clean(entry);
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

// Waits for entries, and takes them; empty: for a while there were none. Sets `stopping`.
std::vector<AuditEntry> AuditLog::TakePending(bool& stopping) {
  std::vector<AuditEntry> taken;
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !pending_.empty() || stopping_;
  };
  mu_.AwaitWithTimeout(absl::Condition(&due), kLook);
  if (stopping_ && !stopped_) {
    stopped_ = true;
    for (AuditEntry& sum : refusals_.Due(clock_.SinceBoot(), /*all=*/true)) Add(std::move(sum));
    Add({.principal = absl::StrCat("server:", options_.replica), .method = "ServerStopped"});
  }
  for (AuditEntry& sum : refusals_.Due(clock_.SinceBoot())) Add(std::move(sum));
  if (pending_.empty()) TellLost();
  while (taken.size() < kMostAtOnce && !pending_.empty()) {
    taken.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  stopping = stopping_;
  return taken;
}

bool AuditLog::StopsWithin(absl::Duration pause) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
}

// Tries until the store takes them, or for kLastWords once it is to stop; then false.
bool AuditLog::Write(const std::vector<AuditEntry>& entries) {
  RetryPause pause(kFirstRetry, kLongestRetry);
  absl::Duration until = absl::InfiniteDuration();
  while (true) {
    const bool stopping = StopsWithin(absl::ZeroDuration());
    if (stopping) until = std::min(until, clock_.SinceBoot() + kLastWords);
    const CallLimit limit(stopping ? kLastWords : kUserCallLimit);
    const absl::Status written = store_.AppendAudit(entries);
    if (written.ok()) return true;
    if (clock_.SinceBoot() >= until) {
      spdlog::error("audit: {} entries were not written: {}", entries.size(), written.ToString());
      return false;
    }
    spdlog::warn("audit: {} entries wait to be written: {}", entries.size(), written.ToString());
    if (stopping) {
      absl::SleepFor(kFirstRetry);  // there is nothing to wake it any more
    } else {
      StopsWithin(pause.Next());
    }
  }
}

void AuditLog::Run() {
  while (true) {
    bool stopping = false;
    std::vector<AuditEntry> entries = TakePending(stopping);
    if (entries.empty()) {
      TellHead(stopping);
      if (stopping) return;
      continue;
    }
    if (!Write(Chain(std::move(entries)))) return;
    TellHead(false);
    // What comes meanwhile is written together: the disk is there for submissions.
    absl::MutexLock lock(&mu_);
    const auto many = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return pending_.size() >= kMostAtOnce || stopping_;
    };
    mu_.AwaitWithTimeout(absl::Condition(&many), kGather);
  }
}

void AuditLog::TellHead(bool last) {
  const absl::Duration now = clock_.SinceBoot();
  if (head_.sequence == told_sequence_ || (!last && now - told_ < options_.between_heads)) return;
  told_ = now;
  const absl::Status written =
      options_.heads_file.empty()
          ? absl::OkStatus()
          : AppendLine(options_.heads_file, AuditHeadLine(head_, clock_.Now()));
  if (written.ok()) {
    told_sequence_ = head_.sequence;
  } else {
    spdlog::warn("audit: the head of the chain was not kept: {}", written.ToString());
  }
}

}  // namespace trainyard
