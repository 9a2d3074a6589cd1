#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// SHA-256 (FIPS 180-4) over everything that was added.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(const void* data, size_t bytes);
  void Add(absl::string_view text) { Add(text.data(), text.size()); }

  // Lower-case hex. Call once, last.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(absl::string_view text);

}  // namespace trainyard
