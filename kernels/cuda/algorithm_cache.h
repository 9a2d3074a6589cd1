#pragma once

// Which algorithms were measured to be the fastest, by GPU and shape; in memory, and in a file for
// the next process. Knows nothing of CUDA.

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::kernels::cuda {

// An algorithm as a library hands it out: bytes that mean something to the same version of it.
using AlgorithmBytes = std::array<uint64_t, 8>;

// Thread-compatible. Several processes may keep the same file: each writes a whole new one, with
// what it found there, so that the last one may lose what another measured but no reader sees half.
class AlgorithmCache {
 public:
  // `machine` names GPU and library; what was measured on another is not seen. `folder` "": nothing
  // is kept. What cannot be read is as if it were not there.
  AlgorithmCache(const std::string& folder, const std::string& machine);

  // What was measured for `shape` where the library's own first choice was `first`; or null.
  const AlgorithmBytes* Find(const std::string& shape, const AlgorithmBytes& first) const;

  // Neither name may have spaces or line ends.
  void Put(const std::string& shape, const AlgorithmBytes& first, const AlgorithmBytes& fastest);

  // Reads what other processes have written since, the first time that it is called.
  void LoadOnce();

  // Writes what is new. Whoever cannot write measures again next time.
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
