#include "executor/engine/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "executor/data/tokenizer/tokenizer.h"
#include "executor/engine/checkpoint/layout.h"
#include "storage/base/digest.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kManifestFormat[] = "trainyard-checkpoint-1";
constexpr int64_t kHashedAtOnce = int64_t{1} << 20;

bool IsCheckpointFile(const std::string& name) {
  return name == kConfigFile || name == kModelFile || name == kEmaFile ||
         name == kAdapterConfigFile || name == kAdapterFile || name == kBaseFile ||
         name == data::kVocabularyFile || name == data::kTokenizerFile ||
         name == data::kTokenizerConfigFile || name == kOptimizerFile || name == kStateFile;
}

absl::StatusOr<std::string> DigestOf(ObjectReader& reader) {
  Sha256 sha;
  std::string chunk(kHashedAtOnce, '\0');
  for (int64_t at = 0; at < reader.size(); at += kHashedAtOnce) {
    const size_t bytes = std::min(kHashedAtOnce, reader.size() - at);
    TY_RETURN_IF_ERROR(reader.Read(at, bytes, chunk.data()));
    sha.Add(chunk.data(), bytes);
  }
  return sha.Finish();
}

}  // namespace

int64_t Manifest::bytes() const {
  int64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.bytes;
  return sum;
}

std::string ManifestToJson(const Manifest& manifest) {
  Json json = {{"format", kManifestFormat},
               {"step", manifest.step},
               {"spec_digest", manifest.spec_digest},
               {"weights_sha256", manifest.weights_sha256}};
  if (!manifest.metrics.empty()) json["metrics"] = manifest.metrics;
  if (!manifest.arithmetic.empty()) json["arithmetic"] = manifest.arithmetic;
  json["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return json.dump(2) + "\n";
}

absl::StatusOr<Manifest> ManifestFromJson(absl::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end());
    if (json.at("format") != kManifestFormat) {
      return absl::DataLossError(
          absl::StrCat("format is ", json.at("format").dump(), "; expected ", kManifestFormat));
    }
    Manifest manifest{.step = json.at("step").get<int64_t>(),
                      .spec_digest = json.at("spec_digest").get<std::string>(),
                      .weights_sha256 = json.at("weights_sha256").get<std::string>(),
                      .metrics = json.value("metrics", std::map<std::string, double>()),
                      .arithmetic = json.value("arithmetic", Arithmetic()),
                      .sha256 = Sha256Hex(text)};
    if (!IsWellFormed(manifest.arithmetic)) {
      return absl::DataLossError("arithmetic: its names and values are not short, plain texts");
    }
    for (const Json& file : json.at("files")) {
      manifest.files.push_back({.name = file.at("name").get<std::string>(),
                                .bytes = file.at("bytes").get<int64_t>(),
                                .sha256 = file.at("sha256").get<std::string>()});
      if (!IsCheckpointFile(manifest.files.back().name)) {
        return absl::DataLossError(absl::StrCat("names '", manifest.files.back().name,
                                                "', which is no checkpoint's file"));
      }
    }
    return manifest;
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(e.what());
  }
}

absl::Status VerifyFile(const ManifestFile& file, const OpenFile& open) {
  absl::StatusOr<std::unique_ptr<ObjectReader>> reader = open(file.name);
  if (!reader.ok()) {
    if (!absl::IsNotFound(reader.status())) return reader.status();
    return absl::DataLossError(absl::StrCat(file.name, " is missing"));
  }
  if ((*reader)->size() != file.bytes) {
    return absl::DataLossError(absl::StrCat(file.name, " has ", (*reader)->size(),
                                            " bytes; the manifest says ", file.bytes));
  }
  TY_ASSIGN_OR_RETURN(const std::string digest, DigestOf(**reader));
  if (digest != file.sha256) {
    return absl::DataLossError(
        absl::StrCat(file.name, " has SHA-256 ", digest, "; the manifest says ", file.sha256));
  }
  return absl::OkStatus();
}

absl::Status VerifyFiles(const Manifest& manifest, const OpenFile& open) {
  for (const char* needed : {kConfigFile, kModelFile, kOptimizerFile, kStateFile}) {
    const auto names = [&](const ManifestFile& file) { return file.name == needed; };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), names)) {
      return absl::DataLossError(absl::StrCat("the manifest does not name ", needed));
    }
  }
  for (const ManifestFile& file : manifest.files) TY_RETURN_IF_ERROR(VerifyFile(file, open));
  return absl::OkStatus();
}

}  // namespace trainyard::engine
