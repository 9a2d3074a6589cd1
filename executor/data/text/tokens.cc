// Files of token ids, read where a window lies: no file is ever in memory as a whole.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/data/files/regular_file.h"
#include "executor/data/text/text_sources.h"
#include "executor/data/text/windows.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

constexpr int64_t kLlmcHeaderBytes = 1024;
constexpr int32_t kLlmcMagic = 20240520;
constexpr int32_t kLlmcVersion = 1;

struct Shard {
  std::string uri;
  int64_t header_bytes = 0;
  int64_t tokens = 0;
};

int64_t IdBytes(v1::TokenData::Format format) { return format == v1::TokenData::UINT32 ? 4 : 2; }

// The tokens that the header of llm.c's format declares and the file's size confirms.
absl::Status ReadLlmcHeader(const RegularFile& file, Shard& shard) {
  int32_t header[3] = {};
  if (file.bytes < kLlmcHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path, ": found ", file.bytes, " bytes, expected a header of ", kLlmcHeaderBytes));
  }
  TY_RETURN_IF_ERROR(ReadExactly(file, 0, header, sizeof(header)));
  if (header[0] != kLlmcMagic || header[1] != kLlmcVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": found magic ", header[0], " version ", header[1], ", expected ",
                     kLlmcMagic, " version ", kLlmcVersion, " of llm.c"));
  }
  shard.header_bytes = kLlmcHeaderBytes;
  shard.tokens = header[2];
  if (file.bytes != kLlmcHeaderBytes + 2 * shard.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": declares ", shard.tokens, " tokens, but holds ",
                     file.bytes - kLlmcHeaderBytes, " bytes of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Shard> ReadShard(const std::string& uri, v1::TokenData::Format format) {
  TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(uri));
  Shard shard{.uri = uri};
  const int64_t width = IdBytes(format);
  if (format == v1::TokenData::LLMC) {
    TY_RETURN_IF_ERROR(ReadLlmcHeader(file, shard));
  } else {
    if (file.bytes % width != 0) {
      return absl::InvalidArgumentError(absl::StrCat(file.path, ": found ", file.bytes,
                                                     " bytes, expected a multiple of ", width));
    }
    shard.tokens = file.bytes / width;
  }
  if (shard.tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat(file.path, ": holds no token"));
  }
  return shard;
}

template <typename Uris>
absl::StatusOr<std::vector<Shard>> ReadShards(const Uris& uris, v1::TokenData::Format format) {
  std::vector<Shard> shards;
  for (const std::string& uri : uris) {
    TY_ASSIGN_OR_RETURN(Shard shard, ReadShard(uri, format));
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::vector<int64_t> Counts(const std::vector<Shard>& shards) {
  std::vector<int64_t> counts;
  for (const Shard& shard : shards) counts.push_back(shard.tokens);
  return counts;
}

class TokenDataset : public Windows {
 public:
  TokenDataset(const plan::Windowing& windowing, const v1::TokenData& tokens,
               std::vector<Shard> train, std::vector<Shard> validation)
      : Windows(windowing, Counts(train), Counts(validation), tokens.vocab_size()),
        format_(tokens.format()),
        vocab_(static_cast<uint32_t>(tokens.vocab_size())),
        train_(std::move(train)),
        validation_(std::move(validation)) {}

  using Windows::Check;

  int64_t bytes() const override { return 0; }

 protected:
  absl::Status ReadWindow(Split split, size_t part, int64_t at, int64_t n, int32_t* inputs,
                          int32_t* targets) const override {
    const Shard& shard = (split == Split::kTrain ? train_ : validation_)[part];
    TY_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(shard.uri));
    const int64_t width = IdBytes(format_);
    unsigned char chunk[8192];
    const int64_t per_chunk = static_cast<int64_t>(sizeof(chunk)) / width;
    const int64_t all = targets == nullptr ? n : n + 1;  // the last one is a target only
    for (int64_t done = 0; done < all; done += per_chunk) {
      const int64_t count = std::min(per_chunk, all - done);
      TY_RETURN_IF_ERROR(
          ReadExactly(file, shard.header_bytes + (at + done) * width, chunk, count * width));
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t id = IdAt(chunk, i);
        if (id >= vocab_) return OutOfRange(file.path, id, at + done + i);
        if (done + i < n) inputs[done + i] = static_cast<int32_t>(id);
        if (done + i > 0 && targets != nullptr) targets[done + i - 1] = static_cast<int32_t>(id);
      }
    }
    return absl::OkStatus();
  }

 private:
  uint32_t IdAt(const unsigned char* chunk, int64_t i) const {
    const unsigned char* b = chunk + i * IdBytes(format_);
    const uint32_t low = uint32_t{b[0]} | uint32_t{b[1]} << 8;
    return format_ == v1::TokenData::UINT32 ? low | uint32_t{b[2]} << 16 | uint32_t{b[3]} << 24
                                            : low;
  }

  absl::Status OutOfRange(const std::string& path, uint32_t id, int64_t position) const {
    return absl::InvalidArgumentError(absl::StrCat(path, ": found id ", id, " at token ", position,
                                                   ", expected [0, ", vocab_, ")"));
  }

  const v1::TokenData::Format format_;
  const uint32_t vocab_;
  std::vector<Shard> train_, validation_;
};

}  // namespace

absl::StatusOr<plan::DataFacts> TokenFacts(const v1::TokenData& tokens,
                                           const plan::Windowing& windowing) {
  plan::DataFacts facts{.kind = KindOf(windowing), .vocab = tokens.vocab_size()};
  TY_ASSIGN_OR_RETURN(const std::vector<Shard> train, ReadShards(tokens.train(), tokens.format()));
  TY_ASSIGN_OR_RETURN(const std::vector<Shard> validation,
                      ReadShards(tokens.validation(), tokens.format()));
  facts.train_size = SizeOf(Counts(train), windowing);
  facts.validation_size = SizeOf(Counts(validation), windowing);
  return facts;
}

std::optional<plan::DataFacts> DeclaredTokenFacts(const v1::TokenData& tokens,
                                                  const plan::Windowing& windowing) {
  if (tokens.vocab_size() < 1) return std::nullopt;
  return plan::DataFacts{.kind = KindOf(windowing), .vocab = tokens.vocab_size()};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokenData& tokens,
                                                    const plan::Windowing& windowing) {
  TY_ASSIGN_OR_RETURN(std::vector<Shard> train, ReadShards(tokens.train(), tokens.format()));
  TY_ASSIGN_OR_RETURN(std::vector<Shard> validation,
                      ReadShards(tokens.validation(), tokens.format()));
  auto dataset =
      std::make_unique<TokenDataset>(windowing, tokens, std::move(train), std::move(validation));
  TY_RETURN_IF_ERROR(dataset->Check(tokens.train(0)));
  return dataset;
}

}  // namespace trainyard::data
