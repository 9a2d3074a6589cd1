#include "clients/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/file.h"

namespace trainyard::cli {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToUpper(Environment(name));
    if (!value.empty())
      return absl::StrContains(value, "UTF-8") || absl::StrContains(value, "UTF8");
  }
  return false;
}

// Bytes of the escape sequence (ESC [ … letter) at the start of `text`; 0 when there is none.
size_t EscapeLength(absl::string_view text) {
  if (!absl::StartsWith(text, "\x1b[")) return 0;
  size_t end = 2;
  while (end < text.size() && !absl::ascii_isalpha(text[end])) ++end;
  return end < text.size() ? end + 1 : text.size();
}

bool StartsCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

Terminal TerminalOf(int fd) {
  Terminal terminal;
  const std::string term = Environment("TERM");
  terminal.interactive = isatty(fd) != 0 && term != "dumb";
  terminal.color = terminal.interactive && Environment("NO_COLOR").empty();
  terminal.unicode = LocaleIsUtf8();
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
    if (size.ws_row > 0) terminal.height = size.ws_row;
  } else if (int columns = 0; absl::SimpleAtoi(Environment("COLUMNS"), &columns) && columns > 0) {
    terminal.width = columns;
  }
  return terminal;
}

std::string Paint(const Terminal& terminal, Color color, absl::string_view text) {
  if (!terminal.color || color == Color::kPlain) return std::string(text);
  return absl::StrCat("\x1b[", static_cast<int>(color), "m", text, "\x1b[0m");
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  while (!text.empty()) {
    if (const size_t escape = EscapeLength(text); escape > 0) {
      text.remove_prefix(escape);
      continue;
    }
    width += StartsCodePoint(text[0]) ? 1 : 0;
    text.remove_prefix(1);
  }
  return width;
}

std::string Clip(const Terminal& terminal, absl::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  const char* const dots = terminal.unicode ? "…" : "...";
  const int room = width - (terminal.unicode ? 1 : 3);
  std::string out;
  int used = 0;
  bool painted = false;
  while (!text.empty()) {
    if (const size_t escape = EscapeLength(text); escape > 0) {
      absl::StrAppend(&out, text.substr(0, escape));
      text.remove_prefix(escape);
      painted = true;
      continue;
    }
    if (StartsCodePoint(text[0]) && ++used > room) break;
    out += text[0];
    text.remove_prefix(1);
  }
  return absl::StrCat(out, dots, painted ? "\x1b[0m" : "");
}

void FdSink::Write(absl::string_view text) { (void)WriteAll(fd_, text, "output"); }

}  // namespace trainyard::cli
