#pragma once

// JSON files of a model's folder. Every file is treated as hostile.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard::weights {

inline constexpr int64_t kLargestModelJson = int64_t{16} << 20;  // bytes

// The object that `text` holds. kInvalidArgument: not JSON, no object, more than 64 levels deep, a
// key given twice (which of the two counts would depend on the reader).
absl::StatusOr<nlohmann::json> ParseModelJson(absl::string_view text);

// model.safetensors.index.json: the file of each tensor. kInvalidArgument, also: no weight_map, a
// file that is not in the same folder or no .safetensors, more than 512 files.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(absl::string_view text);

}  // namespace trainyard::weights
