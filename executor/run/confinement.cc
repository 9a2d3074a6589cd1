#include "executor/run/confinement.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace trainyard::run {

std::string FormatConfinement(const Roots& roots) {
  return nlohmann::json{{"data", roots.data}, {"checkpoints", roots.checkpoints}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::optional<Roots>> ParseConfinement(const char* value) {
  if (value == nullptr) return std::nullopt;
  try {
    const nlohmann::json json = nlohmann::json::parse(value);
    return Roots{.data = json.at("data").get<std::vector<std::string>>(),
                 .checkpoints = json.at("checkpoints").get<std::vector<std::string>>()};
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(kConfinementVariable, ": ", e.what()));
  }
}

}  // namespace trainyard::run
