#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard {

// "spec.data.idx.train_images": the field of spec.data or spec.fine_tune with the longest value
// that `text` contains (a file:// URI also as a path); "spec.data" where it contains none.
std::string FieldNamedIn(const v1::JobSpec& spec, absl::string_view text);

}  // namespace trainyard
