#pragma once

// A node that the yard asked an engine for (Slurm, …), from the wish for it until nothing of it is
// left.

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard {

enum class NodeRequestState {
  kWanted,     // it is not known whether the engine has heard of it
  kAsked,      // the engine has it: it waits there, boots, or is up
  kReleasing,  // it is given up; the engine may still run it
  kEnded,      // the engine runs it no more
};
std::string ToString(NodeRequestState state);
NodeRequestState NodeRequestStateOf(const std::string& text);  // of what ToString gave

struct NodeRequest {
  std::string node;  // the name under which its agent registers: the pool's, an ask, a number
  std::string pool;
  NodeRequestState state = NodeRequestState::kWanted;
  std::string engine_id;     // what the engine calls it, such as "123_1"; empty: not known
  std::string engine_words;  // what the engine says of it, such as "Slurm PENDING (Resources)"
  std::string why;           // it was asked for
  bool failed = false;       // it was over, or given up, before its agent came
  // Of one that ended: the engine vouches that no process of it is left.
  bool proven_gone = false;
  absl::Time create_time;
  absl::Time change_time;  // of anything above
};

// "a-3f9c01b2" and 2 of "a-3f9c01b2-2": nodes that are asked for together have the first in common.
// {name, 0} if it is no such name.
struct AskedName {
  std::string ask;
  int index = 0;
};
AskedName ParseAskedName(const std::string& node);
std::string AskedNodeName(const std::string& ask, int index);

}  // namespace trainyard
