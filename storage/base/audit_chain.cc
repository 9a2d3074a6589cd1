#include "storage/base/audit_chain.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "storage/base/digest.h"

namespace trainyard {

std::string AuditDigest(const std::string& before, const AuditEntry& entry) {
  std::string all;
  const auto add = [&all](const std::string& field) {
    absl::StrAppend(&all, field.size(), ":", field);
  };
  add(before);
  add(entry.chain);
  add(absl::StrCat(entry.sequence));
  add(absl::StrCat(absl::ToUnixMicros(entry.time)));
  add(entry.principal);
  add(entry.credential);
  add(entry.source);
  add(entry.method);
  add(entry.resource);
  add(entry.outcome);
  add(entry.detail);
  add(absl::StrCat(entry.count));
  return Sha256Hex(all);
}

std::string AuditHeadLine(const AuditHead& head, absl::Time time) {
  const nlohmann::json line = {
      {"chain", head.chain},
      {"sequence", head.sequence},
      {"digest", head.digest},
      {"epoch", head.epoch},
      {"time", absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone())}};
  return line.dump();
}

std::optional<AuditHead> ParseAuditHeadLine(const std::string& line) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  const auto chain = parsed.find("chain"), sequence = parsed.find("sequence"),
             digest = parsed.find("digest");
  if (chain == parsed.end() || !chain->is_string() || sequence == parsed.end() ||
      !sequence->is_number_integer() || digest == parsed.end() || !digest->is_string()) {
    return std::nullopt;
  }
  AuditHead head{chain->get<std::string>(), sequence->get<int64_t>(), digest->get<std::string>()};
  const auto epoch = parsed.find("epoch");
  if (epoch != parsed.end() && epoch->is_number_integer()) head.epoch = epoch->get<int64_t>();
  return head;
}

AuditVerifier::AuditVerifier(const std::vector<AuditHead>& heads) {
  for (const AuditHead& head : heads) heads_[head.chain][head.sequence] = head.digest;
}

void AuditVerifier::Take(const AuditEntry& entry) {
  ++entries_;
  Chain& chain = chains_[entry.chain];
  if (chain.broken) return;
  const auto tell = [&](const std::string& what) {
    chain.broken = true;
    findings_.push_back(absl::StrCat(
        "chain ", entry.chain, ", entry ", entry.sequence, " (",
        absl::FormatTime(absl::RFC3339_sec, entry.time, absl::UTCTimeZone()), "): ", what));
  };
  if (entry.sequence != chain.sequence + 1) {
    return tell(absl::StrCat("expected entry ", chain.sequence + 1,
                             " here; those in between were removed"));
  }
  if (AuditDigest(chain.digest, entry) != entry.digest) {
    return tell("it, or the one before it, was changed");
  }
  chain.sequence = entry.sequence;
  chain.digest = entry.digest;
  const auto heads = heads_.find(entry.chain);
  if (heads == heads_.end()) return;
  const auto head = heads->second.find(entry.sequence);
  if (head != heads->second.end() && head->second != entry.digest) {
    tell("it is not what was the head of the chain: the chain was written anew");
  }
}

std::vector<std::string> AuditVerifier::Finish() {
  for (const auto& [name, heads] : heads_) {
    const auto chain = chains_.find(name);
    const int64_t last = chain == chains_.end() ? 0 : chain->second.sequence;
    const bool told = chain != chains_.end() && chain->second.broken;
    if (heads.empty() || told || heads.rbegin()->first <= last) continue;
    findings_.push_back(absl::StrCat("chain ", name, " ends with entry ", last,
                                     ", and was known to go on to entry ", heads.rbegin()->first,
                                     ": its end was cut off"));
  }
  return findings_;
}

}  // namespace trainyard
