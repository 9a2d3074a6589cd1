// Parsing and writing of the header.

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_join.h"
#include "executor/weights/safetensors.h"
#include "storage/base/status.h"

namespace trainyard::weights {
namespace {

constexpr size_t kMaxDims = 16;
constexpr size_t kMaxNameBytes = 4096;
constexpr char kMetadata[] = "__metadata__";

int64_t DtypeBytes(absl::string_view dtype) {
  static const std::pair<const char*, int> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

// Builds the header while nlohmann parses, so that a hostile text stops at the first thing that
// does not belong there and costs no more memory than its names.
class HeaderBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader Take() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return Go(Place::kNames);
    if (place_ == Place::kEntryValue) return Go(Place::kEntry);
    if (place_ == Place::kMetadataValue) return Go(Place::kMetadata);
    return Unexpected("an object");
  }

  bool end_object() override {
    if (place_ == Place::kEntry) return EndEntry();
    if (place_ == Place::kMetadata) return Go(Place::kNames);
    return Go(Place::kEnd);
  }

  bool key(std::string& key) override {
    if (key.size() > kMaxNameBytes) return Fail("a name longer than 4096 bytes");
    if (place_ == Place::kNames) return BeginName(key);
    if (place_ == Place::kMetadata) {
      key_ = key;
      return header_.metadata.count(key) == 0 || Fail(absl::StrCat("metadata '", key, "' twice"));
    }
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return Fail(absl::StrCat("tensor '", name_, "': unknown field '", key, "'"));
    }
    if (std::find(fields_.begin(), fields_.end(), key) != fields_.end()) {
      return Fail(absl::StrCat("tensor '", name_, "': field '", key, "' twice"));
    }
    fields_.push_back(key);
    key_ = key;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") return Unexpected("a string");
    entry_.dtype = value;
    return DtypeBytes(value) > 0 ||
           Fail(absl::StrCat("tensor '", name_, "': unknown dtype '", value.substr(0, 32), "'"));
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || key_ == "dtype" || key_.empty()) return Unexpected("an array");
    return Go(Place::kNumbers);
  }

  bool end_array() override {
    place_ = Place::kEntry;
    if (key_ == "shape") {
      entry_.shape = std::move(numbers_);
    } else {
      if (numbers_.size() != 2) {
        return Fail(absl::StrCat("tensor '", name_, "': data_offsets must be [begin, end]"));
      }
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    numbers_.clear();
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kNumbers) return Unexpected("a number");
    if (value > uint64_t{1} << 62) {
      return Fail(absl::StrCat("tensor '", name_, "': ", key_, " holds ", value, ": too large"));
    }
    if (numbers_.size() == kMaxDims) {
      return Fail(absl::StrCat("tensor '", name_, "': more than 16 numbers in ", key_));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(int64_t value) override {
    return Unexpected(absl::StrCat("the negative number ", value));
  }
  bool number_float(double, const std::string& text) override {
    return Unexpected(absl::StrCat("the number ", text.substr(0, 32)));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("not JSON at byte ", at));
  }

 private:
  enum class Place {
    kStart,
    kNames,
    kEntryValue,
    kEntry,
    kNumbers,
    kMetadataValue,
    kMetadata,
    kEnd
  };

  bool Go(Place place) {
    place_ = place;
    return true;
  }

  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  bool Unexpected(const std::string& what) {
    return Fail(name_.empty() ? absl::StrCat("unexpected ", what)
                              : absl::StrCat("tensor '", name_, "': unexpected ", what));
  }

  bool BeginName(const std::string& name) {
    name_ = name;
    key_.clear();
    fields_.clear();
    entry_ = TensorEntry{};
    if (name == kMetadata) {
      if (metadata_seen_) return Fail("__metadata__ twice");
      metadata_seen_ = true;
      return Go(Place::kMetadataValue);
    }
    if (header_.tensors.count(name) != 0) return Fail(absl::StrCat("tensor '", name, "' twice"));
    return Go(Place::kEntryValue);
  }

  bool EndEntry() {
    if (fields_.size() != 3) {
      return Fail(absl::StrCat("tensor '", name_, "': needs dtype, shape and data_offsets"));
    }
    header_.tensors.emplace(name_, std::move(entry_));
    return Go(Place::kNames);
  }

  SafetensorsHeader header_;
  std::string error_;
  Place place_ = Place::kStart;
  std::string name_, key_;
  std::vector<std::string> fields_;
  TensorEntry entry_;
  std::vector<int64_t> numbers_;
  bool metadata_seen_ = false;
};

// Checks that `entry` has as many bytes as its shape needs.
absl::Status CheckSize(const std::string& name, const TensorEntry& entry) {
  int64_t bytes = DtypeBytes(entry.dtype);
  for (int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      return absl::DataLossError(absl::StrCat("tensor '", name, "': shape [",
                                              absl::StrJoin(entry.shape, ", "), "] overflows"));
    }
  }
  if (entry.begin > entry.end || entry.bytes() != bytes) {
    return absl::DataLossError(absl::StrCat(
        "tensor '", name, "': data_offsets [", entry.begin, ", ", entry.end, "] do not hold the ",
        bytes, " bytes of ", entry.dtype, " [", absl::StrJoin(entry.shape, ", "), "]"));
  }
  return absl::OkStatus();
}

// Checks that the tensors cover the data without holes or overlaps.
absl::Status CheckCover(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, std::string>> spans;
  for (const auto& [name, entry] : header.tensors)
    spans.push_back({{entry.begin, entry.end}, name});
  std::sort(spans.begin(), spans.end());
  int64_t at = 0;
  for (const auto& [span, name] : spans) {
    if (span.second > data_bytes) {
      return absl::DataLossError(absl::StrCat("tensor '", name, "': ends at byte ", span.second,
                                              " of ", data_bytes, " bytes of data"));
    }
    if (span.first != at) {
      return absl::DataLossError(
          absl::StrCat("tensor '", name, "': begins at byte ", span.first,
                       span.first < at ? ", overlapping the tensor before it" : ", after a hole",
                       "; expected ", at));
    }
    at = span.second;
  }
  if (at != data_bytes) {
    return absl::DataLossError(absl::StrCat(data_bytes - at, " bytes after the last tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes) {
  if (json.empty() || json[0] != '{')
    return absl::DataLossError("the header does not begin with '{'");
  HeaderBuilder builder;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &builder)) {
    return absl::DataLossError(builder.error());
  }
  SafetensorsHeader header = builder.Take();
  for (const auto& [name, entry] : header.tensors) TY_RETURN_IF_ERROR(CheckSize(name, entry));
  TY_RETURN_IF_ERROR(CheckCover(header, data_bytes));
  return header;
}

std::string SafetensorsPrefix(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json[kMetadata] = header.metadata;
  for (const auto& [name, entry] : header.tensors) {
    json[name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t bytes = text.size();
  std::string prefix(sizeof(bytes), '\0');
  memcpy(prefix.data(), &bytes, sizeof(bytes));
  return prefix + text;
}

SafetensorsHeader PackedHeader(std::map<std::string, TensorEntry> tensors) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  header.tensors = std::move(tensors);
  int64_t at = 0;
  for (const int64_t width : {8, 4, 2, 1}) {
    for (auto& [name, entry] : header.tensors) {
      if (DtypeBytes(entry.dtype) != width) continue;
      int64_t bytes = width;
      for (const int64_t dim : entry.shape) bytes *= dim;
      entry.begin = at;
      entry.end = at += bytes;
    }
  }
  return header;
}

std::vector<std::string> NamesByPlace(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : header.tensors) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return header.tensors.at(a).begin < header.tensors.at(b).begin;
  });
  return names;
}

}  // namespace trainyard::weights
