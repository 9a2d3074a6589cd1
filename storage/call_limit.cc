#include "storage/call_limit.h"

#include <algorithm>

namespace trainyard {
namespace {

thread_local absl::Duration current_limit = absl::InfiniteDuration();

}  // namespace

absl::Duration CurrentCallLimit() { return current_limit; }

CallLimit::CallLimit(absl::Duration limit) : outer_(current_limit) {
  current_limit = std::min(outer_, limit);
}

CallLimit::~CallLimit() { current_limit = outer_; }

}  // namespace trainyard
