#pragma once

// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard::data {

// What a tokenizer is called in a checkpoint's folder.
inline constexpr char kVocabularyFile[] = "vocabulary.json";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";

// tokenizer.json may be as large; the largest in use are about half of it.
inline constexpr int64_t kLargestTokenizerFile = int64_t{64} << 20;

struct NamedText {
  std::string name;
  std::string text;
};

// Immutable, so that any thread may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are in [0, size()).
  virtual int64_t size() const = 0;

  // Calls `add` with each id of `text` in order. kInvalidArgument: what the tokenizer has no id
  // for, by its offset; `add` may have been called before.
  virtual absl::Status ForEachId(absl::string_view text,
                                 absl::FunctionRef<void(int32_t)> add) const = 0;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;

  // The bytes that `id` stands for; a text's are those of its ids, one after the other. U+FFFD for
  // an id outside the vocabulary (a padded output head can draw them).
  virtual std::string BytesOf(int32_t id) const = 0;
  std::string Decode(absl::Span<const int32_t> ids) const;

  // What a checkpoint keeps of it, the file that ReadTokenizer takes first.
  virtual std::vector<NamedText> Files() const = 0;
};

// From the first of Files(). kInvalidArgument, kUnimplemented: "tokenizer.json: model.merges[7]:
// found …, expected …".
absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadTokenizer(const NamedText& file);

// The offset of the first byte that is not UTF-8 as a status; OK when there is none. `offset`:
// where `text` begins.
absl::Status CheckUtf8(absl::string_view text, int64_t offset = 0);

}  // namespace trainyard::data
