#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "proto/text/job_file.h"

namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string Spaces(int indent) { return std::string(indent, ' '); }

// Words that YAML readers take for something else than a string.
bool IsReserved(const std::string& text) {
  static const char* const kWords[] = {"true", "false", "null", "yes", "no", "on",
                                       "off",  "nan",   "inf",  "y",   "n"};
  const std::string lower = absl::AsciiStrToLower(text);
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](const char* word) { return lower == word; });
}

bool IsPlain(const std::string& text) {
  if (text.empty() || IsReserved(text)) return false;
  if (!absl::ascii_isalpha(text[0]) && text[0] != '/' && text[0] != '_') return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-' || c >= 0x80;
  });
}

std::string Text(const std::string& text) {
  if (IsPlain(text)) return text;
  std::string out = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string Number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[32];  // the shortest text that reads back to the same value
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

std::string Time(const Message& message) {
  google::protobuf::Timestamp time;
  time.CopyFrom(message);
  return absl::StrCat(
      "\"",
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ",
                       absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos()),
                       absl::UTCTimeZone()),
      "\"");
}

bool IsTime(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field.message_type() == google::protobuf::Timestamp::descriptor();
}

// The value of a scalar field, or of one element of it when `index` >= 0.
std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return (one ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, index))
                 ? "true"
                 : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(one ? r.GetInt32(message, &field)
                              : r.GetRepeatedInt32(message, &field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(one ? r.GetInt64(message, &field)
                              : r.GetRepeatedInt64(message, &field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(one ? r.GetUInt64(message, &field)
                              : r.GetRepeatedUInt64(message, &field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(one ? r.GetUInt32(message, &field)
                              : r.GetRepeatedUInt32(message, &field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(one ? r.GetDouble(message, &field)
                        : r.GetRepeatedDouble(message, &field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_ENUM:
      return (one ? r.GetEnum(message, &field) : r.GetRepeatedEnum(message, &field, index))->name();
    default: {
      const std::string value =
          one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index);
      return field.type() == FieldDescriptor::TYPE_BYTES
                 ? absl::StrCat("\"", absl::Base64Escape(value), "\"")
                 : Text(value);
    }
  }
}

void WriteMessage(const Message& message, int indent, std::string& out);

// " {}\n" or the fields on lines of their own.
void WriteBelow(const Message& message, int indent, std::string& out) {
  std::string body;
  WriteMessage(message, indent, body);
  absl::StrAppend(&out, body.empty() ? " {}\n" : "\n", body);
}

void WriteMap(const Message& message, const FieldDescriptor& field, int indent, std::string& out) {
  const Reflection& r = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::vector<std::string> lines;  // sorted: the order in memory is arbitrary
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const Message& pair = r.GetRepeatedMessage(message, &field, i);
    std::string line = absl::StrCat(Spaces(indent), ScalarText(pair, key, -1), ":");
    if (value.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      WriteBelow(pair.GetReflection()->GetMessage(pair, &value), indent + 2, line);
    } else {
      absl::StrAppend(&line, " ", ScalarText(pair, value, -1), "\n");
    }
    lines.push_back(std::move(line));
  }
  std::sort(lines.begin(), lines.end());
  out += "\n";
  for (const std::string& line : lines) out += line;
}

void WriteList(const Message& message, const FieldDescriptor& field, int indent, std::string& out) {
  const Reflection& r = *message.GetReflection();
  const int size = r.FieldSize(message, &field);
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    out += " [";
    for (int i = 0; i < size; ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ", ", ScalarText(message, field, i));
    }
    out += "]\n";
    return;
  }
  out += "\n";
  for (int i = 0; i < size; ++i) {
    std::string body;
    WriteMessage(r.GetRepeatedMessage(message, &field, i), indent + 2, body);
    if (body.empty()) body = Spaces(indent + 2) + "{}\n";
    body[indent] = '-';
    out += body;
  }
}

void WriteMessage(const Message& message, int indent, std::string& out) {
  const Reflection& r = *message.GetReflection();
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool present =
        field.is_repeated() ? r.FieldSize(message, &field) > 0 : r.HasField(message, &field);
    if (!present) continue;
    absl::StrAppend(&out, Spaces(indent), field.name(), ":");
    if (field.is_map()) {
      WriteMap(message, field, indent + 2, out);
    } else if (field.is_repeated()) {
      WriteList(message, field, indent + 2, out);
    } else if (IsTime(field)) {
      absl::StrAppend(&out, " ", Time(r.GetMessage(message, &field)), "\n");
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      WriteBelow(r.GetMessage(message, &field), indent + 2, out);
    } else {
      absl::StrAppend(&out, " ", ScalarText(message, field, -1), "\n");
    }
  }
}

}  // namespace

std::string ToYaml(const Message& message) {
  std::string out;
  WriteMessage(message, 0, out);
  return out.empty() ? "{}\n" : out;
}

}  // namespace trainyard
