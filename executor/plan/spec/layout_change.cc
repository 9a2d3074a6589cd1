#include "executor/plan/spec/layout_change.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/plan/spec/mesh.h"
#include "storage/base/status.h"

namespace trainyard::plan {

std::string LayoutText(const v1::JobSpec& spec) {
  v1::Parallel part;
  part.set_shard(StateSharedOut(spec));
  v1::Layout layout = spec.parallel().layout();
  if (layout.tensor() <= 1) layout.clear_tensor();
  if (layout.pipeline() <= 1) layout.clear_pipeline();
  if (layout.chunks() <= 1) layout.clear_chunks();
  if (layout.ByteSizeLong() > 0) *part.mutable_layout() = layout;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  // It fails for what is no valid message, which this is.
  (void)google::protobuf::util::MessageToJsonString(part, &text, options);
  return text;
}

absl::Status SetLayout(const std::string& text, v1::Parallel& parallel) {
  if (text.empty()) return absl::OkStatus();
  v1::Parallel part;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // of a newer server
  if (!google::protobuf::util::JsonStringToMessage(text, &part, options).ok()) {
    return absl::InternalError(absl::StrCat("the stored layout '", text, "' cannot be read"));
  }
  parallel.set_shard(part.shard());
  parallel.clear_layout();
  if (part.has_layout()) *parallel.mutable_layout() = part.layout();
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> SpecInLayout(const std::string& spec, const std::string& text) {
  v1::JobSpec read;
  if (!read.ParseFromString(spec)) return absl::InternalError("the stored spec cannot be read");
  TY_RETURN_IF_ERROR(SetLayout(text, *read.mutable_parallel()));
  return read;
}

std::string DescribeLayout(const v1::JobSpec& spec) {
  const v1::Layout& layout = spec.parallel().layout();
  std::string text = absl::StrCat("tensor ", std::max(1, layout.tensor()), ", pipeline ",
                                  std::max(1, layout.pipeline()));
  if (layout.chunks() > 1) absl::StrAppend(&text, " of ", layout.chunks(), " chunks");
  if (layout.sequence()) absl::StrAppend(&text, ", sequence");
  return absl::StrCat(text, ", shard ", v1::Parallel::Shard_Name(StateSharedOut(spec)));
}

}  // namespace trainyard::plan
