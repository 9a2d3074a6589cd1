#include "proto/text/field_reader.h"

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/text/scalar_field.h"
#include "storage/base/status.h"
#include "storage/base/suggest.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard::text {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

// A list of aliases to lists of aliases unfolds exponentially; no honest job has this many values.
constexpr int kMaxValues = 100000;

// YAML limits a key to 1024 characters, and ToYaml writes up to four characters for a byte.
constexpr size_t kMaxKeyBytes = 200;

bool IsMessage(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

std::string Short(const std::string& text) {
  return text.size() <= 60 ? text : absl::StrCat(text.substr(0, 60), "…");
}

std::string Found(const YAML::Node& node) {
  if (node.IsMap()) return "fields";
  if (node.IsSequence()) return "a list";
  if (node.IsNull()) return "nothing";
  return absl::StrCat("'", Short(node.Scalar()), "'");
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) {
    if (!IsServerOnly(*type.field(i))) names.push_back(type.field(i)->name());
  }
  return names;
}

// Path of the shallowest message below `root` that has a field `key`, if there is one.
std::optional<std::string> FindMessageWithField(const Descriptor& root, const std::string& key) {
  std::deque<std::pair<const Descriptor*, std::string>> open = {{&root, ""}};
  std::set<const Descriptor*> seen;
  while (!open.empty()) {
    const auto [type, path] = open.front();
    open.pop_front();
    if (!seen.insert(type).second) continue;
    const FieldDescriptor* found = type->FindFieldByName(key);
    if (found != nullptr && !IsServerOnly(*found)) return path;
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor& field = *type->field(i);
      if (IsMessage(field) && !field.is_map() && !IsServerOnly(field)) {
        open.emplace_back(field.message_type(), JoinPath(path, field.name()));
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string JoinPath(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

bool IsServerOnly(const FieldDescriptor& field) {
  if (field.containing_type() != v1::Job::descriptor()) return false;
  static const auto& kWritable =
      *new std::set<int>{v1::Job::kJobIdFieldNumber, v1::Job::kLabelsFieldNumber,
                         v1::Job::kPriorityFieldNumber, v1::Job::kSpecFieldNumber};
  return kWritable.count(field.number()) == 0;
}

std::string ServerOnlyText(const FieldDescriptor& field) {
  return absl::StrCat(
      "field '", field.name(), "' is written by the server only; ",
      field.name() == "name" ? "write 'job_id' to choose the id of the job" : "remove it");
}

absl::Status FieldReader::Error(const YAML::Mark& mark, const std::string& text) const {
  if (!origin_.positions || mark.line < 0) {
    return absl::InvalidArgumentError(absl::StrCat(origin_.name, ": ", text));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(origin_.name, ":", mark.line + 1, ":", mark.column + 1, ": ", text));
}

std::string FieldReader::UnknownField(const std::string& key, const std::string& path,
                                      const Descriptor& type) const {
  const std::string unknown = absl::StrCat("unknown field '", Short(key), "'");
  if (const std::optional<std::string> home = FindMessageWithField(root_, key)) {
    return absl::StrCat(unknown, path.empty() ? "" : absl::StrCat(" in ", path), "; '", key,
                        "' belongs ",
                        home->empty() ? "to the top level" : absl::StrCat("in ", *home));
  }
  const std::vector<std::string> names = FieldNames(type);
  const std::string suggestion = DidYouMean(key, names);
  if (!suggestion.empty()) return absl::StrCat(unknown, suggestion);
  return absl::StrCat(unknown, path.empty() ? "" : absl::StrCat(" in ", path),
                      names.empty()
                          ? "; no field is expected here"
                          : absl::StrCat("; expected one of ", absl::StrJoin(names, ", ")));
}

absl::Status FieldReader::CheckNode(const YAML::Node& node) {
  if (++visited_ > kMaxValues) {
    return Error(node.Mark(), absl::StrCat("more than ", kMaxValues, " values"));
  }
  const std::string& tag = node.Tag();
  if (!tag.empty() && tag != "?" && tag != "!") {
    return Error(node.Mark(), absl::StrCat("tag '", Short(tag), "': tags are not supported"));
  }
  return absl::OkStatus();
}

absl::Status FieldReader::ReadMessage(const YAML::Node& node, const std::string& path,
                                      Message& message) {
  TY_RETURN_IF_ERROR(CheckNode(node));
  const Descriptor& type = *message.GetDescriptor();
  if (node.IsNull()) return absl::OkStatus();  // `adamw:` with nothing below means its defaults
  if (!node.IsMap()) {
    std::string hint;
    if (node.IsScalar() && type.FindFieldByName(node.Scalar()) != nullptr) {
      hint = absl::StrCat("; write '", node.Scalar(), ":' on a line of its own below");
    }
    return Error(node.Mark(), absl::StrCat(path.empty() ? "" : path + ": ",
                                           "expected fields, found ", Found(node), hint));
  }
  std::map<std::string, int> first_line;
  std::map<const OneofDescriptor*, std::string> chosen;
  for (const auto& entry : node) {
    const YAML::Node& key = entry.first;
    TY_RETURN_IF_ERROR(CheckNode(key));
    if (!key.IsScalar()) {
      return Error(key.Mark(), absl::StrCat("expected the name of a field, found ", Found(key)));
    }
    const std::string& name = key.Scalar();
    const FieldDescriptor* field = type.FindFieldByName(name);
    if (field == nullptr) return Error(key.Mark(), UnknownField(name, path, type));
    if (IsServerOnly(*field)) return Error(key.Mark(), ServerOnlyText(*field));
    const auto [line, fresh] = first_line.emplace(name, key.Mark().line + 1);
    if (!fresh) {
      return Error(key.Mark(), absl::StrCat("field '", name, "' is given twice",
                                            origin_.positions ? absl::StrCat(" (first on line ",
                                                                             line->second, ")")
                                                              : ""));
    }
    if (const OneofDescriptor* oneof = field->real_containing_oneof(); oneof != nullptr) {
      const auto [choice, first] = chosen.emplace(oneof, name);
      if (!first) {
        return Error(key.Mark(), absl::StrCat(path, ": both '", choice->second, "' and '", name,
                                              "' are given; choose one"));
      }
    }
    TY_RETURN_IF_ERROR(ReadField(entry.second, JoinPath(path, name), *field, message));
  }
  return absl::OkStatus();
}

absl::Status FieldReader::ReadField(const YAML::Node& node, const std::string& path,
                                    const FieldDescriptor& field, Message& message) {
  if (field.is_map()) return ReadMap(node, path, field, message);
  if (field.is_repeated()) return ReadList(node, path, field, message);
  if (IsMessage(field)) {
    return ReadMessage(node, path, *message.GetReflection()->MutableMessage(&message, &field));
  }
  return ReadScalar(node, path, field, message);
}

absl::Status FieldReader::ReadList(const YAML::Node& node, const std::string& path,
                                   const FieldDescriptor& field, Message& message) {
  TY_RETURN_IF_ERROR(CheckNode(node));
  if (!node.IsSequence()) {
    return Error(
        node.Mark(),
        absl::StrCat(path, ": expected a list, found ", Found(node),
                     node.IsScalar() ? absl::StrCat("; write [", Short(node.Scalar()), "]") : ""));
  }
  int index = 0;
  for (const YAML::Node& element : node) {
    const std::string place = absl::StrCat(path, "[", index++, "]");
    if (IsMessage(field)) {
      TY_RETURN_IF_ERROR(
          ReadMessage(element, place, *message.GetReflection()->AddMessage(&message, &field)));
    } else {
      TY_RETURN_IF_ERROR(ReadScalar(element, place, field, message));
    }
  }
  return absl::OkStatus();
}

absl::Status FieldReader::ReadMap(const YAML::Node& node, const std::string& path,
                                  const FieldDescriptor& field, Message& message) {
  TY_RETURN_IF_ERROR(CheckNode(node));
  if (node.IsNull()) return absl::OkStatus();
  if (!node.IsMap()) {
    return Error(node.Mark(),
                 absl::StrCat(path, ": expected 'key: value' pairs, found ", Found(node)));
  }
  const Descriptor& pair_type = *field.message_type();
  std::set<std::string> seen;
  for (const auto& entry : node) {
    TY_RETURN_IF_ERROR(CheckNode(entry.first));
    if (!entry.first.IsScalar()) {
      return Error(entry.first.Mark(),
                   absl::StrCat(path, ": expected a key, found ", Found(entry.first)));
    }
    const std::string& key = entry.first.Scalar();
    if (key.size() > kMaxKeyBytes) {
      return Error(entry.first.Mark(), absl::StrCat(path, ": a key of ", key.size(),
                                                    " bytes; expected at most ", kMaxKeyBytes));
    }
    if (!seen.insert(key).second) {
      return Error(entry.first.Mark(), absl::StrCat(path, ": '", Short(key), "' is given twice"));
    }
    Message& pair = *message.GetReflection()->AddMessage(&message, &field);
    const absl::Status assigned = AssignScalar(pair, *pair_type.map_key(), {key, true});
    if (!assigned.ok()) {
      return Error(entry.first.Mark(), absl::StrCat(path, ": ", assigned.message()));
    }
    TY_RETURN_IF_ERROR(
        ReadField(entry.second, JoinPath(path, Short(key)), *pair_type.map_value(), pair));
  }
  return absl::OkStatus();
}

absl::Status FieldReader::ReadScalar(const YAML::Node& node, const std::string& path,
                                     const FieldDescriptor& field, Message& message) {
  TY_RETURN_IF_ERROR(CheckNode(node));
  if (!node.IsScalar()) {
    return Error(node.Mark(),
                 absl::StrCat(path, ": expected ", Expected(field), ", found ", Found(node)));
  }
  const absl::Status status =
      AssignScalar(message, field, {node.Scalar(), /*quoted=*/node.Tag() == "!"});
  return status.ok() ? status : Error(node.Mark(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace trainyard::text
