#pragma once

#include <string>
#include <utility>
#include <vector>

#include "clients/cli/terminal.h"

namespace trainyard::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; y that is not finite leaves a gap
};

// Curves in text, `width` x `height` characters with axes and a legend: braille dots (2 x 4 per
// character) where the terminal shows Unicode, else one mark per series. The first series is drawn
// as a line; the others, sparser ones, too, over it. "nothing to plot yet\n" without a finite
// point.
std::string RenderPlot(const Terminal& terminal, const std::vector<Series>& series, int width,
                       int height);

}  // namespace trainyard::cli
