#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::data {

// Many short strings in one block of memory: of millions of files the names take most.
class Strings {
 public:
  void Add(absl::string_view s) {
    text_.append(s.data(), s.size());
    ends_.push_back(text_.size());
  }
  absl::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return absl::string_view(text_).substr(begin, ends_[i] - begin);
  }
  int64_t bytes() const { return static_cast<int64_t>(text_.size() + 8 * ends_.size()); }

 private:
  std::string text_;
  std::vector<uint64_t> ends_;
};

}  // namespace trainyard::data
