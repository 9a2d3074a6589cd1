#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/option_checks.h"
#include "clients/cli/output.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"
#include "storage/base/audit_chain.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

struct ListFlags {
  std::string principal;
  int most = 50;
  bool lines = false;
};

AuditEntry EntryOf(const v1::AuditEntry& entry) {
  return {.chain = entry.chain(),
          .sequence = entry.sequence(),
          .time = TimeOf(entry.time()),
          .principal = entry.principal(),
          .credential = entry.credential(),
          .source = entry.source(),
          .method = entry.method(),
          .resource = entry.resource(),
          .outcome = entry.outcome(),
          .detail = entry.detail(),
          .count = entry.count(),
          .digest = entry.digest()};
}

absl::StatusOr<int> ListAudit(Session& session, const ListFlags& flags) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::ListAuditEntriesRequest request;
  request.set_principal(flags.principal);
  std::vector<v1::AuditEntry> entries;
  do {
    request.set_page_size(std::min(1000, flags.most - static_cast<int>(entries.size())));
    TY_ASSIGN_OR_RETURN(v1::ListAuditEntriesResponse page, client->ListAuditEntries(request));
    for (v1::AuditEntry& entry : *page.mutable_entries()) entries.push_back(std::move(entry));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && static_cast<int>(entries.size()) < flags.most);
  if (flags.lines) {
    for (const v1::AuditEntry& entry : entries) session.out().Write(JsonLine(entry));
    return kExitOk;
  }
  if (session.WriteForPrograms(entries)) return kExitOk;
  Table table({"TIME", "WHO", "FROM", "WHAT", "OF", "OUTCOME", "DETAIL"});
  for (const v1::AuditEntry& raw : entries) {
    const v1::AuditEntry entry = Shown(raw);
    const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
    table.Add({FormatWhen(TimeOf(entry.time())), or_dash(entry.principal()),
               or_dash(entry.source()), entry.method(), or_dash(entry.resource()),
               absl::StrCat(entry.outcome(),
                            entry.count() > 1 ? absl::StrCat(", ", entry.count(), " times") : ""),
               entry.detail()});
  }
  session.out().Write(table.Render(session.terminal()));
  return kExitOk;
}

// The heads in these files of lines, as servers write them (--audit-heads).
absl::StatusOr<std::vector<AuditHead>> ReadHeads(Session& session,
                                                 const std::vector<std::string>& paths) {
  std::vector<AuditHead> heads;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      std::optional<AuditHead> head = ParseAuditHeadLine(line);
      if (head.has_value()) {
        heads.push_back(*std::move(head));
      } else if (!line.empty()) {  // a server that was killed may have left half of one
        session.err().Write(absl::StrCat(path, ", line ", number,
                                         " is not the head of a chain, as ",
                                         "--audit-heads of trainyard-server writes it\n"));
      }
    }
  }
  return heads;
}

absl::StatusOr<int> Verify(Session& session, const std::vector<std::string>& heads_files) {
  TY_ASSIGN_OR_RETURN(const std::vector<AuditHead> heads, ReadHeads(session, heads_files));
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  AuditVerifier verifier(heads);
  v1::ListAuditEntriesRequest request;
  request.set_by_chain(true);
  request.set_page_size(1000);
  do {
    TY_ASSIGN_OR_RETURN(const v1::ListAuditEntriesResponse page, client->ListAuditEntries(request));
    for (const v1::AuditEntry& entry : page.entries()) verifier.Take(EntryOf(entry));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  const std::vector<std::string> findings = verifier.Finish();
  for (const std::string& finding : findings) {
    session.out().Write(absl::StrCat(EscapedLine(finding), "\n"));
  }
  if (!findings.empty()) {
    return absl::DataLossError(absl::StrCat("the audit was tampered with, in ", findings.size(),
                                            findings.size() == 1 ? " place" : " places"));
  }
  session.out().Write(absl::StrCat(
      verifier.entries(), verifier.entries() == 1 ? " entry in " : " entries in ",
      verifier.chains(), verifier.chains() == 1 ? " chain" : " chains",
      ": each follows the one before it as it was written",
      heads.empty()
          ? "; whether chains were cut off, removed or written anew is seen with --heads alone"
          : "",
      "\n"));
  return kExitOk;
}

}  // namespace

void AddAudit(CLI::App& root, Session& session) {
  CLI::App* command =
      root.add_subcommand("audit", "Who changed what, and who was refused: list, verify");
  command->require_subcommand(1);
  CLI::App* list = command->add_subcommand("list", "List the newest entries");
  auto flags = std::make_shared<ListFlags>();  // lives as long as the command's body
  list->add_option("--principal", flags->principal, "Of this one alone, such as user:bob");
  list->add_option("-n,--most", flags->most, "How many at most")
      ->capture_default_str()
      ->check(AtLeast(1));
  list->add_flag("--lines", flags->lines, "One JSON object on each line");
  session.SetBody(list, [&session, flags] { return ListAudit(session, *flags); });
  CLI::App* verify = command->add_subcommand(
      "verify", "Check that no entry was changed, removed or added, from the first to the last");
  auto heads = std::make_shared<std::vector<std::string>>();
  verify->add_option("--heads", *heads,
                     "Files with heads of chains that servers wrote (--audit-heads) and you kept");
  session.SetBody(verify, [&session, heads] { return Verify(session, *heads); });
}

}  // namespace trainyard::cli
