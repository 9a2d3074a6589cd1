#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trainyard::cli {

// Path of this program.
absl::StatusOr<std::string> OwnProgram();

// A program that is installed beside this one; kNotFound says where it was expected.
absl::StatusOr<std::string> FindProgram(const std::string& name);

}  // namespace trainyard::cli
