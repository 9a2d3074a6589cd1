// Job files: whatever is accepted comes back from its own YAML as the same message.

#include "proto/text/job_file.h"
#include "google/protobuf/util/message_differencer.h"
#include "storage/base/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using google::protobuf::util::MessageDifferencer;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<trainyard::v1::Job> job = trainyard::ParseJobFile(text, "job.yaml");
  if (!job.ok()) return 0;
  const std::string yaml = trainyard::ToYaml(*job);
  const absl::StatusOr<trainyard::v1::Job> again = trainyard::ParseJobFile(yaml, "again.yaml");
  TY_CHECK(again.ok(), again.status().message(), "\n", yaml);
  TY_CHECK(MessageDifferencer::Equals(*job, *again), yaml);
  return 0;
}
