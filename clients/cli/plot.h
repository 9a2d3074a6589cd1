#pragma once

#include <string>
#include <utility>
#include <vector>

#include "clients/cli/terminal.h"

namespace trainyard::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x ascending; non-finite ones are left out
};

// Curves in text, `width` x `height` characters with axes and a legend: braille dots (2 x 4 per
// character) where the terminal shows Unicode, else one mark per series. The first series is drawn
// as a line, and the others, which have fewer points, over it: as lines where the terminal has
// colours, else as single marks. Returns "nothing to plot yet\n" if no point is finite.
std::string RenderPlot(const Terminal& terminal, const std::vector<Series>& series, int width,
                       int height);

}  // namespace trainyard::cli
