#include "storage/base/revocation.h"

#include <nlohmann/json.hpp>

#include "storage/base/enum_names.h"

namespace trainyard {
namespace {

constexpr EnumNames<CredentialKind, 3> kCredentialKinds = {
    {CredentialKind::kToken, "token"},
    {CredentialKind::kJoinToken, "join token"},
    {CredentialKind::kNodeKey, "node key"},
};

std::string FormatFull(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone());
}

}  // namespace

std::string RevocationsBegunLine(absl::Time time) {
  return nlohmann::json{{"begun", FormatFull(time)}}.dump();
}

std::optional<absl::Time> ParseRevocationsBegunLine(const std::string& line) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  const auto begun = parsed.find("begun");
  if (begun == parsed.end() || !begun->is_string()) return std::nullopt;
  absl::Time time;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, begun->get<std::string>(), &time, &error)) {
    return std::nullopt;
  }
  return time;
}

std::string RevocationLine(const RevokedCredential& revoked, absl::Time time) {
  const nlohmann::json line = {{"revoked", std::string(NameIn(kCredentialKinds, revoked.kind))},
                               {"id", revoked.id},
                               {"time", FormatFull(time)}};
  return line.dump();
}

std::optional<RevokedCredential> ParseRevocationLine(const std::string& line) {
  const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  const auto kind = parsed.find("revoked"), id = parsed.find("id");
  if (kind == parsed.end() || !kind->is_string() || id == parsed.end() || !id->is_string()) {
    return std::nullopt;
  }
  const auto known = ValueIn(kCredentialKinds, kind->get<std::string>());
  if (!known.has_value() || id->get<std::string>().empty()) return std::nullopt;
  return RevokedCredential{*known, id->get<std::string>()};
}

}  // namespace trainyard
