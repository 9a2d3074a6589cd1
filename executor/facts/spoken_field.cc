#include "executor/facts/spoken_field.h"

#include <google/protobuf/message.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace trainyard {
namespace {

// The field below `message`, which is called `prefix`. `longest`: the length of the value that was
// found so far.
std::string FieldBelow(const google::protobuf::Message& message, const std::string& prefix,
                       absl::string_view text, size_t& longest) {
  std::string found = prefix;
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const google::protobuf::Reflection* reflection = message.GetReflection();
  reflection->ListFields(message, &set);
  const auto consider = [&](const std::string& value, const std::string& field) {
    const absl::string_view path = absl::StripPrefix(value, "file://");
    if (path.size() <= longest || !absl::StrContains(text, path)) return;
    longest = path.size();
    found = field;
  };
  using Descriptor = google::protobuf::FieldDescriptor;
  for (const Descriptor* field : set) {
    const std::string name = absl::StrCat(prefix, ".", field->name());
    if (field->cpp_type() == Descriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      const size_t before = longest;
      std::string inner = FieldBelow(reflection->GetMessage(message, field), name, text, longest);
      if (longest > before) found = std::move(inner);
    } else if (field->cpp_type() == Descriptor::CPPTYPE_STRING && field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        consider(reflection->GetRepeatedString(message, field, i), absl::StrCat(name, "[", i, "]"));
      }
    } else if (field->cpp_type() == Descriptor::CPPTYPE_STRING) {
      consider(reflection->GetString(message, field), name);
    }
  }
  return found;
}

}  // namespace

std::string FieldNamedIn(const v1::JobSpec& spec, absl::string_view text) {
  size_t longest = 0;
  const std::string data = FieldBelow(spec.data(), "spec.data", text, longest);
  const size_t of_data = longest;
  const std::string from = FieldBelow(spec.fine_tune(), "spec.fine_tune", text, longest);
  return longest > of_data ? from : data;
}

}  // namespace trainyard
