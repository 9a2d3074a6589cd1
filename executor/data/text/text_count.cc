#include "executor/data/text/text_count.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "executor/data/files/utf8.h"
#include "executor/data/text/documents.h"
#include "executor/data/text/windows.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// Calls `visit` with each piece and where it begins.
template <typename Visit>
absl::Status ForEachPiece(TextPieces& pieces, const Visit& visit) {
  for (;;) {
    TY_ASSIGN_OR_RETURN(const absl::string_view piece, pieces.Next());
    if (piece.empty()) return absl::OkStatus();
    const absl::Status status = visit(piece, pieces.offset());
    if (!status.ok()) return Annotate(status, pieces.path());
  }
}

// Bytes of `text` before its character number `n`; all of them where it has no such.
size_t PrefixOf(absl::string_view text, int64_t n, bool bytes) {
  if (bytes) return static_cast<size_t>(std::min<int64_t>(n, static_cast<int64_t>(text.size())));
  return BytesBefore(text, n);
}

// The windows of the documents on both sides of the cut before character `train`.
absl::Status CountWindows(TextPieces& pieces, bool bytes, int64_t train, int64_t context,
                          TextCount& count) {
  int64_t* side = &count.train;
  DocumentCounter documents(bytes, [&](int64_t tokens) { *side += WindowsOf(tokens, context); });
  int64_t left = train;  // characters before the cut
  TY_RETURN_IF_ERROR(ForEachPiece(pieces, [&](absl::string_view piece, int64_t) {
    if (side == &count.train) {
      const size_t before = PrefixOf(piece, left, bytes);
      const absl::string_view head = piece.substr(0, before);
      documents.Add(head);
      left -= bytes ? static_cast<int64_t>(head.size()) : CountCodePoints(head);
      piece.remove_prefix(before);
      if (piece.empty()) return absl::OkStatus();
      documents.Finish();
      side = &count.validation;
    }
    documents.Add(piece);
    return absl::OkStatus();
  }));
  documents.Finish();
  return absl::OkStatus();
}

}  // namespace

int64_t TrainCharacters(const v1::TextData& spec, int64_t characters) {
  return static_cast<int64_t>(
      std::floor(static_cast<double>(characters) * (1.0 - spec.validation_fraction())));
}

absl::StatusOr<TextCount> CountText(const v1::TextData& spec, const plan::Windowing& windowing,
                                    TextPieces pieces, const Vocabulary* known) {
  const bool bytes = spec.tokenizer() == v1::TextData::BYTES;
  TextCount count;
  int64_t characters = pieces.bytes();
  if (!bytes) {
    characters = 0;
    CharacterSet seen;
    TY_RETURN_IF_ERROR(ForEachPiece(pieces, [&](absl::string_view piece, int64_t offset) {
      characters += CountCodePoints(piece);
      return known != nullptr ? known->Check(piece, offset) : seen.Add(piece, offset);
    }));
    count.distinct = static_cast<int64_t>(seen.CodePoints().size());
  }
  const int64_t train = TrainCharacters(spec, characters);
  if (!windowing.masked()) {
    count.train = train;
    count.validation = characters - train;
    return count;
  }
  pieces.Rewind();
  TY_RETURN_IF_ERROR(CountWindows(pieces, bytes, train, windowing.context, count));
  return count;
}

}  // namespace trainyard::data
