#pragma once

#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/audit/refusal_sums.h"
#include "storage/audit_store.h"
#include "storage/base/clock.h"

namespace trainyard {

struct AuditLogOptions {
  std::string replica;     // whose chain it is; a random part is added
  int64_t epoch = 1;       // of the yard
  std::string heads_file;  // gets a line with the chain's head now and then; empty: there is none
  absl::Duration between_heads = absl::Seconds(10);
  size_t most_pending = 50'000;  // entries, while the store is away
};

// Writes what this server does for its callers into the audit, as a chain of its own. Thread-safe;
// one thread of its own, which writes whatever gathered during its last commit, so calls do not
// wait for it: entries of the last moment before a crash may be missing.
class AuditLog {
 public:
  AuditLog(AuditStore& store, Clock& clock, AuditLogOptions options);
  ~AuditLog();  // stops

  struct Call {
    std::string principal;   // empty: not known
    std::string credential;  // see AuditEntry
    std::string source;      // see SourceOf
    std::string method;
    std::string resource;
    std::string detail;  // of one that was done
  };
  // A call that changes something, if it was done or may have been; or any one that was refused.
  // Never blocks.
  void Record(Call call, const absl::Status& status, bool changes);

  // Writes what is pending, for a second at most. Idempotent.
  void Stop();

 private:
  void Add(AuditEntry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  std::vector<AuditEntry> TakePending(bool& stopping);
  bool Write(const std::vector<AuditEntry>& entries);
  bool StopsWithin(absl::Duration pause);
  // Gives the next entries their places in the chain.
  std::vector<AuditEntry> Chain(std::vector<AuditEntry> entries);
  void TellHead(bool last);

  AuditStore& store_;
  Clock& clock_;
  const AuditLogOptions options_;
  // Used by the thread alone.
  AuditHead head_;
  int64_t told_sequence_ = 0;
  absl::Duration told_ = -absl::InfiniteDuration();

  absl::Mutex mu_;
  std::deque<AuditEntry> pending_ ABSL_GUARDED_BY(mu_);
  RefusalSums refusals_ ABSL_GUARDED_BY(mu_);
  int64_t lost_ ABSL_GUARDED_BY(mu_) = 0;  // for want of room
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;  // the entry that says so was made
  std::thread thread_;
};

// The address in gRPC's name of a peer, without its port: "10.0.0.7" of "ipv4:10.0.0.7:51234".
std::string SourceOf(absl::string_view peer);

// Whether a method of this name changes nothing.
bool OnlyReads(absl::string_view method);

}  // namespace trainyard
