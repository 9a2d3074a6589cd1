// A folder per class, image files in it.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "executor/data/files/regular_file.h"
#include "executor/data/images/image_records.h"
#include "executor/data/images/strings.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

namespace fs = std::filesystem;

class FolderRecords : public ImageRecords {
 public:
  explicit FolderRecords(std::string root) : root_(std::move(root)) {}

  // Of class `label`, whose folder is called `folder`.
  void Add(int32_t label, const std::string& folder, const std::string& file) {
    if (labels_.empty() || labels_.back() != label) {
      folders_.resize(label + 1);
      folders_[label] = folder;
    }
    labels_.push_back(label);
    files_.Add(file);
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t record) const override { return labels_[record]; }

  std::string Name(int64_t record) const override {
    std::string path;
    SetPath(record, path);
    return path;
  }

  absl::Status Read(int64_t record, RegularFile& file,
                    std::vector<uint8_t>& content) const override {
    SetPath(record, file.path);
    TY_RETURN_IF_ERROR(Open(file));
    if (file.bytes > kMostImageBytes) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, ": found ", file.bytes,
                                                     " bytes, expected at most ", kMostImageBytes));
    }
    content.resize(static_cast<size_t>(file.bytes));
    return ReadExactly(file, 0, content.data(), file.bytes);
  }

  int64_t bytes() const override {
    return files_.bytes() + static_cast<int64_t>(labels_.size() * sizeof(int32_t));
  }

 private:
  // A file that was listed and is gone is no bad image: the disk is, for a while or for good.
  static absl::Status Open(RegularFile& file) {
    const absl::Status opened = OpenPath(file);
    std::error_code none;
    if (!absl::IsNotFound(opened) || fs::is_symlink(file.path, none)) return opened;
    return absl::UnavailableError(
        absl::StrCat(opened.message(), "; it was there when the run began"));
  }

  void SetPath(int64_t record, std::string& path) const {
    const absl::string_view file = files_[record];
    path.assign(root_).append("/").append(folders_[labels_[record]]).append("/");
    path.append(file.data(), file.size());
  }

  const std::string root_;
  std::vector<std::string> folders_;  // by class
  std::vector<int32_t> labels_;
  Strings files_;
};

struct Entries {
  std::vector<std::string> folders, files;  // by name
};

// Hidden ones left out.
absl::StatusOr<Entries> EntriesOf(const std::string& path) {
  TellOfOpen(path);
  std::error_code error;
  Entries entries;
  fs::directory_iterator it(path, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name[0] == '.') continue;
    std::error_code gone;  // a link that leads nowhere counts as a file
    (it->is_directory(gone) ? entries.folders : entries.files).push_back(std::move(name));
  }
  if (error) {
    if (error == std::errc::not_a_directory) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": found a file, expected a folder with a folder per class"));
    }
    return ErrnoStatus(error.value(), path);
  }
  std::sort(entries.folders.begin(), entries.folders.end());
  std::sort(entries.files.begin(), entries.files.end());
  return entries;
}

// Files that are passed over, for one warning.
struct Ignored {
  int64_t count = 0;
  std::string first;

  void Add(const std::string& path) {
    if (count++ == 0) first = path;
  }
};

// The image files of one class.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path, Ignored& ignored) {
  TY_ASSIGN_OR_RETURN(Entries entries, EntriesOf(path));
  if (!entries.folders.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, "/", entries.folders[0], ": found a folder within a class, expected image files"));
  }
  const auto not_image = [&](const std::string& name) {
    const std::string lower = absl::AsciiStrToLower(name);
    const bool image = absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg") ||
                       absl::EndsWith(lower, ".png");
    if (!image) ignored.Add(absl::StrCat(path, "/", name));
    return !image;
  };
  auto& files = entries.files;
  files.erase(std::remove_if(files.begin(), files.end(), not_image), files.end());
  return std::move(files);
}

using ClassNumbers = absl::flat_hash_map<std::string, int32_t>;

// Lists `root`. With `fraction` the last files of each class go to `validation`. `classes` are
// filled when empty; else no other may occur.
absl::Status List(const std::string& root, double fraction, ClassNumbers& classes, Ignored& ignored,
                  FolderRecords& train, FolderRecords* validation) {
  TY_ASSIGN_OR_RETURN(const Entries entries, EntriesOf(root));
  for (const std::string& file : entries.files) ignored.Add(absl::StrCat(root, "/", file));
  const bool first = classes.empty();
  for (const std::string& name : entries.folders) {
    const std::string path = absl::StrCat(root, "/", name);
    if (first) classes.emplace(name, static_cast<int32_t>(classes.size()));
    const auto label = classes.find(name);
    if (label == classes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": found a class that the training images do not have"));
    }
    TY_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(path, ignored));
    if (first && files.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": found a class without .jpg, .jpeg or .png files"));
    }
    const auto held_out =
        static_cast<size_t>(std::llround(static_cast<double>(files.size()) * fraction));
    for (size_t i = 0; i < files.size(); ++i) {
      FolderRecords& to = i + held_out < files.size() ? train : *validation;
      to.Add(label->second, name, files[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSplits(const v1::ImageFolderData& folder, const ImageSource& source) {
  if (source.train->size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.train(), ": found no image, expected FOLDER/CLASS/FILE.jpg"));
  }
  if (folder.has_classes() && folder.classes() != source.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.train(), ": found ", source.classes, " classes, ",
                     "spec.data.image_folder.classes declares ", folder.classes()));
  }
  if (source.validation->size() > 0) return absl::OkStatus();
  if (!folder.validation().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(folder.validation(), ": found no image"));
  }
  return absl::InvalidArgumentError(absl::StrCat(folder.train(),
                                                 ": no class has images enough to hold out ",
                                                 folder.validation_fraction(), " of them"));
}

}  // namespace

absl::StatusOr<ImageSource> ListImageFolder(const v1::ImageFolderData& folder, Warnings& warnings) {
  TY_ASSIGN_OR_RETURN(const std::string root, LocalPath(folder.train()));
  const bool own = !folder.validation().empty();
  std::string held_out = root;
  if (own) {
    TY_ASSIGN_OR_RETURN(held_out, LocalPath(folder.validation()));
  }
  auto train = std::make_unique<FolderRecords>(root);
  auto validation = std::make_unique<FolderRecords>(held_out);
  ClassNumbers classes;
  Ignored ignored;
  TY_RETURN_IF_ERROR(List(root, own ? 0 : folder.validation_fraction(), classes, ignored, *train,
                          validation.get()));
  if (own) TY_RETURN_IF_ERROR(List(held_out, 0, classes, ignored, *validation, nullptr));
  if (ignored.count > 0) {
    warnings.Add(absl::StrCat("passed over ", ignored.count,
                              " files that are no image of a class; the first is ", ignored.first));
  }
  ImageSource source{.train = std::move(train),
                     .validation = std::move(validation),
                     .classes = static_cast<int64_t>(classes.size())};
  TY_RETURN_IF_ERROR(CheckSplits(folder, source));
  return source;
}

}  // namespace trainyard::data
