#include "executor/plan/spec/resnet_layout.h"

namespace trainyard::plan {

std::optional<ResnetLayout> LayoutOfResnet(int depth) {
  switch (depth) {
    case 18:
      return ResnetLayout{{2, 2, 2, 2}, false};
    case 34:
      return ResnetLayout{{3, 4, 6, 3}, false};
    case 50:
      return ResnetLayout{{3, 4, 6, 3}, true};
    case 101:
      return ResnetLayout{{3, 4, 23, 3}, true};
    case 152:
      return ResnetLayout{{3, 8, 36, 3}, true};
    default:
      return std::nullopt;
  }
}

}  // namespace trainyard::plan
