#include "storage/objects/packed_folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr absl::string_view kMagic = "TYFOLDER";
constexpr int64_t kTrailerBytes = sizeof(uint64_t) + 8;
constexpr int64_t kLargestIndex = int64_t{1} << 20;

class PackedReader : public ObjectReader {
 public:
  PackedReader(std::shared_ptr<FileDescriptor> file, PackedFile place, std::string uri)
      : file_(std::move(file)), place_(place), uri_(std::move(uri)) {}

  int64_t size() const override { return place_.bytes; }

  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    const auto wanted = static_cast<int64_t>(bytes);
    if (offset < 0 || wanted > place_.bytes || offset > place_.bytes - wanted) {
      return absl::OutOfRangeError(absl::StrCat(uri_, ": has ", place_.bytes, " bytes; ", bytes,
                                                " from ", offset, " on were asked for"));
    }
    return ReadExactly(file_->get(), place_.offset + offset, bytes, to, uri_);
  }

 private:
  const std::shared_ptr<FileDescriptor> file_;
  const PackedFile place_;
  const std::string uri_;
};

absl::Status ReadOnly() { return absl::UnimplementedError("a packed folder can only be read"); }

absl::StatusOr<std::map<std::string, PackedFile>> ParseIndex(const std::string& text,
                                                             int64_t most_bytes) {
  std::map<std::string, PackedFile> files;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (!json.is_object()) return absl::DataLossError("its index is no JSON object");
    for (const auto& [name, place] : json.items()) {
      if (!place.at(0).is_number_integer() || !place.at(1).is_number_integer()) {
        return absl::DataLossError(absl::StrCat("the place of '", name, "' is no two integers"));
      }
      const PackedFile file = {.offset = place.at(0).get<int64_t>(),
                               .bytes = place.at(1).get<int64_t>()};
      if (file.offset < 0 || file.bytes < 0 || file.bytes > most_bytes ||
          file.offset > most_bytes - file.bytes) {
        return absl::DataLossError(absl::StrCat("'", name, "' does not lie in the file"));
      }
      files[name] = file;
    }
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(e.what());
  }
  return files;
}

}  // namespace

class PackedFolderWriter::Writer : public ObjectWriter {
 public:
  Writer(PackedFolderWriter& folder, std::string name)
      : folder_(folder), name_(std::move(name)), begin_(folder.written_) {}

  absl::Status Append(absl::string_view data) override { return folder_.Append(data); }

  absl::Status Finish() override {
    folder_.files_[name_] = {.offset = begin_, .bytes = folder_.written_ - begin_};
    return absl::OkStatus();
  }

 private:
  PackedFolderWriter& folder_;
  const std::string name_;
  const int64_t begin_;
};

absl::StatusOr<std::unique_ptr<PackedFolderWriter>> PackedFolderWriter::Begin(int fd,
                                                                              int64_t most_bytes) {
  if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0) {
    return ErrnoStatus(errno, "cannot empty the file of a packed folder");
  }
  return std::unique_ptr<PackedFolderWriter>(new PackedFolderWriter(fd, most_bytes));
}

PackedFolderWriter::~PackedFolderWriter() {
  if (!committed_ && ftruncate(fd_, 0) != 0) return;  // its memory is freed with the file
}

absl::Status PackedFolderWriter::Append(absl::string_view data) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (bytes > most_bytes_ - written_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a packed folder may have ", most_bytes_, " bytes here, and has more"));
  }
  TY_RETURN_IF_ERROR(WriteAll(fd_, data, "cannot write a packed folder"));
  written_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ObjectWriter>> PackedFolderWriter::Create(const std::string& name) {
  return std::unique_ptr<ObjectWriter>(new Writer(*this, name));
}

absl::StatusOr<std::unique_ptr<ObjectReader>> PackedFolderWriter::Open(const std::string& name) {
  return absl::UnimplementedError(absl::StrCat(name, ": a packed folder is read once it is whole"));
}

absl::Status PackedFolderWriter::Commit() {
  nlohmann::json index = nlohmann::json::object();
  for (const auto& [name, file] : files_) index[name] = {file.offset, file.bytes};
  std::string end = index.dump();
  uint64_t bytes = end.size();
  for (size_t i = 0; i < sizeof(bytes); ++i, bytes >>= 8) end += static_cast<char>(bytes & 0xff);
  end.append(kMagic.data(), kMagic.size());
  TY_RETURN_IF_ERROR(Append(end));
  committed_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackedFolder>> PackedFolder::Open(FileDescriptor file,
                                                                 std::string name) {
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return ErrnoStatus(errno, name);
  const int64_t bytes = info.st_size;
  if (bytes == 0) return absl::NotFoundError(absl::StrCat(name, ": is empty"));
  unsigned char trailer[kTrailerBytes];
  const auto not_whole = [&name] {
    return absl::DataLossError(absl::StrCat(name, ": is no packed folder, or not a whole one"));
  };
  if (bytes < kTrailerBytes) return not_whole();
  TY_RETURN_IF_ERROR(ReadExactly(file.get(), bytes - kTrailerBytes, kTrailerBytes, trailer, name));
  uint64_t index_bytes = 0;
  for (size_t i = sizeof(index_bytes); i-- > 0;) index_bytes = index_bytes << 8 | trailer[i];
  const auto most = static_cast<uint64_t>(std::min(kLargestIndex, bytes - kTrailerBytes));
  if (memcmp(trailer + sizeof(index_bytes), kMagic.data(), kMagic.size()) != 0 ||
      index_bytes > most) {
    return not_whole();
  }
  std::string text(index_bytes, '\0');
  const int64_t begin = bytes - kTrailerBytes - static_cast<int64_t>(index_bytes);
  TY_RETURN_IF_ERROR(ReadExactly(file.get(), begin, text.size(), text.data(), name));
  absl::StatusOr<std::map<std::string, PackedFile>> files = ParseIndex(text, begin);
  if (!files.ok()) return Annotate(files.status(), name);
  return std::unique_ptr<PackedFolder>(
      new PackedFolder(std::move(file), std::move(name), bytes, *std::move(files)));
}

absl::StatusOr<std::unique_ptr<ObjectReader>> PackedFolder::Open(const std::string& uri) {
  absl::string_view name = uri;
  const bool below = absl::ConsumePrefix(&name, name_) && absl::ConsumePrefix(&name, "/");
  const auto found = below ? files_.find(std::string(name)) : files_.end();
  if (found == files_.end()) return absl::NotFoundError(absl::StrCat(uri, ": is not there"));
  return std::unique_ptr<ObjectReader>(new PackedReader(file_, found->second, uri));
}

absl::StatusOr<std::string> PackedFolder::Get(const std::string& uri, int64_t limit) {
  TY_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> reader, Open(uri));
  if (reader->size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(uri, ": has ", reader->size(), " bytes, more than ", limit));
  }
  std::string text(reader->size(), '\0');
  TY_RETURN_IF_ERROR(reader->Read(0, text.size(), text.data()));
  return text;
}

absl::StatusOr<std::vector<std::string>> PackedFolder::List(const std::string& folder) {
  if (folder != name_ && !absl::StartsWith(folder, name_ + "/")) return std::vector<std::string>();
  const std::string prefix =
      folder == name_ ? "" : absl::StrCat(folder.substr(name_.size() + 1), "/");
  std::set<std::string> names;
  for (const auto& [name, file] : files_) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, prefix)) names.emplace(rest.substr(0, rest.find('/')));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status PackedFolder::Put(const std::string&, absl::string_view) { return ReadOnly(); }
absl::Status PackedFolder::Delete(const std::string&) { return ReadOnly(); }
absl::StatusOr<std::unique_ptr<StagedFolder>> PackedFolder::Stage(const std::string&,
                                                                  const std::string&) {
  return ReadOnly();
}
absl::Status PackedFolder::DeleteStaged(const std::string&) { return ReadOnly(); }

}  // namespace trainyard
