#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "executor/data/files/regular_file.h"

namespace trainyard::data {

// A text file from front to back, in pieces that end where a character does (as far as it is
// UTF-8). However large the file is, no more than a piece is in memory. Thread-compatible.
class TextPieces {
 public:
  // kInvalidArgument: the file is empty; else as OpenRegularFile.
  static absl::StatusOr<TextPieces> Open(const std::string& uri);

  const std::string& path() const { return file_.path; }
  int64_t bytes() const { return file_.bytes; }  // of the file

  // The next piece, which stays valid until the next call; empty at the end.
  absl::StatusOr<absl::string_view> Next();

  // The first piece is the next one again.
  void Rewind() { end_ = 0; }

  // Where in the file the piece begins that Next gave last.
  int64_t offset() const { return offset_; }

 private:
  explicit TextPieces(RegularFile file);

  RegularFile file_;
  std::unique_ptr<char[]> piece_;
  int64_t offset_ = 0, end_ = 0;
};

}  // namespace trainyard::data
