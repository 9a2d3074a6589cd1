#pragma once

// The record of who changed what, in chains: each entry has a digest over itself and the digest of
// the one before it, so that nobody changes, removes or adds one unseen without writing anew all
// that follow; and whoever has kept a chain's head sees that, too.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard {

struct AuditEntry {
  std::string chain;     // of one server process
  int64_t sequence = 0;  // in the chain: 1, 2, 3, …
  absl::Time time;       // in microseconds
  std::string principal;
  std::string credential;  // by which it was admitted: "tokens/ID", and its project if it has one
  std::string source;      // from where: an address without its port; "": the server itself
  std::string method;      // "CancelJob"
  std::string resource;    // "projects/default/jobs/a"; "": none is named
  std::string outcome;     // "OK", or the code of the refusal or error
  std::string detail;      // its message
  int64_t count = 1;       // so many such calls, of which this is the first
  std::string digest;      // 64 hex digits
};

// What `entry` must have as its digest: SHA-256 over `before`, the digest of the entry before it
// ("" of the first), and all its fields, each with its length in front.
std::string AuditDigest(const std::string& before, const AuditEntry& entry);

// The end of a chain as it was at some time.
struct AuditHead {
  std::string chain;
  int64_t sequence = 0;
  std::string digest;
  int64_t epoch = 1;  // of the yard (storage/restore.h)
};

// One line of a file of heads: {"chain": …, "sequence": …, "digest": …, "epoch": …, "time": …}.
std::string AuditHeadLine(const AuditHead& head, absl::Time time);
// nullopt: it is no such line.
std::optional<AuditHead> ParseAuditHeadLine(const std::string& line);

// Checks chains entry by entry, in the order of each, and says where they were tampered with.
class AuditVerifier {
 public:
  // `heads`: what was kept of chains elsewhere.
  explicit AuditVerifier(const std::vector<AuditHead>& heads);

  void Take(const AuditEntry& entry);
  // Call it after the last entry; the findings of all, in plain words; empty: nothing was found.
  std::vector<std::string> Finish();

  int64_t entries() const { return entries_; }
  size_t chains() const { return chains_.size(); }

 private:
  struct Chain {
    int64_t sequence = 0;
    std::string digest;
    bool broken = false;  // told; what follows says nothing more
  };

  std::map<std::string, Chain> chains_;
  std::map<std::string, std::map<int64_t, std::string>> heads_;  // digests, by chain and sequence
  std::vector<std::string> findings_;
  int64_t entries_ = 0;
};

}  // namespace trainyard
