#include "kernels/cuda/algorithm_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr char kHeader[] = "trainyard algorithms 1";
constexpr size_t kLongestFile = size_t{16} << 20;

std::string FileNameOf(const std::string& machine) {
  std::string name;
  for (const char c : machine) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain || c == '.' ? c : '-';
  }
  return absl::StrCat("algorithms-", name.substr(0, 128), ".txt");
}

std::string Hex(const AlgorithmBytes& bytes) {
  std::string text;
  for (const uint64_t word : bytes) absl::StrAppend(&text, absl::Hex(word, absl::kZeroPad16));
  return text;
}

bool ParseHex(absl::string_view text, AlgorithmBytes& bytes) {
  if (text.size() != 16 * bytes.size()) return false;
  for (uint64_t& word : bytes) {
    if (!absl::SimpleHexAtoi(text.substr(0, 16), &word)) return false;
    text.remove_prefix(16);
  }
  return true;
}

}  // namespace

AlgorithmCache::AlgorithmCache(const std::string& folder, const std::string& machine) {
  if (folder.empty()) return;
  path_ = absl::StrCat(folder, "/", FileNameOf(machine));
  Load();
}

void AlgorithmCache::Load() {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) return;
  std::ifstream file(path_, std::ios::binary);
  const uintmax_t size = std::filesystem::file_size(path_, error);
  std::string text(error ? 0 : std::min<uintmax_t>(size, kLongestFile), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  Parse(text, entries_);
}

void AlgorithmCache::LoadOnce() {
  if (!path_.empty() && !std::exchange(loaded_again_, true)) Load();
}

// A line that was cut short, or makes no sense, is left out. What we have measured ourselves stays.
void AlgorithmCache::Parse(absl::string_view text, Entries& entries) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.front() != kHeader) return;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], ' ');
    Entry entry;
    if (words.size() != 3 || words[0].empty() || !ParseHex(words[1], entry.first) ||
        !ParseHex(words[2], entry.fastest)) {
      continue;
    }
    entries.try_emplace(std::string(words[0]), entry);
  }
}

std::string AlgorithmCache::Text() const {
  std::string text = absl::StrCat(kHeader, "\n");
  for (const auto& [shape, entry] : entries_) {
    absl::StrAppend(&text, shape, " ", Hex(entry.first), " ", Hex(entry.fastest), "\n");
  }
  return text;
}

const AlgorithmBytes* AlgorithmCache::Find(const std::string& shape,
                                           const AlgorithmBytes& first) const {
  const auto found = entries_.find(shape);
  return found != entries_.end() && found->second.first == first ? &found->second.fastest : nullptr;
}

void AlgorithmCache::Put(const std::string& shape, const AlgorithmBytes& first,
                         const AlgorithmBytes& fastest) {
  entries_[shape] = {first, fastest};
  changed_ = true;
}

void AlgorithmCache::Save() {
  if (path_.empty() || !std::exchange(changed_, false)) return;
  Load();  // what another process has written since
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  // Containers that share the folder may have the same process ids.
  const std::string staged =
      absl::StrCat(path_, ".", getpid(), ".", std::random_device{}(), std::random_device{}());
  std::ofstream file(staged, std::ios::binary);
  file << Text();
  file.close();
  if (!file || std::rename(staged.c_str(), path_.c_str()) != 0) std::remove(staged.c_str());
}

}  // namespace trainyard::kernels::cuda
