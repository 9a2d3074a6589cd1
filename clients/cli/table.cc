#include "clients/cli/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/shown.h"

namespace trainyard::cli {
namespace {

std::string Pad(const std::string& text, int width, bool right) {
  const std::string space(std::max(0, width - DisplayWidth(text)), ' ');
  return right ? space + text : text + space;
}

}  // namespace

std::string Table::Render(const Terminal& terminal) const {
  std::vector<int> widths;
  // A cell has one line, whatever text is in it.
  std::vector<std::vector<std::string>> rows = rows_;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = absl::StrReplaceAll(cell, {{"\n", " "}});
  }
  for (const std::string& title : header_) widths.push_back(DisplayWidth(title));
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells, bool is_header) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const bool right =
          std::find(right_.begin(), right_.end(), static_cast<int>(c)) != right_.end();
      const std::string cell = is_header ? Paint(terminal, Color::kBold, cells[c]) : cells[c];
      const bool last = c + 1 == cells.size();
      absl::StrAppend(&line, last && !right ? cell : Pad(cell, widths[c], right), last ? "" : "  ");
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&out, terminal.interactive ? Clip(terminal, line, terminal.width) : line, "\n");
  };
  add_line(header_, true);
  for (const auto& row : rows) add_line(row, false);
  return out;
}

std::string RenderFields(const Terminal& terminal,
                         const std::vector<std::pair<std::string, std::string>>& fields) {
  int width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, DisplayWidth(name));
  std::string out;
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&out, Paint(terminal, Color::kDim, Pad(name + ":", width + 1, false)), "  ",
                    Indented(value), "\n");
  }
  return out;
}

}  // namespace trainyard::cli
