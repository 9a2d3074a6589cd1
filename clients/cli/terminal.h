#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::cli {

// What an output stream can show.
struct Terminal {
  bool interactive = false;  // a person looks at it: lines may be rewritten
  bool color = false;
  bool unicode = false;
  int width = 80;
  int height = 24;
};

// What a file descriptor can show, by isatty, its window size, NO_COLOR, TERM and the locale's
// character set. What has no window is as wide as COLUMNS says, else 80.
Terminal TerminalOf(int fd);

// By the codes that ask a terminal for them (ECMA-48, SGR).
enum class Color {
  kPlain = 0,
  kBold = 1,
  kDim = 2,
  kRed = 31,
  kGreen = 32,
  kYellow = 33,
  kCyan = 36,
};

// `text` in a colour; unchanged where the terminal has none.
std::string Paint(const Terminal& terminal, Color color, absl::string_view text);

// Columns that `text` takes: escape sequences take none, a code point one.
int DisplayWidth(absl::string_view text);

// `text` cut to `width` columns, with "…" (or "...") when something is missing.
std::string Clip(const Terminal& terminal, absl::string_view text, int width);

// Where text goes: a stream, or a string in tests.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Write(absl::string_view text) = 0;
};

// Writes at once to a file descriptor; what cannot be written (a closed pipe) is dropped.
class FdSink : public Sink {
 public:
  explicit FdSink(int fd) : fd_(fd) {}
  void Write(absl::string_view text) override;

 private:
  const int fd_;
};

}  // namespace trainyard::cli
