#include "executor/weights/model_folder.h"

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "executor/data/files/regular_file.h"
#include "executor/weights/model_json.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

// Header bytes of all shards together; tens of thousands of tensors need a tenth of that.
constexpr int64_t kLargestHeaders = int64_t{32} << 20;
constexpr size_t kMostTensors = 200'000;

class FileReader : public ObjectReader {
 public:
  explicit FileReader(data::RegularFile file) : file_(std::move(file)) {}
  int64_t size() const override { return file_.bytes; }
  absl::Status Read(int64_t offset, size_t bytes, void* to) override {
    return data::ReadExactly(file_, offset, to, static_cast<int64_t>(bytes));
  }

 private:
  const data::RegularFile file_;
};

// Whatever is wrong with a folder that was found is kInvalidArgument, whatever code the reader gave
// it: the caller has to fix the folder or name another.
absl::Status WrongFolder(const absl::Status& status) {
  if (status.ok() || absl::IsPermissionDenied(status) || absl::IsUnimplemented(status))
    return status;
  return absl::InvalidArgumentError(status.message());
}

absl::StatusOr<std::string> FindFolder(const std::string& uri) {
  TY_ASSIGN_OR_RETURN(std::string path, data::LocalPath(uri));
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found a file, expected the folder of a model"));
  }
  return path;
}

bool Has(const std::string& path, const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(path + "/" + name, ignored);
}

// What else the folder could be, for the message.
std::string WhatItIs(const std::string& path) {
  if (Has(path, "adapter_config.json")) {
    return "it holds an adapter alone; merge it with its base model and save that";
  }
  if (Has(path, "pytorch_model.bin") || Has(path, "pytorch_model.bin.index.json")) {
    return "it holds pytorch_model.bin, which runs code when it is read; save the model with "
           "safe_serialization=True";
  }
  std::string newest;
  std::error_code error;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (absl::StartsWith(name, "step-")) newest = std::max(newest, name);
  }
  if (!newest.empty())
    return absl::StrCat("it holds checkpoints; name one of them: ", path, "/", newest);
  return "expected a checkpoint of Trainyard's or what transformers' save_pretrained leaves";
}

absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& place, int64_t largest_header) {
  data::RegularFile file;
  file.path = place;
  const absl::Status opened = data::OpenPath(file);
  if (absl::IsNotFound(opened)) return absl::InvalidArgumentError(opened.message());
  TY_RETURN_IF_ERROR(opened);
  return SafetensorsFile::Open(std::make_unique<FileReader>(std::move(file)), place,
                               largest_header);
}

// Adds the tensors of one file. `index`: which file each has to be in; null for a single file.
absl::Status AddFile(const std::string& name, const std::map<std::string, std::string>* index,
                     int64_t& header_bytes, ModelFolder& folder) {
  const std::string place = absl::StrCat(folder.path, "/", name);
  TY_ASSIGN_OR_RETURN(SafetensorsFile file, OpenTensors(place, kLargestHeaders - header_bytes));
  header_bytes += file.header_bytes();
  for (const auto& [tensor, entry] : file.header().tensors) {
    if (index != nullptr) {
      const auto listed = index->find(tensor);
      if (listed == index->end() || listed->second != name) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, ": holds tensor '", tensor, "', which ", kIndexFile,
                         listed == index->end() ? " does not name"
                                                : absl::StrCat(" places in ", listed->second)));
      }
    }
    folder.tensors.emplace(tensor, FolderTensor{.file = folder.files.size(), .entry = entry});
  }
  if (folder.tensors.size() > kMostTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": with it the folder holds more than ", kMostTensors, " tensors"));
  }
  folder.names.push_back(name);
  folder.files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status AddShards(ModelFolder& folder) {
  const std::string place = absl::StrCat(folder.path, "/", kIndexFile);
  TY_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(folder.path, kIndexFile));
  const auto index = ParseShardIndex(text);
  if (!index.ok()) return Annotate(index.status(), place);
  std::set<std::string> shards;
  for (const auto& [tensor, file] : *index) shards.insert(file);
  int64_t header_bytes = 0;
  for (const std::string& shard : shards) {
    TY_RETURN_IF_ERROR(AddFile(shard, &*index, header_bytes, folder));
  }
  for (const auto& [tensor, file] : *index) {
    if (folder.tensors.count(tensor) != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(place, ": places tensor '", tensor, "' in ",
                                                   file, ", which does not hold it"));
  }
  return absl::OkStatus();
}

absl::Status Fill(ModelFolder& folder) {
  absl::StatusOr<std::string> configuration = ReadSmallFile(folder.path, kConfigurationFile);
  if (absl::IsNotFound(configuration.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.path, ": has no ", kConfigurationFile, "; ", WhatItIs(folder.path)));
  }
  if (!configuration.ok()) return configuration.status();
  folder.configuration = *std::move(configuration);
  const auto parsed = ParseModelJson(folder.configuration);
  if (!parsed.ok()) {
    return Annotate(parsed.status(), absl::StrCat(folder.path, "/", kConfigurationFile));
  }
  int64_t header_bytes = 0;
  if (Has(folder.path, kSingleFile)) return AddFile(kSingleFile, nullptr, header_bytes, folder);
  if (Has(folder.path, kIndexFile)) return AddShards(folder);
  return absl::InvalidArgumentError(absl::StrCat(folder.path, ": has neither ", kSingleFile,
                                                 " nor ", kIndexFile, "; ", WhatItIs(folder.path)));
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& name) {
  return data::ReadSmallFile(absl::StrCat(path, "/", name), kLargestModelJson);
}

absl::StatusOr<ModelFolder> OpenModelFolder(const std::string& uri) {
  ModelFolder folder;
  absl::StatusOr<std::string> path = FindFolder(uri);
  if (absl::IsNotFound(path.status())) return path.status();
  if (!path.ok()) return WrongFolder(path.status());
  folder.path = *std::move(path);
  TY_RETURN_IF_ERROR(WrongFolder(Fill(folder)));
  return folder;
}

}  // namespace trainyard::weights
