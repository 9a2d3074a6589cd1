#include "tests/unit/server/hostile_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/data/tokenizer/byte_level.h"
#include "tests/unit/server/rig.h"

namespace trainyard {

v1::Job JobOnText(const std::string& path) {
  v1::Job job = SmallJob();
  v1::TextData& text = *job.mutable_spec()->mutable_data()->mutable_text();
  text.set_path(path);
  text.set_tokenizer(v1::TextData::CHARACTERS);
  return job;
}

std::string SparseText(const data::Folder& folder) {
  const std::string path = folder.Write("sparse.txt", "");
  std::filesystem::resize_file(path, uintmax_t{1} << 30);
  return path;
}

v1::Job JobOnTwoBillionLabels(const data::Folder& folder) {
  constexpr uint32_t kLabels = 2'000'000'000;
  // Members of a gzip file follow each other: one of 16 MiB, many times.
  constexpr uint32_t kMember = 16 << 20;
  std::string labels = data::Gzip(data::Idx(0x0801, {kLabels}, std::string(kLabels % kMember, 0)));
  const std::string member = data::Gzip(std::string(kMember, '\0'));
  for (uint32_t i = 0; i < kLabels / kMember; ++i) labels += member;
  v1::Job job = SmallJob();
  v1::JobSpec& spec = *job.mutable_spec();
  spec.mutable_model()->mutable_mlp()->add_hidden(4);
  v1::IdxData& idx = *spec.mutable_data()->mutable_idx();
  idx.set_train_images(folder.Write("images", data::Idx(0x0803, {kLabels, 1, 1}, "")));
  std::filesystem::resize_file(idx.train_images(), 16 + uintmax_t{kLabels});
  idx.set_train_labels(folder.Write("labels.gz", labels));
  return job;
}

v1::Job JobOnTokenizerOf(const data::Folder& folder, const std::string& head,
                         const std::string& unit) {
  std::string json = head;
  while (json.size() < (size_t{16} << 20)) json += unit;
  v1::Job job = JobOnText(folder.Write("text.txt", std::string(1000, 'a')));
  v1::TextData& text = *job.mutable_spec()->mutable_data()->mutable_text();
  text.set_tokenizer(v1::TextData::BPE);
  text.set_tokenizer_file(folder.Write("tokenizer.json", json));
  return job;
}

std::string LargeTokenizer(size_t size) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(data::ToByteLevel(std::string(1, static_cast<char>(byte))));
  }
  // Every word of two letters, then of three and so on: what is left of a token without its first
  // or its last letter is a token, too.
  std::vector<std::string> merges;
  const auto add = [&](const std::string& word) {
    tokens.push_back(word);
    merges.push_back(absl::StrCat("[\"", word.substr(0, word.size() - 1), "\", \"",
                                  word.substr(word.size() - 1), "\"]"));
    if (word.size() < 3) return;
    merges.push_back(absl::StrCat("[\"", word.substr(0, 1), "\", \"", word.substr(1), "\"]"));
  };
  for (char first = 'a'; first <= 'z'; ++first) {
    for (char second = 'a'; second <= 'z'; ++second) add({first, second});
  }
  for (size_t at = 256; tokens.size() < size; ++at) {
    for (char last = 'a'; last <= 'z' && tokens.size() < size; ++last) {
      const std::string word = tokens[at] + last;
      add(word);
    }
  }
  std::string json = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {";
  for (size_t id = 0; id < tokens.size(); ++id) {
    absl::StrAppend(&json, id == 0 ? "\n" : ",\n", nlohmann::json(tokens[id]).dump(), ": ", id);
  }
  return absl::StrCat(json, "}, \"merges\": [\n", absl::StrJoin(merges, ",\n"), "]}}");
}

}  // namespace trainyard
