#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace trainyard::cli {

enum class OutputFormat { kTable, kWide, kJson, kYaml, kName };

// "table", "wide", "json", "yaml" or "name".
absl::StatusOr<OutputFormat> ParseOutputFormat(const std::string& text);

// One message or several (a list) as JSON or YAML, field names as in the proto, and a line break at
// the end. Only for kJson and kYaml.
std::string Serialize(OutputFormat format, const google::protobuf::Message& message);
std::string SerializeList(OutputFormat format,
                          const std::vector<const google::protobuf::Message*>& messages);

// The message as JSON on one line, for streams.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace trainyard::cli
