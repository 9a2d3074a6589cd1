#pragma once

// How byte-level tokenizers cut text into words before they merge bytes.

#include <cstddef>

#include "absl/strings/string_view.h"

namespace trainyard::data {

enum class WordPattern {
  kWhole,   // no cut
  kGpt2,    // kGpt2Regex
  kLlama3,  // kLlama3Regex
};

// As in openai/gpt-2, encoder.py.
inline constexpr char kGpt2Regex[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// As in Llama 3's tokenizer.json.
inline constexpr char kLlama3Regex[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Where the match of `pattern` that begins at text[at] ends; every text is cut without gaps. `text`
// is UTF-8 and `at` < text.size().
size_t WordEnd(absl::string_view text, size_t at, WordPattern pattern);

}  // namespace trainyard::data
