#pragma once

// What contract_test.cc tests: every way in which ranks communicate. Each program that it is part
// of says what those are.

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/engine/parallel/gang.h"

namespace trainyard::engine::testing {

struct Subject {
  std::string name;  // of a test: letters
  LinkKind host = LinkKind::kMemory;
  // The most ranks that there can be here; nullptr: any number.
  std::function<int()> most_ranks = nullptr;
  // Makes the rank's communicator and runs the body, as Meeting does.
  std::function<Gang::Body(CommunicatorBody)> meeting = Meeting;
};

std::vector<Subject> Subjects();

}  // namespace trainyard::engine::testing
