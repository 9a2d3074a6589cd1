#pragma once

#include "CLI/CLI.hpp"
#include "clients/cli/session.h"

// Each adds one subcommand; its file in commands/ has the same name.
namespace trainyard::cli {

void AddSubmit(CLI::App& root, Session& session);
void AddPlan(CLI::App& root, Session& session);
void AddPs(CLI::App& root, Session& session);
void AddGet(CLI::App& root, Session& session);
void AddWatch(CLI::App& root, Session& session);
void AddLogs(CLI::App& root, Session& session);
void AddMetrics(CLI::App& root, Session& session);
void AddExplain(CLI::App& root, Session& session);
void AddWait(CLI::App& root, Session& session);
void AddCancel(CLI::App& root, Session& session);
void AddPause(CLI::App& root, Session& session);
void AddResume(CLI::App& root, Session& session);
void AddResize(CLI::App& root, Session& session);
void AddDelete(CLI::App& root, Session& session);
void AddCheckpoints(CLI::App& root, Session& session);
void AddSample(CLI::App& root, Session& session);
void AddNode(CLI::App& root, Session& session);
void AddRetention(CLI::App& root, Session& session);
void AddAdmin(CLI::App& root, Session& session);
void AddAudit(CLI::App& root, Session& session);
void AddContext(CLI::App& root, Session& session);
void AddLocal(CLI::App& root, Session& session);
void AddWhoAmI(CLI::App& root, Session& session);
void AddVersion(CLI::App& root, Session& session);
void AddCompletion(CLI::App& root, Session& session);

}  // namespace trainyard::cli
