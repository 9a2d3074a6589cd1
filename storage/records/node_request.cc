#include "storage/records/node_request.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trainyard {

const char* ToString(NodeRequestState state) {
  switch (state) {
    case NodeRequestState::kWanted:
      return "WANTED";
    case NodeRequestState::kAsked:
      return "ASKED";
    case NodeRequestState::kReleasing:
      return "RELEASING";
    case NodeRequestState::kEnded:
      return "ENDED";
  }
  return "ENDED";
}

NodeRequestState NodeRequestStateOf(const std::string& text) {
  for (const NodeRequestState state :
       {NodeRequestState::kWanted, NodeRequestState::kAsked, NodeRequestState::kReleasing}) {
    if (text == ToString(state)) return state;
  }
  return NodeRequestState::kEnded;
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
