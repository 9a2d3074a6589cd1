#include "executor/data/open_dataset.h"

#include "absl/strings/str_cat.h"
#include "executor/data/sources.h"
#include "storage/base/status.h"

namespace trainyard::data {

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::Data& data,
                                                     const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(const Source source, SourceOf(data));
  if ((data.has_text() || data.has_tokens()) && windowing.context < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", windowing.context, " tokens holds none"));
  }
  return source.open(data, windowing);
}

}  // namespace trainyard::data
