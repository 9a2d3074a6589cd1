#pragma once

// Tar archives as POSIX.1-2001 (pax), ustar and GNU tar write them, read as hostile and without
// their contents.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "executor/data/files/regular_file.h"

namespace trainyard::data {

struct TarMember {
  std::string name;
  int64_t offset = 0;  // of the content, in the archive
  int64_t bytes = 0;   // of the content, which lies within the archive
  std::string fault;   // why it is no member to read, "a symbolic link" say; "": a regular file
};

// The members of an archive, one after the other. Folders are passed over. Thread-compatible.
class TarReader {
 public:
  static absl::StatusOr<TarReader> Open(const std::string& uri);

  // nullopt: the end. kInvalidArgument: "FILE: byte 1536: found …, expected …" when what follows
  // cannot be told; that is the end too.
  absl::StatusOr<std::optional<TarMember>> Next();

  const RegularFile& file() const { return file_; }

 private:
  // What extended headers say of the member that follows them.
  struct Extended {
    std::optional<std::string> name;
    std::optional<int64_t> bytes;
    bool sparse = false;
    bool any = false;
  };

  explicit TarReader(RegularFile file) : file_(std::move(file)) {}
  absl::Status Broken(const std::string& what) const;
  absl::Status CheckHeader(const char* header) const;
  absl::Status CheckEnd() const;
  absl::StatusOr<int64_t> ContentBytes(const char* header, const Extended& extended) const;
  absl::StatusOr<std::string> ReadText(int64_t bytes) const;
  absl::Status ReadExtended(char type, int64_t bytes, Extended& extended) const;
  absl::Status ParseRecords(const std::string& text, Extended& extended) const;

  RegularFile file_;
  int64_t at_ = 0;  // of the next header
};

}  // namespace trainyard::data
