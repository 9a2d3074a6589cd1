#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "executor/plan/spec/data.h"

namespace trainyard::plan {

namespace {

constexpr int64_t kMostClasses = int64_t{1} << 20;
constexpr int64_t kMostSide = 16384;
constexpr size_t kMostNameBytes = size_t{4} << 20;  // of the archives that braces stand for

using Numbers = google::protobuf::RepeatedField<double>;

void Set(Numbers& numbers, std::initializer_list<double> values) {
  numbers.Assign(values.begin(), values.end());
}

// Two numbers, the first not above the second, both in [low, high] and above 0.
absl::Status ResolveRange(const std::string& field, double low, double high, double first,
                          double second, Numbers& range) {
  if (range.empty()) Set(range, {first, second});
  const bool fine = range.size() == 2 && range[0] > 0 && range[0] >= low && range[1] <= high &&
                    range[0] <= range[1];
  if (fine) return absl::OkStatus();
  return Invalid(field, "[", absl::StrJoin(range, ", "), "] is no range within ",
                 low > 0 ? absl::StrCat("[", low) : "(0", ", ", high, "]; give [least, greatest]");
}

absl::Status ResolvePerChannel(const std::string& field, int channels, Numbers& numbers) {
  if (numbers.size() == 1) {
    const double all = numbers[0];  // not a reference into what is about to grow
    numbers.Resize(channels, all);
  }
  if (numbers.size() != channels) {
    return Invalid(field, numbers.size(), " numbers for ", channels, " channels; give one or ",
                   channels);
  }
  for (int c = 0; c < channels; ++c) {
    TY_RETURN_IF_ERROR(CheckFinite(absl::StrCat(field, "[", c, "]"), numbers[c]));
  }
  return absl::OkStatus();
}

absl::Status ResolveTransform(const std::string& at, v1::ImageTransform& t) {
  if (t.size() == 0) return Invalid(at + "size", "is missing; give the side of a sample in pixels");
  TY_RETURN_IF_ERROR(CheckRange(at + "size", t.size(), 1, 4096));
  if (!t.has_resize()) t.set_resize(static_cast<int32_t>(std::lround(t.size() / 0.875)));
  TY_RETURN_IF_ERROR(CheckRange(at + "resize", t.resize(), t.size(), kMostSide));
  if (t.crop() == v1::ImageTransform::CROP_UNSPECIFIED) {
    t.set_crop(v1::ImageTransform::RANDOM_RESIZED);
  }
  TY_RETURN_IF_ERROR(CheckChoice(at + "crop", t.crop(), "choice; use RANDOM_RESIZED or CENTER"));
  TY_RETURN_IF_ERROR(ResolveRange(at + "scale", 0, 1, 0.08, 1, *t.mutable_scale()));
  TY_RETURN_IF_ERROR(ResolveRange(at + "ratio", 0.01, 100, 3.0 / 4, 4.0 / 3, *t.mutable_ratio()));
  if (!t.has_flip()) t.set_flip(true);
  if (!t.has_channels()) t.set_channels(3);
  if (t.channels() != 1 && t.channels() != 3) {
    return Invalid(at + "channels", t.channels(), " is neither 3 (RGB) nor 1 (luma)");
  }
  const bool rgb = t.channels() == 3;
  if (t.mean().empty()) {
    rgb ? Set(*t.mutable_mean(), {0.485, 0.456, 0.406}) : Set(*t.mutable_mean(), {0.449});
  }
  if (t.std().empty()) {
    rgb ? Set(*t.mutable_std(), {0.229, 0.224, 0.225}) : Set(*t.mutable_std(), {0.226});
  }
  TY_RETURN_IF_ERROR(ResolvePerChannel(at + "mean", t.channels(), *t.mutable_mean()));
  TY_RETURN_IF_ERROR(ResolvePerChannel(at + "std", t.channels(), *t.mutable_std()));
  for (int c = 0; c < t.channels(); ++c) {
    TY_RETURN_IF_ERROR(CheckPositive(absl::StrCat(at, "std[", c, "]"), t.std(c)));
  }
  return absl::OkStatus();
}

// What both sources have in common.
template <typename Source>
absl::Status ResolveImages(const std::string& at, const std::string& held_out, Source& source) {
  TY_RETURN_IF_ERROR(ResolveValidationFraction(at, held_out, source));
  TY_RETURN_IF_ERROR(ResolveTransform(at + "transform.", *source.mutable_transform()));
  if (source.has_classes()) {
    TY_RETURN_IF_ERROR(CheckRange(at + "classes", source.classes(), 1, kMostClasses));
  }
  return ResolveBadRecords(at, v1::SKIP_BAD_RECORDS, source);
}

// The choices between braces: "000..146", as wide as the first number is written, or "a,b".
std::optional<std::vector<std::string>> ChoicesOf(absl::string_view text) {
  const size_t dots = text.find("..");
  if (dots == absl::string_view::npos) return absl::StrSplit(text, ',');
  const absl::string_view first = text.substr(0, dots), last = text.substr(dots + 2);
  const auto digits = [](absl::string_view s) {
    return !s.empty() && s.size() <= 9 && std::all_of(s.begin(), s.end(), absl::ascii_isdigit);
  };
  int64_t from = 0, to = 0;
  if (!digits(first) || !digits(last) || !absl::SimpleAtoi(first, &from) ||
      !absl::SimpleAtoi(last, &to) || from > to || to - from >= kMostShards) {
    return std::nullopt;
  }
  std::vector<std::string> choices;
  for (; from <= to; ++from) {
    choices.push_back(absl::StrFormat("%0*d", static_cast<int>(first.size()), from));
  }
  return choices;
}

// Adds to `uris`, whose names take `bytes`, what `uri` stands for with its braces, the leftmost
// varying slowest.
absl::Status ExpandBraces(const std::string& field, const std::string& uri,
                          google::protobuf::RepeatedPtrField<std::string>& uris, size_t& bytes) {
  std::vector<std::pair<std::string, std::string>> open = {{"", uri}};  // done, to do
  while (!open.empty()) {
    const auto [done, rest] = std::move(open.back());
    open.pop_back();
    const size_t begin = rest.find('{'), end = rest.find('}');
    if (begin == std::string::npos && end == std::string::npos) {
      uris.Add(done + rest);
      bytes += done.size() + rest.size();
      continue;
    }
    const bool pair = begin != std::string::npos && end != std::string::npos && begin < end;
    const auto choices =
        pair ? ChoicesOf(absl::string_view(rest).substr(begin + 1, end - begin - 1)) : std::nullopt;
    if (!choices) {
      return Invalid(field, "'", uri, "' has braces that are neither {000..146} nor {a,b}");
    }
    const size_t to_come = open.size() + choices->size();  // none is longer than `uri`
    if (uris.size() + to_come > kMostShards || bytes + to_come * uri.size() > kMostNameBytes) {
      return Invalid(field, "'", uri, "' makes more than ", kMostShards, " archives, or names of ",
                     "more than ", kMostNameBytes, " bytes");
    }
    for (auto choice = choices->rbegin(); choice != choices->rend(); ++choice) {
      open.emplace_back(absl::StrCat(done, rest.substr(0, begin), *choice), rest.substr(end + 1));
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveArchives(const std::string& field,
                             google::protobuf::RepeatedPtrField<std::string>& uris) {
  google::protobuf::RepeatedPtrField<std::string> expanded;
  size_t bytes = 0;
  for (int i = 0; i < uris.size(); ++i) {
    const std::string element = absl::StrCat(field, "[", i, "]");
    TY_RETURN_IF_ERROR(CheckUri(element, uris[i]));
    TY_RETURN_IF_ERROR(ExpandBraces(element, uris[i], expanded, bytes));
  }
  if (expanded.size() > kMostShards) {
    return Invalid(field, expanded.size(), " archives are more than ", kMostShards);
  }
  uris.Swap(&expanded);
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveImageFolder(v1::ImageFolderData& folder) {
  const std::string at = "spec.data.image_folder.";
  TY_RETURN_IF_ERROR(CheckUri(at + "train", folder.train()));
  const bool held_out = !folder.validation().empty();
  if (held_out) TY_RETURN_IF_ERROR(CheckUri(at + "validation", folder.validation()));
  return ResolveImages(at, held_out ? "validation" : "", folder);
}

absl::Status ResolveWebDataset(v1::WebDatasetData& webdataset) {
  const std::string at = "spec.data.webdataset.";
  if (webdataset.train().empty()) return Invalid(at + "train", "is missing; name an archive");
  TY_RETURN_IF_ERROR(ResolveArchives(at + "train", *webdataset.mutable_train()));
  TY_RETURN_IF_ERROR(ResolveArchives(at + "validation", *webdataset.mutable_validation()));
  return ResolveImages(at, webdataset.validation().empty() ? "" : "validation", webdataset);
}

}  // namespace trainyard::plan
