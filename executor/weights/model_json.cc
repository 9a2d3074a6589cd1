#include "executor/weights/model_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

using Json = nlohmann::json;

constexpr size_t kDeepest = 64;
constexpr size_t kMostShards = 512;
constexpr size_t kLongestName = 255;  // bytes, of a file

std::string Shown(absl::string_view text) { return absl::Utf8SafeCEscape(text.substr(0, 80)); }

// Stops the parser at nesting that is too deep or at a key given twice; builds no values.
class Strictness : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    keys_.emplace_back();
    return Enter();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& key) override {
    return keys_.back().insert(key).second || Fail(absl::StrCat("key '", Shown(key), "' twice"));
  }
  bool parse_error(size_t at, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("not JSON at byte ", at));
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }

 private:
  bool Enter() {
    return ++depth_ <= kDeepest || Fail(absl::StrCat("more than ", kDeepest, " levels deep"));
  }
  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the objects that are open
  size_t depth_ = 0;
  std::string error_;
};

// Whether it is the name of a file in the folder of the index, and not a path.
bool IsShardName(absl::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos &&
         absl::EndsWith(name, ".safetensors");
}

}  // namespace

absl::StatusOr<Json> ParseModelJson(absl::string_view text) {
  Strictness strictness;
  if (!Json::sax_parse(text.begin(), text.end(), &strictness)) {
    return absl::InvalidArgumentError(strictness.error());
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("found no JSON object");
  return json;
}

absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(absl::string_view text) {
  TY_ASSIGN_OR_RETURN(const Json json, ParseModelJson(text));
  const auto found = json.find("weight_map");
  if (found == json.end() || !found->is_object()) {
    return absl::InvalidArgumentError("weight_map: found no object of tensors and their files");
  }
  std::map<std::string, std::string> files;
  std::set<std::string> distinct;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map: the file of '", Shown(tensor), "' is no string"));
    }
    const std::string name = file.get<std::string>();
    if (!IsShardName(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map: '", Shown(tensor), "' is in '", Shown(name),
                       "'; expected the name of a .safetensors file in "
                       "the same folder"));
    }
    distinct.insert(name);
    if (distinct.size() > kMostShards) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map: more than ", kMostShards, " files"));
    }
    files.emplace(tensor, name);
  }
  return files;
}

}  // namespace trainyard::weights
