#include "kernels/cuda/algorithm_cache.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/cache_file.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr char kHeader[] = "trainyard algorithms 1";
constexpr size_t kLongestFile = size_t{16} << 20;

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
  path_ = absl::StrCat(folder, "/algorithms-", PlainName(machine), ".txt");
  Load();
}

void AlgorithmCache::Load() { Parse(ReadCacheFile(path_, kLongestFile), entries_); }

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
  ReplaceCacheFile(path_, Text());
}

}  // namespace trainyard::kernels::cuda
