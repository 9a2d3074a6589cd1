#pragma once

// What each source of text and tokens offers; executor/data/sources.cc chooses among them.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "executor/data/dataset/dataset.h"
#include "executor/data/tokenizer/tokenizer.h"
#include "executor/plan/spec/facts.h"
#include "trainyard/v1/spec.pb.h"

namespace trainyard::data {

// Declared...: as DeclaredFacts, known from the spec alone.
absl::StatusOr<plan::DataFacts> TextFacts(const v1::TextData& text,
                                          const plan::Windowing& windowing);
std::optional<plan::DataFacts> DeclaredTextFacts(const v1::TextData& text,
                                                 const plan::Windowing& windowing);
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextData& text,
                                                  const plan::Windowing& windowing);

// As TokenizerOf.
absl::StatusOr<std::unique_ptr<const Tokenizer>> TextTokenizer(const v1::TextData& text);

absl::StatusOr<plan::DataFacts> TokenFacts(const v1::TokenData& tokens,
                                           const plan::Windowing& windowing);
std::optional<plan::DataFacts> DeclaredTokenFacts(const v1::TokenData& tokens,
                                                  const plan::Windowing& windowing);
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokenData& tokens,
                                                    const plan::Windowing& windowing);

}  // namespace trainyard::data
