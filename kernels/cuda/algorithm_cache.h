#pragma once

// Which algorithms were measured to be the fastest, by GPU and shape; in memory, and in a file for
// the next process. Knows nothing of CUDA.

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

// An algorithm as a library hands it out: bytes that only the same version of it understands.
using AlgorithmBytes = std::array<uint64_t, 8>;

// Thread-compatible. Several processes may keep the same file: each replaces it by a whole new one
// that includes what it found there. The last one may lose what another measured, but no reader
// sees half a file.
class AlgorithmCache {
 public:
  // `machine` names GPU and library; entries of other machines are not seen. With `folder` ""
  // nothing is kept on disk. A file that cannot be read counts as absent.
  AlgorithmCache(const std::string& folder, const std::string& machine);

  // The fastest algorithm measured for `shape` when the library's own first choice was `first`, or
  // null.
  const AlgorithmBytes* Find(const std::string& shape, const AlgorithmBytes& first) const;

  // Neither name may have spaces or line ends.
  void Put(const std::string& shape, const AlgorithmBytes& first, const AlgorithmBytes& fastest);

  // The first call reads what other processes have written since the constructor read the file;
  // later calls do nothing.
  void LoadOnce();

  // Writes the file if there are new entries. If it cannot, the next process measures again.
  void Save();

 private:
  struct Entry {
    AlgorithmBytes first, fastest;
  };
  using Entries = std::map<std::string, Entry>;

  static void Parse(absl::string_view text, Entries& entries);
  std::string Text() const;
  void Load();

  std::string path_;  // "": none
  Entries entries_;
  bool changed_ = false, loaded_again_ = false;
};

}  // namespace trainyard::kernels::cuda
