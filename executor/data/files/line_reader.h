#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "executor/data/files/inflating_reader.h"

namespace trainyard::data {

// The lines of a file, plain or gzip. Thread-compatible.
class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& uri);

  // The next line without its end ("\n" or "\r\n"); the last may lack one. False: there is none.
  // kInvalidArgument: a line of more than 1 MiB, or what is wrong with the gzip.
  absl::StatusOr<bool> Next(std::string& line);

  // Of the line that Next gave last, from 1.
  int64_t number() const { return number_; }
  const std::string& path() const { return reader_.path(); }

  // Bytes of text that were fetched, of which lines were made or will be, and their share of the
  // file.
  int64_t bytes() const { return bytes_; }
  double progress() const { return reader_.progress(); }

 private:
  explicit LineReader(InflatingReader reader);

  InflatingReader reader_;
  std::unique_ptr<char[]> chunk_;
  int64_t at_ = 0, end_ = 0;  // of what is left in chunk_
  int64_t number_ = 0, bytes_ = 0;
};

}  // namespace trainyard::data
