#include "storage/records/metric_codec.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr int kLeadingBits = 5;  // a count of leading zeros, at most 31
constexpr int kLengthBits = 6;   // a length of 1 to 64, less one
constexpr int kMostLeading = 31;

absl::Status DamagedColumn(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a column of metrics is damaged: ", what));
}

uint64_t ZigZag(uint64_t value) { return (value << 1) ^ (0 - (value >> 63)); }
uint64_t UnZigZag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

// Writes the most significant bit first.
class BitWriter {
 public:
  void Put(uint64_t value, int bits) {
    while (bits > 0) {
      const int now = std::min(bits, free_);
      const uint64_t part = (value >> (bits - now)) & ((uint64_t{1} << now) - 1);
      byte_ = static_cast<uint8_t>(byte_ | (part << (free_ - now)));
      bits -= now;
      free_ -= now;
      if (free_ == 0) Flush();
    }
  }

  std::string Finish() {
    if (free_ < 8) Flush();
    return std::move(bytes_);
  }

 private:
  void Flush() {
    bytes_.push_back(static_cast<char>(byte_));
    byte_ = 0;
    free_ = 8;
  }

  std::string bytes_;
  uint8_t byte_ = 0;
  int free_ = 8;
};

class BitReader {
 public:
  explicit BitReader(absl::string_view bytes) : bytes_(bytes) {}

  // False when fewer bits are left.
  bool Get(int bits, uint64_t& value) {
    value = 0;
    if (static_cast<size_t>(bits) > bytes_.size() * 8 - at_) return false;
    while (bits > 0) {
      const int offset = static_cast<int>(at_ % 8);
      const int now = std::min(bits, 8 - offset);
      const uint64_t byte = static_cast<uint8_t>(bytes_[at_ / 8]);
      value = (value << now) | ((byte >> (8 - offset - now)) & ((uint64_t{1} << now) - 1));
      at_ += static_cast<size_t>(now);
      bits -= now;
    }
    return true;
  }

  bool NearEnd() const { return bytes_.size() * 8 - at_ < 8; }

 private:
  absl::string_view bytes_;
  size_t at_ = 0;  // in bits
};

}  // namespace

void PutVarint(uint64_t value, std::string& bytes) {
  while (value >= 0x80) {
    bytes.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  bytes.push_back(static_cast<char>(value));
}

void PutPiece(absl::string_view piece, std::string& bytes) {
  PutVarint(piece.size(), bytes);
  bytes.append(piece.data(), piece.size());
}

uint64_t PieceReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const uint64_t byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  ok_ = false;
  rest_ = {};
  return 0;
}

absl::string_view PieceReader::Piece() {
  const uint64_t size = Varint();
  if (!ok_ || size > rest_.size()) {
    ok_ = false;
    rest_ = {};
    return {};
  }
  const absl::string_view piece = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return piece;
}

absl::string_view PieceReader::Rest() {
  const absl::string_view rest = rest_;
  rest_ = {};
  return rest;
}

std::string EncodeIntegers(const std::vector<int64_t>& values) {
  std::string bytes;
  uint64_t value = 0;
  uint64_t step = 0;
  uint64_t zeros = 0;
  const auto end_zeros = [&] {
    if (zeros == 0) return;
    PutVarint(0, bytes);
    PutVarint(zeros, bytes);
    zeros = 0;
  };
  for (const int64_t next : values) {
    const uint64_t next_step = static_cast<uint64_t>(next) - value;
    const uint64_t bend = next_step - step;
    if (bend == 0) {
      ++zeros;
    } else {
      end_zeros();
      PutVarint(ZigZag(bend), bytes);
    }
    value = static_cast<uint64_t>(next);
    step = next_step;
  }
  end_zeros();
  return bytes;
}

absl::StatusOr<std::vector<int64_t>> DecodeIntegers(absl::string_view bytes, size_t count) {
  if (count > kMostColumnValues) return DamagedColumn("too many integers");
  PieceReader reader(bytes);
  std::vector<int64_t> values;
  values.reserve(count);
  uint64_t value = 0;
  uint64_t step = 0;
  while (values.size() < count && reader.ok()) {
    const uint64_t bend = reader.Varint();
    uint64_t times = 1;
    if (bend == 0) {
      times = reader.Varint();
      if (times == 0 || times > count - values.size()) return DamagedColumn("a run of integers");
    }
    step += UnZigZag(bend);
    for (; times > 0; --times) {
      value += step;
      values.push_back(static_cast<int64_t>(value));
    }
  }
  if (values.size() != count || !reader.AtEnd()) return DamagedColumn("the number of integers");
  return values;
}

std::string EncodeDoubles(const std::vector<double>& values) {
  BitWriter writer;
  uint64_t before = 0;
  int window_leading = 0;
  int window_length = 0;  // 0: none yet
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = std::bit_cast<uint64_t>(values[i]);
    const uint64_t difference = bits ^ before;
    before = bits;
    if (i == 0) {
      writer.Put(bits, 64);
      continue;
    }
    if (difference == 0) {
      writer.Put(0, 1);
      continue;
    }
    const int leading = std::min(std::countl_zero(difference), kMostLeading);
    const int trailing = std::countr_zero(difference);
    const int window_trailing = 64 - window_leading - window_length;
    if (window_length > 0 && leading >= window_leading && trailing >= window_trailing) {
      writer.Put(0b10, 2);
      writer.Put(difference >> window_trailing, window_length);
      continue;
    }
    window_leading = leading;
    window_length = 64 - leading - trailing;
    writer.Put(0b11, 2);
    writer.Put(static_cast<uint64_t>(leading), kLeadingBits);
    writer.Put(static_cast<uint64_t>(window_length - 1), kLengthBits);
    writer.Put(difference >> trailing, window_length);
  }
  return writer.Finish();
}

absl::StatusOr<std::vector<double>> DecodeDoubles(absl::string_view bytes, size_t count) {
  // 64 bits for the first and at least one for each other.
  if (count > kMostColumnValues || (count > 0 && bytes.size() * 8 < 63 + count)) {
    return DamagedColumn("too few bytes for its doubles");
  }
  BitReader reader(bytes);
  std::vector<double> values;
  values.reserve(count);
  uint64_t bits = 0;
  uint64_t leading = 0;
  uint64_t length = 0;
  for (size_t i = 0; i < count; ++i) {
    uint64_t flag = 0;
    uint64_t part = 0;
    if (i == 0) {
      if (!reader.Get(64, bits)) return DamagedColumn("its first double");
      values.push_back(std::bit_cast<double>(bits));
      continue;
    }
    if (!reader.Get(1, flag)) return DamagedColumn("a double");
    if (flag == 1) {
      if (!reader.Get(1, flag)) return DamagedColumn("a double");
      if (flag == 1) {
        if (!reader.Get(kLeadingBits, leading) || !reader.Get(kLengthBits, length)) {
          return DamagedColumn("a window of bits");
        }
        ++length;
      }
      if (length == 0 || leading + length > 64) return DamagedColumn("a window of bits");
      if (!reader.Get(static_cast<int>(length), part)) return DamagedColumn("a double");
      bits ^= part << (64 - leading - length);
    }
    values.push_back(std::bit_cast<double>(bits));
  }
  if (!reader.NearEnd()) return DamagedColumn("bytes follow its doubles");
  return values;
}

}  // namespace trainyard
