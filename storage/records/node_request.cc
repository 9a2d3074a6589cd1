#include "storage/records/node_request.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/enum_names.h"

namespace trainyard {

namespace {

constexpr EnumNames<NodeRequestState, 4> kRequestStateNames = {
    {NodeRequestState::kWanted, "WANTED"},
    {NodeRequestState::kAsked, "ASKED"},
    {NodeRequestState::kReleasing, "RELEASING"},
    {NodeRequestState::kEnded, "ENDED"},
};

}  // namespace

std::string ToString(NodeRequestState state) {
  return std::string(NameIn(kRequestStateNames, state));
}

NodeRequestState NodeRequestStateOf(const std::string& text) {
  return ValueIn(kRequestStateNames, text).value_or(NodeRequestState::kEnded);
}

AskedName ParseAskedName(const std::string& node) {
  const size_t dash = node.rfind('-');
  int index = 0;
  if (dash == std::string::npos || dash == 0 ||
      !absl::SimpleAtoi(absl::string_view(node).substr(dash + 1), &index) || index < 1 ||
      AskedNodeName(node.substr(0, dash), index) != node) {
    return {.ask = node, .index = 0};
  }
  return {.ask = node.substr(0, dash), .index = index};
}

std::string AskedNodeName(const std::string& ask, int index) {
  return absl::StrCat(ask, "-", index);
}

}  // namespace trainyard
