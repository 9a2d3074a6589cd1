// Tar archives of samples: an image and a class that share a key. Indexed once, read at any place.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "executor/data/images/image_records.h"
#include "executor/data/images/strings.h"
#include "executor/data/images/tar.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kMostClasses = int64_t{1} << 20;
constexpr int64_t kMostClassBytes = 32;

struct Archive {
  std::string path;
  int64_t bytes = 0;
};

// What all records of a source share.
using Archives = std::vector<Archive>;

struct Record {
  int64_t offset = 0;
  int32_t bytes = 0;
  int32_t label = 0;
  uint32_t archive = 0;
};

struct Index {
  std::vector<Record> records;
  Strings names;  // of the members with the images
};

class ArchiveRecords : public ImageRecords {
 public:
  // Records [begin, end) of `index`. Both splits may share archives and index.
  ArchiveRecords(std::shared_ptr<const Archives> archives, std::shared_ptr<const Index> index,
                 int64_t begin, int64_t end)
      : archives_(std::move(archives)), index_(std::move(index)), begin_(begin), end_(end) {}

  int64_t size() const override { return end_ - begin_; }
  int32_t label(int64_t record) const override { return at(record).label; }

  std::string Name(int64_t record) const override {
    return absl::StrCat((*archives_)[at(record).archive].path, ": ",
                        index_->names[begin_ + record]);
  }

  absl::Status Read(int64_t record, RegularFile& file,
                    std::vector<uint8_t>& content) const override {
    const Record& r = at(record);
    const Archive& archive = (*archives_)[r.archive];
    file.path = archive.path;
    if (const absl::Status opened = OpenPath(file); !opened.ok()) {
      // It was opened when the run began: whatever this is, no image is at fault.
      return absl::UnavailableError(opened.message());
    }
    if (file.bytes != archive.bytes) {
      return absl::FailedPreconditionError(absl::StrCat(archive.path, ": found ", file.bytes,
                                                        " bytes, expected ", archive.bytes,
                                                        " as when the run began"));
    }
    content.resize(static_cast<size_t>(r.bytes));
    return ReadExactly(file, r.offset, content.data(), r.bytes);
  }

  // Its share of the index.
  int64_t bytes() const override {
    const auto records = static_cast<int64_t>(index_->records.size());
    if (records == 0) return 0;
    return size() * static_cast<int64_t>(sizeof(Record)) + index_->names.bytes() * size() / records;
  }

 private:
  const Record& at(int64_t record) const { return index_->records[begin_ + record]; }

  // Read-only and shared by both splits, whichever goes last.
  const std::shared_ptr<const Archives> archives_;
  const std::shared_ptr<const Index> index_;
  const int64_t begin_, end_;
};

// "a/b.seg.png" is of key "a/b" and kind "seg.png". Without a dot, or hidden: no kind.
std::pair<absl::string_view, std::string> KeyAndKind(absl::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == absl::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == absl::string_view::npos || dot == base) return {name, ""};
  return {name.substr(0, dot), absl::AsciiStrToLower(name.substr(dot + 1))};
}

bool IsImage(const std::string& kind) { return kind == "jpg" || kind == "jpeg" || kind == "png"; }

// Gathers the samples of one archive.
class Indexer {
 public:
  Indexer(uint32_t archive, int64_t most_classes, SkippedRecords& skipped, Index& index)
      : archive_(archive), most_classes_(most_classes), skipped_(skipped), index_(index) {}

  // Until the end, or `members` have been looked at, which it counts down; the share of the archive
  // that was.
  absl::StatusOr<double> Run(TarReader& tar, int64_t& members) {
    const std::string& path = tar.file().path;
    for (int64_t at = 0;;) {
      if (members-- == 0) return static_cast<double>(at) / static_cast<double>(tar.file().bytes);
      TY_ASSIGN_OR_RETURN(const std::optional<TarMember> member, tar.Next());
      if (member) at = member->offset + member->bytes;
      const auto [key, kind] =
          member ? KeyAndKind(member->name) : std::pair(absl::string_view(), "");
      if (member && kind.empty() && member->fault.empty()) continue;
      if (!member || key != sample_.key) {
        TY_RETURN_IF_ERROR(Finish(path));
        if (!member) return 1;
        sample_ = Sample{.key = std::string(key)};
        if (!keys_.insert(sample_.key).second) sample_.fault = "its key occurs twice";
      }
      TY_RETURN_IF_ERROR(Add(tar, *member, kind));
    }
  }

 private:
  struct Sample {
    std::string key, name;
    Record record;
    bool image = false, label = false;
    std::string fault;
  };

  absl::Status Add(const TarReader& tar, const TarMember& member, const std::string& kind) {
    if (!member.fault.empty()) {
      WithFault(absl::StrCat("'", member.name, "' is ", member.fault));
    } else if (IsImage(kind)) {
      if (sample_.image) WithFault("has two images");
      if (member.bytes < 1 || member.bytes > kMostImageBytes) {
        WithFault(absl::StrCat("has an image of ", member.bytes, " bytes, expected 1 to ",
                               kMostImageBytes));
      }
      sample_.image = true;
      sample_.name = member.name;
      sample_.record.offset = member.offset;
      sample_.record.bytes = static_cast<int32_t>(std::min(member.bytes, kMostImageBytes));
    } else if (kind == "cls") {
      if (sample_.label) WithFault("has two classes");
      sample_.label = true;
      return ReadClass(tar, member);
    }
    return absl::OkStatus();
  }

  absl::Status ReadClass(const TarReader& tar, const TarMember& member) {
    std::string text(static_cast<size_t>(std::min(member.bytes, kMostClassBytes)), '\0');
    TY_RETURN_IF_ERROR(
        ReadExactly(tar.file(), member.offset, text.data(), static_cast<int64_t>(text.size())));
    int64_t label = -1;
    if (!absl::SimpleAtoi(text, &label) || label < 0 || label >= most_classes_) {
      WithFault(absl::StrCat("has class '", absl::CHexEscape(text), "', expected a number in [0, ",
                             most_classes_, ")"));
    }
    sample_.record.label = static_cast<int32_t>(label);
    return absl::OkStatus();
  }

  // The first fault counts.
  void WithFault(std::string fault) {
    if (sample_.fault.empty()) sample_.fault = std::move(fault);
  }

  absl::Status Finish(const std::string& path) {
    // Neither image nor class: something else that the archive carries.
    if (!sample_.image && !sample_.label && sample_.fault.empty()) return absl::OkStatus();
    if (!sample_.image) WithFault("has no .jpg, .jpeg or .png");
    if (!sample_.label) WithFault("has no .cls");
    if (!sample_.fault.empty()) {
      const std::string record = absl::StrCat(path, ": sample '", sample_.key, "'");
      return skipped_.Add(record,
                          absl::InvalidArgumentError(absl::StrCat(record, " ", sample_.fault)));
    }
    sample_.record.archive = archive_;
    index_.records.push_back(sample_.record);
    index_.names.Add(sample_.name);
    return absl::OkStatus();
  }

  const uint32_t archive_;
  const int64_t most_classes_;
  SkippedRecords& skipped_;
  Index& index_;
  Sample sample_;
  absl::flat_hash_set<std::string> keys_;
};

using Uris = google::protobuf::RepeatedPtrField<std::string>;

struct Indexed {
  std::shared_ptr<const Index> index;
  double archives = 0;  // looked at
};

absl::StatusOr<Indexed> IndexAll(const Uris& uris, int64_t most_classes, SkippedRecords& skipped,
                                 Archives& archives, int64_t& members) {
  auto index = std::make_shared<Index>();
  double looked_at = 0;
  for (const std::string& uri : uris) {
    if (members <= 0) break;
    TY_ASSIGN_OR_RETURN(TarReader tar, TarReader::Open(uri));
    archives.push_back({.path = tar.file().path, .bytes = tar.file().bytes});
    const size_t before = index->records.size();
    Indexer indexer(static_cast<uint32_t>(archives.size() - 1), most_classes, skipped, *index);
    TY_ASSIGN_OR_RETURN(const double share, indexer.Run(tar, members));
    looked_at += share;
    if (share == 1 && index->records.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat(tar.file().path, ": found no sample of an image and a .cls"));
    }
  }
  return Indexed{.index = std::move(index), .archives = looked_at};
}

int32_t LargestLabel(const Index& index) {
  int32_t largest = 0;
  for (const Record& record : index.records) largest = std::max(largest, record.label);
  return largest;
}

}  // namespace

absl::StatusOr<ImageSource> IndexWebDataset(const v1::WebDatasetData& webdataset,
                                            SkippedRecords& skipped, int64_t members) {
  const int64_t most_classes = webdataset.has_classes() ? webdataset.classes() : kMostClasses;
  auto archives = std::make_shared<Archives>();
  TY_ASSIGN_OR_RETURN(const Indexed all_train,
                      IndexAll(webdataset.train(), most_classes, skipped, *archives, members));
  TY_ASSIGN_OR_RETURN(const Indexed all_own,
                      IndexAll(webdataset.validation(), most_classes, skipped, *archives, members));
  const std::shared_ptr<const Index>&train = all_train.index, &own = all_own.index;
  ImageSource source;
  source.share = (all_train.archives + all_own.archives) /
                 (webdataset.train_size() + webdataset.validation_size());
  source.classes = webdataset.has_classes()
                       ? webdataset.classes()
                       : std::max(LargestLabel(*train), LargestLabel(*own)) + int64_t{1};
  const auto samples = static_cast<int64_t>(train->records.size());
  if (source.share < 1 || !webdataset.validation().empty()) {
    source.train = std::make_unique<ArchiveRecords>(archives, train, 0, samples);
    source.validation = std::make_unique<ArchiveRecords>(archives, own, 0,
                                                         static_cast<int64_t>(own->records.size()));
    return source;
  }
  const auto held_out = std::max<int64_t>(
      1, std::llround(static_cast<double>(samples) * webdataset.validation_fraction()));
  if (held_out >= samples) {
    return absl::InvalidArgumentError(absl::StrCat(
        webdataset.train(0), ": ", samples, " samples are too few to cut a held-out split from"));
  }
  source.train = std::make_unique<ArchiveRecords>(archives, train, 0, samples - held_out);
  source.validation =
      std::make_unique<ArchiveRecords>(archives, train, samples - held_out, samples);
  return source;
}

}  // namespace trainyard::data
