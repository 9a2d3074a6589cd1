#include "executor/data/files/inflating_reader.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kInflatedAtOnce = 1 << 18;
constexpr int64_t kLargestRatio = 1032;  // of deflate: 258 bytes from 2 bits

}  // namespace

struct InflatingReader::State {
  RegularFile file;
  bool gzip = false;
  int64_t file_offset = 0;  // of the next byte to fetch
  int64_t delivered = 0;

  z_stream zlib{};
  bool in_member = false;  // between the first and the last byte of a gzip member
  std::unique_ptr<unsigned char[]> chunk;

  ~State() {
    if (gzip) inflateEnd(&zlib);
  }
};

InflatingReader::InflatingReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
InflatingReader::InflatingReader(InflatingReader&&) noexcept = default;
InflatingReader::~InflatingReader() = default;

absl::StatusOr<InflatingReader> InflatingReader::Open(const std::string& uri) {
  auto state = std::make_unique<State>();
  TY_ASSIGN_OR_RETURN(state->file, OpenRegularFile(uri));
  if (state->file.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(state->file.path, ": is empty"));
  }
  unsigned char magic[2] = {};
  TY_RETURN_IF_ERROR(ReadExactly(state->file, 0, magic, std::min<int64_t>(2, state->file.bytes)));
  if (magic[0] == 0x1f && magic[1] == 0x8b) {
    // 16 + 15: gzip framing only, the largest window.
    if (inflateInit2(&state->zlib, 16 + 15) != Z_OK) {
      return absl::ResourceExhaustedError(absl::StrCat(state->file.path, ": no memory to inflate"));
    }
    state->gzip = true;
    state->in_member = true;
    state->chunk = std::make_unique<unsigned char[]>(kInflatedAtOnce);
  }
  return InflatingReader(std::move(state));
}

const std::string& InflatingReader::path() const { return state_->file.path; }

int64_t InflatingReader::most_bytes() const {
  if (!state_->gzip) return state_->file.bytes;
  if (state_->file.bytes > std::numeric_limits<int64_t>::max() / kLargestRatio) {
    return std::numeric_limits<int64_t>::max();
  }
  return state_->file.bytes * kLargestRatio;
}

double InflatingReader::progress() const {
  const int64_t done = state_->file_offset - state_->zlib.avail_in;
  return static_cast<double>(done) / static_cast<double>(state_->file.bytes);
}

absl::Status InflatingReader::Refill() {
  State& s = *state_;
  const int64_t n = std::min(kInflatedAtOnce, s.file.bytes - s.file_offset);
  TY_RETURN_IF_ERROR(ReadExactly(s.file, s.file_offset, s.chunk.get(), n));
  s.file_offset += n;
  s.zlib.next_in = s.chunk.get();
  s.zlib.avail_in = static_cast<uInt>(n);
  return absl::OkStatus();
}

// At least one byte, or 0 at the end of the last member.
absl::StatusOr<int64_t> InflatingReader::InflateSome(char* to, int64_t bytes) {
  State& s = *state_;
  s.zlib.next_out = reinterpret_cast<unsigned char*>(to);
  const auto room = static_cast<uInt>(std::min<int64_t>(bytes, 1 << 30));
  s.zlib.avail_out = room;
  for (;;) {
    if (s.zlib.avail_in == 0 && s.file_offset < s.file.bytes) TY_RETURN_IF_ERROR(Refill());
    if (s.zlib.avail_in == 0) {
      if (!s.in_member) return 0;
      return absl::InvalidArgumentError(absl::StrCat(path(), ": truncated gzip: ends after ",
                                                     s.file.bytes, " compressed bytes, ",
                                                     s.delivered, " uncompressed"));
    }
    if (!s.in_member) {  // another member follows: gzip files may be concatenated
      inflateReset(&s.zlib);
      s.in_member = true;
    }
    const int result = inflate(&s.zlib, Z_NO_FLUSH);
    if (result == Z_STREAM_END) s.in_member = false;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return absl::InvalidArgumentError(absl::StrCat(
          path(), ": broken gzip: ", s.zlib.msg != nullptr ? s.zlib.msg : "zlib error"));
    }
    if (s.zlib.avail_out < room) return room - s.zlib.avail_out;
  }
}

absl::StatusOr<int64_t> InflatingReader::ReadSome(char* to, int64_t bytes) {
  State& s = *state_;
  if (s.gzip) return InflateSome(to, bytes);
  const int64_t n = std::min(bytes, s.file.bytes - s.file_offset);
  TY_RETURN_IF_ERROR(ReadExactly(s.file, s.file_offset, to, n));
  s.file_offset += n;
  return n;
}

absl::Status InflatingReader::Read(void* to, int64_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    TY_ASSIGN_OR_RETURN(const int64_t n, ReadSome(at, bytes));
    if (n == 0) {
      return absl::InvalidArgumentError(absl::StrCat(path(), ": ends after ", state_->delivered,
                                                     " bytes, expected at least ",
                                                     state_->delivered + bytes));
    }
    at += n;
    bytes -= n;
    state_->delivered += n;
  }
  return absl::OkStatus();
}

absl::Status InflatingReader::ExpectEnd() {
  char extra;
  TY_ASSIGN_OR_RETURN(const int64_t n, ReadSome(&extra, 1));
  if (n == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path(), ": goes on after the ", state_->delivered,
                                                 " bytes that its header declares"));
}

}  // namespace trainyard::data
