#include "kernels/cuda/cache_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace trainyard::kernels::cuda {

std::string PlainName(absl::string_view name) {
  std::string plain;
  for (const char c : name.substr(0, 128)) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    plain += keep || c == '.' ? c : '-';
  }
  return plain;
}

std::string ReadCacheFile(const std::string& path, size_t most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  std::ifstream file(path, std::ios::binary);
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::string text(error ? 0 : std::min<uintmax_t>(size, most), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

void ReplaceCacheFile(const std::string& path, absl::string_view text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  // Containers that share the folder may have the same process ids.
  const std::string staged =
      absl::StrCat(path, ".", getpid(), ".", std::random_device{}(), std::random_device{}());
  std::ofstream file(staged, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file || std::rename(staged.c_str(), path.c_str()) != 0) std::remove(staged.c_str());
}

}  // namespace trainyard::kernels::cuda
