#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/commands.h"
#include "clients/cli/format.h"
#include "clients/cli/shown.h"
#include "clients/cli/table.h"
#include "storage/base/arithmetic.h"
#include "storage/base/status.h"

namespace trainyard::cli {
namespace {

std::string FullName(const std::string& text) {
  return absl::StartsWith(text, "nodes/") ? text : absl::StrCat("nodes/", text);
}

std::string StateOf(const Terminal& terminal, const v1::Node& node) {
  const bool ready = node.state() == v1::Node::READY;
  return absl::StrCat(
      Paint(terminal, ready ? Color::kGreen : Color::kRed, v1::Node::State_Name(node.state())),
      node.draining() ? " (draining)" : "", node.has_leave_time() ? " (leaving)" : "");
}

int BusySlots(const v1::Node& node) {
  int busy = 0;
  for (const v1::Slot& slot : node.slots()) busy += slot.job().empty() ? 0 : 1;
  return busy;
}

std::string RenderNodes(const Terminal& terminal, const std::vector<v1::Node>& nodes) {
  Table table({"NODE", "STATE", "SLOTS", "BUSY", "DEVICE", "ADDRESS", "AGE"});
  for (const int column : {2, 3, 6}) table.AlignRight(column);
  for (const v1::Node& raw : nodes) {
    const v1::Node node = Shown(raw);
    table.Add({LastSegment(node.name()), StateOf(terminal, node), absl::StrCat(node.slots_size()),
               absl::StrCat(BusySlots(node)), node.slots().empty() ? "" : node.slots(0).model(),
               node.address(), FormatAge(absl::Now() - TimeOf(node.create_time()))});
  }
  return table.Render(terminal);
}

// Adds the usage columns of a GPU's slot; dashes for a CPU's, which has no usage.
void AddUsage(const v1::Slot& slot, std::vector<std::string>& row) {
  if (!slot.has_usage()) {
    row.insert(row.end(), 5, "-");
    return;
  }
  const v1::SlotUsage& usage = slot.usage();
  row.push_back(absl::StrFormat("%.0f %%", 100 * usage.utilization()));
  row.push_back(FormatBytes(usage.memory_used_bytes()));
  row.push_back(absl::StrFormat("%.0f C", usage.temperature_celsius()));
  row.push_back(absl::StrFormat("%.0f W", usage.power_watts()));
  row.push_back(usage.last_xid() == 0 ? "-" : absl::StrCat(usage.last_xid()));
}

std::string FreeOf(int64_t free, int64_t total) {
  if (total == 0) return absl::StrCat(FormatBytes(free), " free");
  return absl::StrCat(FormatBytes(free), " free of ", FormatBytes(total));
}

using Fields = std::vector<std::pair<std::string, std::string>>;

// What the agent reports. An agent of an earlier version reports nothing but its free disk space.
void AddReport(const v1::NodeReport& report, Fields& fields) {
  if (report.disk_total_bytes() > 0 || report.disk_free_bytes() > 0) {
    std::string disk = FreeOf(report.disk_free_bytes(), report.disk_total_bytes());
    if (!report.state_dir().empty()) absl::StrAppend(&disk, ", ", report.state_dir());
    fields.emplace_back("disk", disk);
  }
  if (report.memory_total_bytes() > 0) {
    fields.emplace_back("memory", FreeOf(report.memory_free_bytes(), report.memory_total_bytes()));
  }
  if (report.failed_starts() > 0 || report.failed_writes() > 0) {
    fields.emplace_back("errors", absl::StrCat(report.failed_starts(), " failed starts, ",
                                               report.failed_writes(), " failed writes"));
  }
}

// What the last digits of results depend on, once for all slots that are alike.
void AddArithmetic(const v1::Node& node, Fields& fields) {
  std::map<std::string, std::vector<int>> slots;
  for (const v1::Slot& slot : node.slots()) {
    const auto& values = slot.arithmetic().values();
    const std::string text = ArithmeticToText(Arithmetic(values.begin(), values.end()));
    slots[text.empty() ? "unknown" : text].push_back(slot.index());
  }
  for (const auto& [text, indices] : slots) {
    const std::string which =
        slots.size() == 1 ? "" : absl::StrCat("slots ", absl::StrJoin(indices, ", "), ": ");
    fields.emplace_back("computes with", absl::StrCat(which, text));
  }
}

std::string Describe(const v1::LostRank& lost) {
  const std::string rank =
      absl::StrCat("rank ", lost.rank(), " of attempt ", lost.attempt(), " of job ", lost.job_uid(),
                   ", ", FormatWhen(TimeOf(lost.lost_time())));
  if (!lost.holds_slots()) return absl::StrCat(rank, ", before this boot");
  return absl::StrCat(rank, "; its process may live in slot ", absl::StrJoin(lost.slots(), ", "),
                      ": if you know that it does not, 'trainyard node confirm-empty' frees it");
}

std::string RenderNode(const Terminal& terminal, const v1::Node& raw) {
  const v1::Node node = Shown(raw);
  Fields fields = {{"node", LastSegment(node.name())},
                   {"state", StateOf(terminal, node)},
                   {"address", node.address()},
                   {"agent", node.agent_version()},
                   {"lease ends", FormatWhen(TimeOf(node.lease_end_time()))}};
  if (node.has_leave_time()) fields.emplace_back("leaves", FormatWhen(TimeOf(node.leave_time())));
  if (!node.cordon_reason().empty()) fields.emplace_back("takes no work", node.cordon_reason());
  std::vector<std::string> labels;
  for (const auto& [key, value] : node.labels()) labels.push_back(absl::StrCat(key, "=", value));
  std::sort(labels.begin(), labels.end());
  if (!labels.empty()) fields.emplace_back("labels", absl::StrJoin(labels, ", "));
  AddReport(node.report(), fields);
  AddArithmetic(node, fields);
  for (const v1::NodeFailure& failure : node.failures()) {
    fields.emplace_back("failure",
                        absl::StrCat(FormatWhen(TimeOf(failure.time())), "  ", failure.category(),
                                     " of ", failure.job_id(), ", attempt ", failure.attempt()));
  }
  for (const v1::LostRank& lost : node.lost_ranks()) fields.emplace_back("lost", Describe(lost));
  std::string out = RenderFields(terminal, fields);
  const bool with_usage = std::any_of(node.slots().begin(), node.slots().end(),
                                      [](const v1::Slot& slot) { return slot.has_usage(); });
  std::vector<std::string> header = {"SLOT", "DEVICE", "MODEL", "MEMORY", "THREADS", "JOB"};
  if (with_usage) header.insert(header.end(), {"BUSY", "USED", "TEMP", "POWER", "LAST XID"});
  Table table(header);
  table.AlignRight(0);
  for (const v1::Slot& slot : node.slots()) {
    std::vector<std::string> row = {absl::StrCat(slot.index()),
                                    v1::Resources::Device_Name(slot.device()),
                                    slot.model(),
                                    FormatBytes(slot.memory_bytes()),
                                    absl::StrCat(slot.cpu_threads()),
                                    slot.job().empty() ? "-" : LastSegment(slot.job())};
    if (with_usage) AddUsage(slot, row);
    table.Add(row);
  }
  return absl::StrCat(out, "\n", table.Render(terminal));
}

absl::StatusOr<int> ListNodes(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::ListNodesRequest request;
  std::vector<v1::Node> nodes;
  do {
    TY_ASSIGN_OR_RETURN(v1::ListNodesResponse page, client->ListNodes(request));
    for (v1::Node& node : *page.mutable_nodes()) nodes.push_back(std::move(node));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (session.WriteForPrograms(nodes)) return kExitOk;
  if (nodes.empty()) {
    session.err().Write("no nodes: no agent has connected yet\n");
  } else {
    session.out().Write(RenderNodes(session.terminal(), nodes));
  }
  return kExitOk;
}

std::string StateOf(const Terminal& terminal, const v1::PoolNode& node) {
  const bool up = node.state() == v1::PoolNode::UP;
  const bool failed = node.state() == v1::PoolNode::FAILED;
  return Paint(terminal,
               up       ? Color::kGreen
               : failed ? Color::kRed
                        : Color::kYellow,
               v1::PoolNode::State_Name(node.state()));
}

std::string RenderPools(const Terminal& terminal, const v1::ListPoolsResponse& raw) {
  const v1::ListPoolsResponse pools = Shown(raw);
  Table table({"POOL", "ENGINE", "NODES", "MIN", "MAX", "SLOTS EACH"});
  for (const int column : {2, 3, 4}) table.AlignRight(column);
  Table nodes({"NODE", "STATE", "ENGINE", "AGE", "FOR"});
  nodes.AlignRight(3);
  for (const v1::Pool& pool : pools.pools()) {
    int up = 0;
    for (const v1::PoolNode& node : pool.nodes()) {
      up += node.state() == v1::PoolNode::UP ? 1 : 0;
      nodes.Add({LastSegment(node.name()), StateOf(terminal, node),
                 absl::StrCat(node.engine_words(), node.engine_id().empty() ? "" : " as ",
                              node.engine_id()),
                 FormatAge(absl::Now() - TimeOf(node.create_time())), node.why()});
    }
    table.Add({LastSegment(pool.name()), pool.engine(), absl::StrCat(up), absl::StrCat(pool.min()),
               absl::StrCat(pool.max()),
               absl::StrCat(pool.slots_per_node(), " ", v1::Resources::Device_Name(pool.device()),
                            " of ", FormatBytes(pool.slot_memory_bytes()))});
  }
  return absl::StrCat(table.Render(terminal), "\n", nodes.Render(terminal));
}

absl::StatusOr<int> ListPools(Session& session) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  TY_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, client->ListPools({}));
  if (session.WriteForPrograms(std::vector<v1::Pool>(pools.pools().begin(), pools.pools().end()))) {
    return kExitOk;
  }
  if (pools.pools().empty()) {
    session.err().Write("no pools: the server has no --pools\n");
  } else {
    session.out().Write(RenderPools(session.terminal(), pools));
  }
  return kExitOk;
}

absl::StatusOr<int> Revoke(Session& session, const std::string& node) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  v1::RevokeNodeRequest request;
  request.set_name(FullName(node));
  TY_ASSIGN_OR_RETURN(const v1::RevokeNodeResponse revoked, client->RevokeNode(request));
  if (session.WriteForPrograms(revoked)) return kExitOk;
  session.out().Write(absl::StrCat(
      LastSegment(revoked.name()), ", which joined ", FormatWhen(TimeOf(revoked.join_time())),
      ", was revoked ", FormatWhen(TimeOf(revoked.revoke_time())),
      "; jobs that ran there go on elsewhere once its lease is over. If you know that no process ",
      "of theirs lives there, 'trainyard node confirm-empty' frees its slots.\n"));
  return kExitOk;
}

template <typename Request>
absl::StatusOr<int> Call(Session& session, const std::string& name,
                         absl::StatusOr<v1::Node> (Client::*method)(const Request&)) {
  TY_ASSIGN_OR_RETURN(Client * client, session.Connect());
  Request request;
  request.set_name(FullName(name));
  TY_ASSIGN_OR_RETURN(const v1::Node node, (client->*method)(request));
  if (!session.WriteForPrograms(node)) {
    session.out().Write(RenderNode(session.terminal(), node));
  }
  return kExitOk;
}

template <typename Request>
void AddCall(CLI::App& parent, Session& session, const std::string& name, const std::string& help,
             absl::StatusOr<v1::Node> (Client::*method)(const Request&)) {
  CLI::App* command = parent.add_subcommand(name, help);
  auto node = std::make_shared<std::string>();  // lives as long as the command's body
  command->add_option("NODE", *node, "Name of the node")->required();
  session.SetBody(command, [&session, node, method] { return Call(session, *node, method); });
}

}  // namespace

void AddNode(CLI::App& root, Session& session) {
  CLI::App* command = root.add_subcommand(
      "node", "Executor nodes: list, pools, get, drain, undrain, confirm-empty, revoke");
  command->require_subcommand(1);
  CLI::App* list = command->add_subcommand("list", "List nodes");
  session.SetBody(list, [&session] { return ListNodes(session); });
  CLI::App* pools = command->add_subcommand(
      "pools",
      "List the pools whose nodes an engine such as Slurm makes, and what was asked of it");
  session.SetBody(pools, [&session] { return ListPools(session); });
  AddCall(*command, session, "get", "Show a node and its slots", &Client::GetNode);
  AddCall(*command, session, "drain", "Give it no new work and move away what runs there",
          &Client::DrainNode);
  AddCall(*command, session, "undrain",
          "Use it again: lifts a drain, and a cordon for its failures", &Client::UndrainNode);
  AddCall(*command, session, "confirm-empty",
          "Say, after looking at the machine, that no process of its lost ranks lives any more",
          &Client::ConfirmNodeEmpty);
  CLI::App* revoke = command->add_subcommand(
      "revoke", "Turn it away for good, at once: its certificate lets it in no more");
  auto node = std::make_shared<std::string>();
  revoke->add_option("NODE", *node, "Name of the node")->required();
  session.SetBody(revoke, [&session, node] { return Revoke(session, *node); });
}

}  // namespace trainyard::cli
