#pragma once

// Flags of a program in a file, for services that a machine starts by itself.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace trainyard {

// `arguments` are those of main, without the program. If "--config FILE" or "--config=FILE" is
// among them, the flags of that file stand in front of the others in its place, but for those that
// the command line has itself. The file is YAML, a mapping: the name of a flag without its dashes,
// and its value, a list of values for a flag that may be repeated, true or false for one that takes
// none. `known` are the names that there are. kNotFound, kPermissionDenied: the file cannot be
// read. kInvalidArgument names file, line and what was expected.
absl::StatusOr<std::vector<std::string>> WithFlagsOfFile(std::vector<std::string> arguments,
                                                         const std::vector<std::string>& known);

// Parses the command line and, where it has --config, that file. Throws CLI::ParseError.
void ParseFlags(CLI::App& app, int argc, char** argv);

}  // namespace trainyard
