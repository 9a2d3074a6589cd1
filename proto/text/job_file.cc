#include "proto/text/job_file.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/text/field_reader.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

// yaml-cpp reports by exceptions; this is the file where they become Status.
namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using text::FieldReader;

// A parsed tree takes several hundred bytes per value, so the text is bounded before it is parsed.
constexpr size_t kMaxBytes = 256 << 10;

// A file has fewer documents than this, empty ones included (CheckThatDocumentsEnd).
constexpr int kMaxDocuments = 1000;

// Offset of the first byte that does not belong to well-formed UTF-8, or npos.
size_t FirstInvalidUtf8(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return absl::string_view::npos;
}

absl::Status CheckText(const std::string& yaml, const std::string& name) {
  if (yaml.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", yaml.size(), " bytes; a job file has at most ", kMaxBytes));
  }
  const size_t nul = yaml.find('\0');
  const size_t bad = nul == std::string::npos ? FirstInvalidUtf8(yaml) : nul;
  if (bad == std::string::npos) return absl::OkStatus();
  const size_t line = 1 + std::count(yaml.begin(), yaml.begin() + bad, '\n');
  const size_t line_start = bad == 0 ? std::string::npos : yaml.rfind('\n', bad - 1);
  const size_t column = bad - (line_start == std::string::npos ? 0 : line_start + 1) + 1;
  return absl::InvalidArgumentError(absl::StrCat(
      name, ":", line, ":", column, ": ", nul != std::string::npos ? "a NUL byte" : "not UTF-8",
      "; a job file is UTF-8 text"));
}

// Whether the indentation of `line` (from 0) has a tab: yaml-cpp reports an error in what comes
// after the tab instead.
bool HasTabIndent(const std::string& yaml, int line) {
  const std::vector<std::string> lines = absl::StrSplit(yaml, '\n');
  if (line < 0 || line >= static_cast<int>(lines.size())) return false;
  const size_t text_start = lines[line].find_first_not_of(" \t");
  return absl::StrContains(lines[line].substr(0, text_start), "\t");
}

absl::Status FromException(const FieldReader& reader, const YAML::Exception& error,
                           const std::string& yaml) {
  for (int line = error.mark.line; line >= 0 && line >= error.mark.line - 1; --line) {
    if (HasTabIndent(yaml, line)) {
      YAML::Mark mark = error.mark;
      mark.line = line;
      mark.column = 0;
      return reader.Error(mark, "a tab in the indentation; YAML indents with spaces");
    }
  }
  return reader.Error(error.mark, absl::StrCat("not valid YAML: ", error.msg));
}

// Remembers where the last document began, and nothing else.
class DocumentStarts : public YAML::EventHandler {
 public:
  const YAML::Mark& last() const { return last_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark last_;
};

// yaml-cpp 0.7 reads a stray flow indicator ("," at the start of a line) as one empty document
// after the other, without end.
absl::Status CheckThatDocumentsEnd(const FieldReader& reader, const std::string& yaml) {
  std::istringstream in(yaml);
  YAML::Parser parser(in);
  DocumentStarts starts;
  for (int document = 0; document < kMaxDocuments; ++document) {
    if (!parser.HandleNextDocument(starts)) return absl::OkStatus();
  }
  return reader.Error(starts.last(), "not valid YAML: no value can begin here");
}

absl::StatusOr<std::vector<YAML::Node>> Documents(const FieldReader& reader,
                                                  const std::string& name,
                                                  const std::string& yaml) {
  TY_RETURN_IF_ERROR(CheckThatDocumentsEnd(reader, yaml));
  std::vector<YAML::Node> documents;
  for (const YAML::Node& document : YAML::LoadAll(yaml)) {
    if (!document.IsNull()) documents.push_back(document);
  }
  if (documents.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the file is empty; expected a job with 'spec'"));
  }
  return documents;
}

// Walks to the message that holds the last part of a path.
class PathWalk {
 public:
  PathWalk(const FieldReader& reader, const std::string& path) : reader_(reader), path_(path) {}

  // `message` moves to the message that holds the field; returns the field.
  absl::StatusOr<const FieldDescriptor*> Walk(Message*& message) {
    std::vector<std::string> parts = absl::StrSplit(path_, '.');
    const Descriptor& root = *message->GetDescriptor();
    // "training.steps" is short for "spec.training.steps".
    const FieldDescriptor* spec = root.FindFieldByName("spec");
    const FieldDescriptor* first = root.FindFieldByName(parts[0]);
    if (spec != nullptr && (first == nullptr || text::IsServerOnly(*first)) &&
        spec->message_type()->FindFieldByName(parts[0]) != nullptr) {
      parts.insert(parts.begin(), "spec");
    }
    std::string walked;
    for (size_t i = 0;; ++i) {
      TY_ASSIGN_OR_RETURN(const FieldDescriptor* field, Find(*message, walked, parts[i]));
      walked = text::JoinPath(walked, parts[i]);
      if (i + 1 == parts.size()) return field;
      if (field->is_map() && i + 2 == parts.size()) {
        message = NewPair(*message, *field, parts[i + 1]);
        return field->message_type()->map_value();
      }
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) {
        return Refuse(absl::StrCat("'", walked, "' has no fields of its own"));
      }
      if (field->is_repeated()) {
        TY_ASSIGN_OR_RETURN(message, Element(*message, *field, walked, parts[++i]));
        if (i + 1 == parts.size()) {
          return Refuse(absl::StrCat("name a field of element ", parts[i], " of '", walked, "'"));
        }
        walked = text::JoinPath(walked, parts[i]);
      } else {
        message = message->GetReflection()->MutableMessage(message, field);
      }
    }
  }

 private:
  absl::Status Refuse(const std::string& what) const {
    return reader_.Error(YAML::Mark::null_mark(), what);
  }

  absl::StatusOr<const FieldDescriptor*> Find(const Message& message, const std::string& walked,
                                              const std::string& part) const {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(part);
    if (field == nullptr) {
      return Refuse(reader_.UnknownField(part, walked, *message.GetDescriptor()));
    }
    if (text::IsServerOnly(*field)) return Refuse(text::ServerOnlyText(*field));
    return field;
  }

  absl::StatusOr<Message*> Element(Message& message, const FieldDescriptor& field,
                                   const std::string& walked, const std::string& part) const {
    const int size = message.GetReflection()->FieldSize(message, &field);
    int index = -1;
    if (!absl::SimpleAtoi(part, &index) || index < 0 || index >= size) {
      return Refuse(absl::StrCat("'", part, "' is not an element of '", walked, "', which has ",
                                 size, size == 0 ? "" : absl::StrCat(": write 0 to ", size - 1)));
    }
    return message.GetReflection()->MutableRepeatedMessage(&message, &field, index);
  }

  static Message* NewPair(Message& message, const FieldDescriptor& field, const std::string& key) {
    // Of two map entries with the same key the later one wins, in memory as on the wire.
    Message* pair = message.GetReflection()->AddMessage(&message, &field);
    pair->GetReflection()->SetString(pair, field.message_type()->map_key(), key);
    return pair;
  }

  const FieldReader& reader_;
  const std::string& path_;
};

bool IsPlainString(const FieldDescriptor& field, const std::string& value) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && !field.is_repeated() &&
         !absl::StartsWith(value, "\"") && !absl::StartsWith(value, "'");
}

}  // namespace

absl::StatusOr<v1::Job> ParseJobFile(const std::string& yaml, const std::string& file) {
  TY_RETURN_IF_ERROR(CheckText(yaml, file));
  FieldReader reader({file, true}, *v1::Job::descriptor());
  try {
    TY_ASSIGN_OR_RETURN(const std::vector<YAML::Node> documents, Documents(reader, file, yaml));
    if (documents.size() > 1) {
      return reader.Error(documents[1].Mark(), "a second document; a job file holds one job");
    }
    v1::Job job;
    TY_RETURN_IF_ERROR(reader.ReadMessage(documents[0], "", job));
    return job;
  } catch (const YAML::Exception& error) {
    return FromException(reader, error, yaml);
  }
}

absl::StatusOr<std::vector<JobDocument>> ParseJobDocuments(const std::string& yaml,
                                                           const std::string& file) {
  TY_RETURN_IF_ERROR(CheckText(yaml, file));
  const FieldReader whole({file, true}, *v1::Job::descriptor());
  try {
    TY_ASSIGN_OR_RETURN(const std::vector<YAML::Node> documents, Documents(whole, file, yaml));
    std::vector<JobDocument> jobs(documents.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      FieldReader reader({file, true}, *v1::Job::descriptor());
      TY_RETURN_IF_ERROR(reader.ReadMessage(documents[i], "", jobs[i].job));
      jobs[i].line = documents[i].Mark().line + 1;
    }
    return jobs;
  } catch (const YAML::Exception& error) {
    return FromException(whole, error, yaml);
  }
}

absl::Status SetField(Message& message, const std::string& path, const std::string& value) {
  const std::string name = absl::StrCat("--set ", path);
  TY_RETURN_IF_ERROR(CheckText(value, name));
  FieldReader reader({name, false}, *message.GetDescriptor());
  // On a copy: a refused value leaves the message as it was.
  std::unique_ptr<Message> changed(message.New());
  changed->CopyFrom(message);
  Message* holder = changed.get();
  TY_ASSIGN_OR_RETURN(const FieldDescriptor* field, PathWalk(reader, path).Walk(holder));
  try {
    const YAML::Node node = IsPlainString(*field, value) ? YAML::Node(value) : YAML::Load(value);
    holder->GetReflection()->ClearField(holder, field);
    if (value != "null" && value != "~") {
      TY_RETURN_IF_ERROR(reader.ReadField(node, field->name(), *field, *holder));
    }
  } catch (const YAML::Exception& error) {
    return reader.Error(YAML::Mark::null_mark(), absl::StrCat("not valid YAML: ", error.msg));
  }
  message.GetReflection()->Swap(&message, changed.get());
  return absl::OkStatus();
}

}  // namespace trainyard
