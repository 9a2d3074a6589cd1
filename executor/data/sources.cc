#include "executor/data/sources.h"

#include "executor/data/clicks/click_sources.h"
#include "executor/data/images/image_sources.h"
#include "executor/data/text/text_sources.h"

namespace trainyard::data {

absl::StatusOr<Source> SourceOf(const v1::Data& data) {
  using Facts = Source::Facts;
  using Declared = Source::Declared;
  using Opened = Source::Opened;
  using Of = const v1::Data&;
  using By = const plan::Windowing&;
  switch (data.source_case()) {
    case v1::Data::kIdx:
      return Source{.read = [](Of d, By) -> Facts { return ImageFacts(d.idx()); },
                    .declare = [](Of d, By) -> Declared { return DeclaredImageFacts(d.idx()); },
                    .open = [](Of d, By) -> Opened { return OpenImages(d.idx()); }};
    case v1::Data::kImageFolder:
      return Source{.read = [](Of d, By) -> Facts { return ImageFolderFacts(d.image_folder()); },
                    .declare = [](Of d, By) -> Declared {
                      return DeclaredImageFolderFacts(d.image_folder());
                    },
                    .open = [](Of d, By) -> Opened { return OpenImageFolder(d.image_folder()); }};
    case v1::Data::kWebdataset:
      return Source{
          .read = [](Of d, By) -> Facts { return WebDatasetFacts(d.webdataset()); },
          .declare = [](Of d, By) -> Declared { return DeclaredWebDatasetFacts(d.webdataset()); },
          .open = [](Of d, By) -> Opened { return OpenWebDataset(d.webdataset()); }};
    case v1::Data::kText:
      return Source{
          .read = [](Of d, By w) -> Facts { return TextFacts(d.text(), w); },
          .declare = [](Of d, By w) -> Declared { return DeclaredTextFacts(d.text(), w); },
          .open = [](Of d, By w) -> Opened { return OpenText(d.text(), w); }};
    case v1::Data::kTokens:
      return Source{
          .read = [](Of d, By w) -> Facts { return TokenFacts(d.tokens(), w); },
          .declare = [](Of d, By w) -> Declared { return DeclaredTokenFacts(d.tokens(), w); },
          .open = [](Of d, By w) -> Opened { return OpenTokens(d.tokens(), w); }};
    case v1::Data::kCsv:
      return Source{.read = [](Of d, By) -> Facts { return CsvFacts(d.csv()); },
                    .declare = [](Of d, By) -> Declared { return CsvShape(d.csv()); },
                    .open = [](Of d, By) -> Opened { return OpenCsv(d.csv()); }};
    case v1::Data::kCriteo:
      return Source{.read = [](Of d, By) -> Facts { return CriteoFacts(d.criteo()); },
                    .declare = [](Of d, By) -> Declared { return CriteoShape(d.criteo()); },
                    .open = [](Of d, By) -> Opened { return OpenCriteo(d.criteo()); }};
    case v1::Data::kClicks:
      return Source{.read = [](Of d, By) -> Facts { return ClicksFacts(d.clicks()); },
                    .declare = [](Of d, By) -> Declared { return ClicksFacts(d.clicks()); },
                    .open = [](Of d, By) -> Opened { return OpenClicks(d.clicks()); }};
    case v1::Data::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("spec.data: there is none");
}

}  // namespace trainyard::data
