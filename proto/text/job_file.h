#pragma once

// One YAML job file equals the Job message, key for key. Strict: unknown keys, wrong types and
// server-only fields are refused with file, line, column and a suggestion.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard {

// `file` names the source in messages:
//   job.yaml:7:3: unknown field 'batchsize' (did you mean 'batch_size'?)
absl::StatusOr<v1::Job> ParseJobFile(const std::string& yaml, const std::string& file);

// A file of one job or of several, with lines of `---` between them; empty documents are passed
// over.
struct JobDocument {
  v1::Job job;
  int line = 1;  // where it begins
};
absl::StatusOr<std::vector<JobDocument>> ParseJobDocuments(const std::string& yaml,
                                                           const std::string& file);

// Sets one field from the command line: path "spec.training.steps" (or "training.steps"), value in
// YAML.
// "--set spec.training.step: unknown field 'step' (did you mean 'steps'?)"
absl::Status SetField(google::protobuf::Message& message, const std::string& path,
                      const std::string& value);

// The message as YAML that ParseJobFile reads back; fields in the order of the proto.
std::string ToYaml(const google::protobuf::Message& message);

}  // namespace trainyard
