#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::data {

// What lies between the empty lines of `text`, the line ends around it left out. Lines end with
// "\n" or
// "\r\n".
std::vector<absl::string_view> DocumentsOf(absl::string_view text);

// Counts the documents of a text that comes in pieces: the same, without the text in memory.
class DocumentCounter {
 public:
  // `count` is called with the characters of each document (or its bytes, with `bytes`).
  DocumentCounter(bool bytes, std::function<void(int64_t)> count)
      : bytes_(bytes), count_(std::move(count)) {}

  void Add(absl::string_view text);

  // The text ends here; another may begin.
  void Finish();

 private:
  void EndLine();

  const bool bytes_;
  const std::function<void(int64_t)> count_;
  int64_t document_ = 0;   // characters up to the end of its last line, that line end left out
  int64_t gap_ = 0;        // characters of the line end behind it
  int64_t line_ = 0;       // characters of the line at hand
  bool returned_ = false;  // which ends with "\r"
};

}  // namespace trainyard::data
