#include "executor/engine/checkpoint/layout.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "storage/base/digest.h"

namespace trainyard::engine {
namespace {

v1::JobSpec WhatDecidesWeights(v1::JobSpec spec) {
  spec.clear_resources();
  spec.clear_evaluation();
  spec.clear_checkpoint();
  spec.clear_retry();
  spec.mutable_training()->clear_log_every();
  spec.mutable_training()->clear_on_non_finite();
  spec.mutable_training()->clear_max_rollbacks();
  spec.mutable_training()->clear_recompute();
  spec.mutable_parallel()->clear_shard();
  spec.mutable_parallel()->clear_layout();
  spec.mutable_parallel()->clear_arithmetic();
  spec.mutable_parallel()->clear_progress_timeout_seconds();
  spec.mutable_parallel()->clear_check_links();
  spec.mutable_parallel()->clear_second_owner();
  spec.mutable_data()->clear_prefetch();
  spec.mutable_data()->clear_threads();
  return spec;
}

}  // namespace

std::string StepFolder(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::optional<int64_t> ParseStepFolder(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, "step-") || !absl::SimpleAtoi(name, &step)) return std::nullopt;
  if (step < 0 || StepFolder(step).substr(5) != std::string(name)) return std::nullopt;
  return step;
}

std::string SpecDigest(const v1::JobSpec& spec) {
  const v1::JobSpec kept = WhatDecidesWeights(spec);
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    kept.SerializeToCodedStream(&out);
  }
  return Sha256Hex(bytes);
}

std::string SpecDifference(const v1::JobSpec& before, const v1::JobSpec& after) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(WhatDecidesWeights(before), WhatDecidesWeights(after))) return "";
  while (!report.empty() && report.back() == '\n') report.pop_back();
  return absl::StrReplaceAll(report, {{"\n", "; "}});
}

}  // namespace trainyard::engine
