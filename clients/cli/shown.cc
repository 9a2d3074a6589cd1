#include "clients/cli/shown.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "storage/base/printable.h"

namespace trainyard::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string EscapedText(const FieldDescriptor& field, const std::string& text) {
  return field.name() == "message" ? EscapedLines(text) : EscapedLine(text);
}

void EscapeField(Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  const int count = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      EscapeTexts(field.is_repeated() ? *reflection.MutableRepeatedMessage(&message, &field, i)
                                      : *reflection.MutableMessage(&message, &field));
    } else if (field.type() == FieldDescriptor::TYPE_STRING && field.is_repeated()) {
      reflection.SetRepeatedString(
          &message, &field, i,
          EscapedText(field, reflection.GetRepeatedString(message, &field, i)));
    } else if (field.type() == FieldDescriptor::TYPE_STRING) {
      reflection.SetString(&message, &field,
                           EscapedText(field, reflection.GetString(message, &field)));
    }
  }
}

}  // namespace

void EscapeTexts(Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) EscapeField(message, *field);
}

std::string Indented(absl::string_view text, absl::string_view indent) {
  return absl::StrReplaceAll(text, {{"\n", absl::StrCat("\n", indent)}});
}

std::string EscapedJson(absl::string_view json) {
  std::vector<std::pair<std::string, std::string>> raw;
  const auto add = [&raw](uint32_t from, uint32_t to) {
    for (uint32_t code = from; code <= to; ++code) {
      std::string bytes;
      if (code < 0x80) {
        bytes = {static_cast<char>(code)};
      } else if (code < 0x800) {
        bytes = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
      } else {
        bytes = {static_cast<char>(0xE0 | (code >> 12)),
                 static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
                 static_cast<char>(0x80 | (code & 0x3F))};
      }
      raw.emplace_back(bytes, absl::StrFormat("\\u%04x", code));
    }
  };
  add(0x7F, 0x9F);
  add(0x061C, 0x061C);
  add(0x200E, 0x200F);
  add(0x2028, 0x202E);
  add(0x2066, 0x2069);
  return absl::StrReplaceAll(json, raw);
}

}  // namespace trainyard::cli
