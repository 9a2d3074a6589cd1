#pragma once

#include <string>

namespace trainyard::worker {

// Prints what the bits of results on `device` depend on as one line, which ArithmeticFromText
// (storage/base/arithmetic.h) reads. Returns the exit code.
int RunArithmetic(const std::string& device);

}  // namespace trainyard::worker
