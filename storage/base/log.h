#pragma once

#include <string>

// Logging is spdlog: include <spdlog/spdlog.h> and call spdlog::info("...").
namespace trainyard {

// Writes JSON lines ({"time":…,"level":…,"program":…,"message":…}) to stderr, or human lines when
// stderr is a terminal. Level from TRAINYARD_LOG (trace, debug, info, warn, error), default info.
// Call once, at the start of main.
void SetUpLog(const std::string& program);

}  // namespace trainyard
