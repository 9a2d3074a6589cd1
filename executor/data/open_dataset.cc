#include "executor/data/open_dataset.h"

#include "absl/strings/str_cat.h"
#include "executor/data/clicks/click_sources.h"
#include "executor/data/images/image_sources.h"
#include "executor/data/text/text_sources.h"

namespace trainyard::data {

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::Data& data,
                                                     const plan::Windowing& windowing) {
  if (data.has_idx()) return OpenImages(data.idx());
  if (data.has_image_folder()) return OpenImageFolder(data.image_folder());
  if (data.has_webdataset()) return OpenWebDataset(data.webdataset());
  if (data.has_csv()) return OpenCsv(data.csv());
  if (data.has_criteo()) return OpenCriteo(data.criteo());
  if (data.has_clicks()) return OpenClicks(data.clicks());
  if (!data.has_text() && !data.has_tokens()) {
    return absl::InvalidArgumentError("spec.data: there is none");
  }
  if (windowing.context < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", windowing.context, " tokens holds none"));
  }
  return data.has_text() ? OpenText(data.text(), windowing) : OpenTokens(data.tokens(), windowing);
}

}  // namespace trainyard::data
