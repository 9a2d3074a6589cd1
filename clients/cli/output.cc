#include "clients/cli/output.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "clients/cli/shown.h"
#include "google/protobuf/util/json_util.h"
#include "proto/text/job_file.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"

namespace trainyard::cli {
namespace {

std::string Json(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = pretty;
  options.preserve_proto_field_names = true;
  std::string out;
  const auto status = google::protobuf::util::MessageToJsonString(message, &out, options);
  TY_CHECK(status.ok(), std::string(status.message()));
  return EscapedJson(out);
}

// The lines of `text` without empty ones: `first` before the first line, `rest` before the others.
std::string IndentLines(const std::string& text, const std::string& first,
                        const std::string& rest) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&out, out.empty() ? first : rest, line, "\n");
  }
  return out;
}

}  // namespace

absl::StatusOr<OutputFormat> ParseOutputFormat(const std::string& text) {
  if (text == "table") return OutputFormat::kTable;
  if (text == "wide") return OutputFormat::kWide;
  if (text == "json") return OutputFormat::kJson;
  if (text == "yaml") return OutputFormat::kYaml;
  if (text == "name") return OutputFormat::kName;
  return absl::InvalidArgumentError(
      absl::StrCat("--output: '", text, "' is not a format",
                   DidYouMean(text, {"table", "wide", "json", "yaml", "name"}),
                   "; expected table, wide, json, yaml or name"));
}

std::string Serialize(OutputFormat format, const google::protobuf::Message& message) {
  return format == OutputFormat::kYaml ? EscapedLines(ToYaml(message)) : Json(message, true);
}

std::string SerializeList(OutputFormat format,
                          const std::vector<const google::protobuf::Message*>& messages) {
  if (messages.empty()) return "[]\n";
  std::string out = format == OutputFormat::kYaml ? "" : "[\n";
  for (size_t i = 0; i < messages.size(); ++i) {
    if (format == OutputFormat::kYaml) {
      absl::StrAppend(&out, IndentLines(EscapedLines(ToYaml(*messages[i])), "- ", "  "));
    } else {
      std::string one = IndentLines(Json(*messages[i], true), " ", " ");
      one.pop_back();
      absl::StrAppend(&out, one, i + 1 < messages.size() ? ",\n" : "\n");
    }
  }
  return format == OutputFormat::kYaml ? out : out + "]\n";
}

std::string JsonLine(const google::protobuf::Message& message) {
  return Json(message, false) + "\n";
}

}  // namespace trainyard::cli
