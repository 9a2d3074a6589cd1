#pragma once

#include <string>
#include <vector>

#include "clients/cli/terminal.h"

namespace trainyard::cli {

// Rows under a header, columns in line, two spaces between them. Cells may be coloured (Paint). On
// a terminal each line is cut to the width of the window; elsewhere nothing is cut.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  // A row as long as the header.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // For columns of numbers.
  void AlignRight(int column) { right_.push_back(column); }
  bool empty() const { return rows_.empty(); }

  std::string Render(const Terminal& terminal) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<int> right_;
};

// "name:   value" lines, values in one column.
std::string RenderFields(const Terminal& terminal,
                         const std::vector<std::pair<std::string, std::string>>& fields);

}  // namespace trainyard::cli
