#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "storage/base/ids.h"

namespace trainyard::run {

// A folder of its own for each test, removed at the end.
class Scratch : public ::testing::Test {
 protected:
  Scratch() : folder_(::testing::TempDir() + "trainyard-" + RandomHex(6)) {
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() override { std::filesystem::remove_all(folder_); }

  const std::string folder_;
};

}  // namespace trainyard::run
