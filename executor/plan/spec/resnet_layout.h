#pragma once

#include <array>
#include <optional>

namespace trainyard::plan {

// The blocks of the four stages of a resnet of this depth, and whether they are bottlenecks (three
// convolutions, the last to four times the channels). Nullopt: there is no such resnet.
struct ResnetLayout {
  std::array<int, 4> blocks;
  bool bottleneck = false;
};
std::optional<ResnetLayout> LayoutOfResnet(int depth);

}  // namespace trainyard::plan
