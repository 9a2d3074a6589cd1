#include "clients/cli/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "clients/cli/format.h"

namespace trainyard::cli {
namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  bool logarithmic = false;

  void Take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
  // Where v lies, in [0, 1].
  double At(double v) const {
    if (high <= low) return 0.5;
    return logarithmic ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
  }
  double Middle() const { return logarithmic ? std::sqrt(low * high) : (low + high) / 2; }
};

// The y axis is logarithmic when the highest value is more than so many times the lowest: a loss
// that falls from 4 to 0.1 shows nothing of its tail on a linear axis.
constexpr double kLogarithmicFrom = 8;

constexpr Color kColors[] = {Color::kCyan, Color::kYellow, Color::kGreen, Color::kRed};
constexpr char kMarks[] = {'.', 'o', '+', 'x'};
constexpr const char* kUnicodeMarks[] = {"", "●", "▲",
                                         "■"};  // where colours cannot tell curves apart

// A grid of dots; each character cell holds dots_x * dots_y of them and remembers which series drew
// there last.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns),
        rows_(rows),
        dots_x_(unicode ? 2 : 1),
        dots_y_(unicode ? 4 : 1),
        bits_(columns * rows, 0),
        owner_(columns * rows, -1) {}

  int width() const { return columns_ * dots_x_; }
  int height() const { return rows_ * dots_y_; }

  void Dot(int x, int y, int series) {
    const int cell = y / dots_y_ * columns_ + x / dots_x_;
    // Dots of a braille character: 1 2 3 7 down the left, 4 5 6 8 down the right (U+2800).
    constexpr unsigned kLeft[] = {0x01, 0x02, 0x04, 0x40};
    constexpr unsigned kRight[] = {0x08, 0x10, 0x20, 0x80};
    if (owner_[cell] != series) bits_[cell] = 0;  // the later curve is the one in front
    bits_[cell] |= (x % dots_x_ == 0 ? kLeft : kRight)[y % dots_y_];
    owner_[cell] = series;
  }

  // A line without gaps, so that steep parts of a curve stay connected.
  void Line(int x0, int y0, int x1, int y1, int series) {
    const int steps = std::max(std::abs(x1 - x0), std::abs(y1 - y0));
    for (int i = 0; i <= steps; ++i) {
      const double t = steps == 0 ? 0 : static_cast<double>(i) / steps;
      Dot(static_cast<int>(std::lround(x0 + t * (x1 - x0))),
          static_cast<int>(std::lround(y0 + t * (y1 - y0))), series);
    }
  }

  std::string Cell(const Terminal& terminal, int column, int row) const {
    const int cell = row * columns_ + column;
    if (owner_[cell] < 0) return " ";
    if (dots_x_ == 1) return std::string(1, kMarks[owner_[cell] % 4]);
    if (!terminal.color && owner_[cell] % 4 != 0) return kUnicodeMarks[owner_[cell] % 4];
    const unsigned code = 0x2800 + bits_[cell];
    const char utf8[] = {static_cast<char>(0xE0 | (code >> 12)),
                         static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
                         static_cast<char>(0x80 | (code & 0x3F)), 0};
    return Paint(terminal, kColors[owner_[cell] % 4], utf8);
  }

 private:
  const int columns_, rows_, dots_x_, dots_y_;
  std::vector<unsigned> bits_;
  std::vector<int> owner_;
};

// One point per dot column, the mean of what falls there: a curve of thousands of noisy steps is a
// line and not a band. Columns without a finite value are left out.
struct Columns {
  std::vector<int> column;
  std::vector<double> mean;
};

Columns AverageByColumn(const Series& series, const Range& x, int width) {
  std::vector<double> sum(width, 0);
  std::vector<int> count(width, 0);
  for (const auto& [px, py] : series.points) {
    if (!std::isfinite(px) || !std::isfinite(py)) continue;
    const int column = static_cast<int>(std::lround(x.At(px) * (width - 1)));
    sum[column] += py;
    ++count[column];
  }
  Columns columns;
  for (int column = 0; column < width; ++column) {
    if (count[column] == 0) continue;
    columns.column.push_back(column);
    columns.mean.push_back(sum[column] / count[column]);
  }
  return columns;
}

void Draw(const Columns& columns, int index, const Range& y, bool connect, Canvas& canvas) {
  int last_column = -1, last_row = 0;
  for (size_t i = 0; i < columns.column.size(); ++i) {
    const int column = columns.column[i];
    const int row =
        static_cast<int>(std::lround((1 - y.At(columns.mean[i])) * (canvas.height() - 1)));
    if (last_column < 0 || !connect)
      canvas.Dot(column, row, index);
    else
      canvas.Line(last_column, last_row, column, row, index);
    last_column = column;
    last_row = row;
  }
}

std::string Legend(const Terminal& terminal, const std::vector<Series>& series, bool logarithmic) {
  std::string out;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].points.empty()) continue;
    const char* const line = terminal.color || i % 4 == 0 ? "━━" : kUnicodeMarks[i % 4];
    const std::string mark =
        terminal.unicode ? Paint(terminal, kColors[i % 4], line) : std::string(1, kMarks[i % 4]);
    absl::StrAppend(&out, out.empty() ? "" : "   ", mark, " ", series[i].name, " ",
                    FormatMetric(series[i].points.back().second));
  }
  return absl::StrCat(out, logarithmic ? "   (logarithmic)" : "");
}

// The x axis, its numbers and the legend.
std::string Foot(const Terminal& terminal, const Range& x, int margin, int columns,
                 const std::string& legend) {
  const std::string left = FormatCount(std::llround(x.low));
  const std::string right = FormatCount(std::llround(x.high));
  const int gap = std::max(1, columns - static_cast<int>(left.size() + right.size()));
  std::string axis;
  for (int column = 0; column < columns; ++column) axis += terminal.unicode ? "─" : "-";
  const std::string space(margin + 2, ' ');
  return absl::StrCat(space.substr(2), terminal.unicode ? " └" : " +", axis, "\n", space, left,
                      std::string(gap, ' '), right, "\n", space, legend, "\n");
}

}  // namespace

std::string RenderPlot(const Terminal& terminal, const std::vector<Series>& series, int width,
                       int height) {
  Range x;
  for (const Series& s : series) {
    for (const auto& [px, py] : s.points) {
      if (std::isfinite(px) && std::isfinite(py)) x.Take(px);
    }
  }
  if (x.empty()) return "nothing to plot yet\n";
  constexpr int kMargin = 8;  // columns for the numbers of the y axis
  const int columns = std::max(10, width - kMargin - 2);
  const int rows = std::max(3, height - 3);
  Canvas canvas(columns, rows, terminal.unicode);
  std::vector<Columns> curves;
  Range y;
  for (const Series& s : series) {
    curves.push_back(AverageByColumn(s, x, canvas.width()));
    for (const double mean : curves.back().mean) y.Take(mean);
  }
  y.logarithmic = y.low > 0 && y.high > kLogarithmicFrom * y.low;
  for (size_t i = 0; i < curves.size(); ++i) {
    // Without colours only the first series is a line: marks joined to a line would hide it.
    Draw(curves[i], static_cast<int>(i), y, terminal.color || i == 0, canvas);
  }
  std::string out;
  for (int row = 0; row < rows; ++row) {
    const std::string label = row == 0          ? FormatMetric(y.high)
                              : row == rows / 2 ? FormatMetric(y.Middle())
                              : row + 1 == rows ? FormatMetric(y.low)
                                                : "";
    std::string line;
    for (int column = 0; column < columns; ++column) line += canvas.Cell(terminal, column, row);
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, std::string(std::max(0, kMargin - DisplayWidth(label)), ' '), label,
                    terminal.unicode ? (label.empty() ? " │" : " ┤") : " |", line, "\n");
  }
  return out + Foot(terminal, x, kMargin, columns, Legend(terminal, series, y.logarithmic));
}

}  // namespace trainyard::cli
