#include "executor/plan/spec/resnet_layout.h"

#include <utility>

namespace trainyard::plan {

std::optional<ResnetLayout> LayoutOfResnet(int depth) {
  constexpr std::pair<int, ResnetLayout> kLayouts[] = {{18, {{2, 2, 2, 2}, false}},
                                                       {34, {{3, 4, 6, 3}, false}},
                                                       {50, {{3, 4, 6, 3}, true}},
                                                       {101, {{3, 4, 23, 3}, true}},
                                                       {152, {{3, 8, 36, 3}, true}}};
  for (const auto& [known, layout] : kLayouts) {
    if (known == depth) return layout;
  }
  return std::nullopt;
}

}  // namespace trainyard::plan
