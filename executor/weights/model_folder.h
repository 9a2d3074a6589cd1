#pragma once

// A folder that holds a model: a checkpoint of ours, or what transformers' save_pretrained leaves.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executor/weights/safetensors.h"

namespace trainyard::weights {

inline constexpr char kConfigurationFile[] = "config.json";
inline constexpr char kSingleFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

struct FolderTensor {
  size_t file = 0;  // of ModelFolder.files
  TensorEntry entry;
};

// A folder of which the headers were read and checked, but no tensor.
struct ModelFolder {
  std::string path;
  std::string configuration;           // config.json: an object that ParseModelJson takes
  std::vector<std::string> names;      // of `files`
  std::vector<SafetensorsFile> files;  // in order of their names
  std::map<std::string, FolderTensor> tensors;
};

// `uri`: an absolute path or file://. Links are followed (the cache of Hugging Face is made of
// them), but only regular files are read, and an index names files of its own folder.
//   kNotFound, kPermissionDenied  this machine does not see the folder
//   kInvalidArgument              it is no such folder: which file, what was found, what expected
absl::StatusOr<ModelFolder> OpenModelFolder(const std::string& uri);

// Reads the small file `name` of the folder `path`; kNotFound: there is none.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, const std::string& name);

}  // namespace trainyard::weights
