#pragma once

// Folders of models as transformers leaves them, to be spoilt.

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "executor/plan/graph/plan.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::weights {

// Small specs whose plans need no file, with spec.fine_tune.from set to nothing yet.
v1::JobSpec SmallSpec(const std::string& family);  // bert, gpt, llama, mlp, vit
plan::Plan PlanOf(const v1::JobSpec& spec);

struct Values {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;
};
Values Floats(const std::vector<int64_t>& shape, float first);  // first, first + 1, …

// A folder that is written when it is asked for, and removed with it.
class Folder {
 public:
  // What transformers would save of `spec`: every tensor of its plan under its name.
  explicit Folder(const v1::JobSpec& spec);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  nlohmann::json config;
  std::map<std::string, Values> tensors;

  const std::string& path() const { return path_; }
  void Rename(const std::function<std::string(const std::string&)>& name);
  // One file, or as many shards with their index.
  void Write(int shards = 1) const;
  void WriteFile(const std::string& name, const std::string& content) const;

 private:
  const std::string path_;
};

}  // namespace trainyard::weights
