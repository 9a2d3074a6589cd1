#pragma once

// Walks a YAML tree and a message side by side, by reflection, so that a file may have every field
// of the proto.

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "yaml-cpp/yaml.h"

namespace trainyard::text {

// Where a tree came from, for messages.
struct Origin {
  std::string name;       // "job.yaml", or "--set spec.training.steps"
  bool positions = true;  // whether line and column mean something
};

// Reads one tree into one root message. Refuses unknown keys, duplicate keys, two members of a
// oneof, wrong types, null scalars, tags, fields that only the server writes, and trees that unfold
// (by aliases) to more than 100,000 values. Every message names the place and the field.
class FieldReader {
 public:
  FieldReader(Origin origin, const google::protobuf::Descriptor& root)
      : origin_(std::move(origin)), root_(root) {}

  // `path` is where `message` stands below the root: "" for the root, "spec.training".
  absl::Status ReadMessage(const YAML::Node& node, const std::string& path,
                           google::protobuf::Message& message);

  // Reads one whole field; a list or map field keeps what it holds, and the new elements are added.
  absl::Status ReadField(const YAML::Node& node, const std::string& path,
                         const google::protobuf::FieldDescriptor& field,
                         google::protobuf::Message& message);

  // kInvalidArgument with the place of `mark` before the text.
  absl::Status Error(const YAML::Mark& mark, const std::string& text) const;

  // "unknown field 'batchsize' (did you mean 'batch_size'?)"; without a suggestion it says where a
  // field of that name lives, or which fields there are.
  std::string UnknownField(const std::string& key, const std::string& path,
                           const google::protobuf::Descriptor& type) const;

 private:
  absl::Status ReadList(const YAML::Node& node, const std::string& path,
                        const google::protobuf::FieldDescriptor& field,
                        google::protobuf::Message& message);
  absl::Status ReadMap(const YAML::Node& node, const std::string& path,
                       const google::protobuf::FieldDescriptor& field,
                       google::protobuf::Message& message);
  absl::Status ReadScalar(const YAML::Node& node, const std::string& path,
                          const google::protobuf::FieldDescriptor& field,
                          google::protobuf::Message& message);
  absl::Status CheckNode(const YAML::Node& node);

  Origin origin_;
  const google::protobuf::Descriptor& root_;
  int visited_ = 0;
};

// Whether only the server writes this field of a Job.
bool IsServerOnly(const google::protobuf::FieldDescriptor& field);

// "field 'state' is written by the server only; remove it".
std::string ServerOnlyText(const google::protobuf::FieldDescriptor& field);

// "spec" and "training" to "spec.training".
std::string JoinPath(const std::string& path, const std::string& key);

}  // namespace trainyard::text
