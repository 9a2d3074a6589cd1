#include "clients/cli/doctor.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/format.h"
#include "storage/base/printable.h"

namespace trainyard::cli {
namespace {

// Leases and deadlines are counted on clocks of their own; tokens, certificates and what people
// read are not.
constexpr absl::Duration kMostSkew = absl::Seconds(5);
constexpr double kSlowStoreMs = 100;
constexpr double kLittleSpace = 0.1;  // of a disk, or of memory
constexpr double kHot = 90;           // degrees Celsius

class Findings {
 public:
  explicit Findings(std::string what) : what_(std::move(what)) {}
  void Add(Finding::State state, std::string detail) {
    all_.push_back({state, what_, std::move(detail)});
  }
  // With `good` if there is nothing to say.
  std::vector<Finding> TakeOr(std::string good) {
    if (all_.empty()) Add(Finding::kGood, std::move(good));
    std::stable_sort(all_.begin(), all_.end(),
                     [](const Finding& a, const Finding& b) { return a.state > b.state; });
    return std::move(all_);
  }

 private:
  const std::string what_;
  std::vector<Finding> all_;
};

std::vector<Finding> OfServer(const YardReport& yard) {
  const v1::ServerInfo& server = yard.server;
  Findings found("server");
  if (!yard.tls && !yard.loopback) {
    found.Add(Finding::kBad,
              "tokens travel in clear text; begin the server with --authority-key, or with "
              "--tls-certificate, and save a context with --ca-from");
  }
  if (server.version() != yard.client_version) {
    found.Add(Finding::kWarning, absl::StrCat("is of version ", server.version(),
                                              ", this program of ", yard.client_version));
  }
  if (server.has_time()) {
    // The server read its clock somewhere within the round trip.
    const absl::Duration skew = TimeOf(server.time()) - (yard.answered - yard.round_trip / 2);
    if (absl::AbsDuration(skew) > kMostSkew + yard.round_trip / 2) {
      found.Add(
          Finding::kWarning,
          absl::StrCat("its clock is ",
                       absl::FormatDuration(absl::AbsDuration(absl::Trunc(skew, absl::Seconds(1)))),
                       skew > absl::ZeroDuration() ? " ahead of" : " behind",
                       " this machine's; synchronize both (chrony)"));
    }
  }
  if (!server.store_error().empty()) {
    found.Add(Finding::kBad, absl::StrCat("its database does not answer: ", server.store_error()));
  } else if (server.store_ms() > kSlowStoreMs) {
    found.Add(Finding::kWarning,
              absl::StrCat("its database took ", static_cast<int>(server.store_ms()),
                           " ms to answer; look at its load and its disk"));
  }
  return found.TakeOr(absl::StrCat(
      "version ", server.version(), ", schema ", server.schema_version(),
      yard.tls ? ", by TLS" : "", ", its database answers in ",
      absl::FormatDuration(absl::Microseconds(static_cast<int64_t>(server.store_ms() * 1000)))));
}

bool IsLittle(int64_t free, int64_t total) {
  return total > 0 && static_cast<double>(free) < kLittleSpace * static_cast<double>(total);
}

void LookAtSlots(const v1::Node& node, Findings& found) {
  for (const v1::Slot& slot : node.slots()) {
    const std::string which = absl::StrCat("slot ", slot.index(), " (", slot.model(), ")");
    if (slot.usage().last_xid() != 0) {
      found.Add(Finding::kWarning, absl::StrCat(which, ": the driver reported Xid ",
                                                slot.usage().last_xid(), "; see dmesg"));
    }
    if (slot.usage().temperature_celsius() >= kHot) {
      found.Add(Finding::kWarning,
                absl::StrCat(which, ": ", static_cast<int>(slot.usage().temperature_celsius()),
                             " degrees Celsius; look at its cooling"));
    }
  }
}

std::vector<Finding> OfNode(const v1::Node& node, const std::string& server_version) {
  Findings found(node.name());
  if (node.state() == v1::Node::UNREACHABLE) {
    found.Add(Finding::kBad,
              "is away: its lease ended; look at its agent, and at the network between them");
  }
  if (node.state() == v1::Node::CORDONED) {
    found.Add(Finding::kBad, absl::StrCat("takes no work: ", node.cordon_reason(),
                                          "; `trainyard node undrain` lifts it"));
  }
  if (node.draining() || node.has_leave_time()) {
    found.Add(Finding::kWarning, node.draining() ? "is drained: it takes no new work"
                                                 : "leaves: it takes no new work");
  }
  if (node.agent_version() != server_version) {
    found.Add(Finding::kWarning, absl::StrCat("its agent is of version ", node.agent_version(),
                                              ", the server of ", server_version));
  }
  const v1::NodeReport& report = node.report();
  if (IsLittle(report.disk_free_bytes(), report.disk_total_bytes())) {
    found.Add(Finding::kBad, absl::StrCat(DescribeBytes(report.disk_free_bytes()), " of ",
                                          DescribeBytes(report.disk_total_bytes()), " are free in ",
                                          report.state_dir(), "; free some"));
  }
  if (IsLittle(report.memory_free_bytes(), report.memory_total_bytes())) {
    found.Add(Finding::kWarning,
              absl::StrCat(DescribeBytes(report.memory_free_bytes()), " of ",
                           DescribeBytes(report.memory_total_bytes()), " of memory are free"));
  }
  if (report.failed_starts() > 0 || report.failed_writes() > 0) {
    found.Add(Finding::kWarning, absl::StrCat(report.failed_starts(), " workers did not start and ",
                                              report.failed_writes(),
                                              " writes failed since its agent began; see its log"));
  }
  if (!node.failures().empty()) {
    std::set<std::string> categories;
    for (const v1::NodeFailure& failure : node.failures()) categories.insert(failure.category());
    found.Add(Finding::kWarning,
              absl::StrCat(node.failures_size(), " failures within a day (",
                           absl::StrJoin(categories, ", "), "); `trainyard node get` lists them"));
  }
  const auto held = std::count_if(node.lost_ranks().begin(), node.lost_ranks().end(),
                                  [](const v1::LostRank& rank) { return rank.holds_slots(); });
  if (held > 0) {
    found.Add(Finding::kBad,
              absl::StrCat(held,
                           " lost ranks hold slots; once you have looked that nothing of them "
                           "runs: `trainyard node confirm-empty`"));
  }
  LookAtSlots(node, found);
  return found.TakeOr(absl::StrCat(node.slots_size(), " slots, ",
                                   DescribeBytes(report.disk_free_bytes()), " of disk free"));
}

// Jobs that go from one kind of slot to another may get other last digits.
void CompareArithmetic(const std::vector<v1::Node>& nodes, std::vector<Finding>& findings) {
  std::map<std::string, std::set<std::string>> kinds;  // of a device, by its name
  for (const v1::Node& node : nodes) {
    for (const v1::Slot& slot : node.slots()) {
      std::vector<std::string> values;
      for (const auto& [name, value] : std::map<std::string, std::string>(
               slot.arithmetic().values().begin(), slot.arithmetic().values().end())) {
        values.push_back(absl::StrCat(name, " ", value));
      }
      kinds[v1::Resources::Device_Name(slot.device())].insert(absl::StrJoin(values, ", "));
    }
  }
  for (const auto& [device, of_device] : kinds) {
    if (of_device.size() < 2) continue;
    findings.push_back({Finding::kWarning, "nodes",
                        absl::StrCat("slots of kind ", device, " compute in ", of_device.size(),
                                     " ways: a job that goes from one to another says that its "
                                     "last digits may differ")});
  }
}

}  // namespace

std::vector<Finding> Diagnose(const YardReport& yard) {
  std::vector<Finding> findings = OfServer(yard);
  if (yard.nodes.empty()) {
    findings.push_back(
        {Finding::kBad, "nodes",
         "there is none, so every job waits; `trainyard admin join-token` makes what "
         "lets machines join"});
  }
  for (const v1::Node& node : yard.nodes) {
    for (Finding& finding : OfNode(node, yard.server.version())) {
      findings.push_back(std::move(finding));
    }
  }
  CompareArithmetic(yard.nodes, findings);
  if (yard.projects.has_value()) {
    const bool any = std::any_of(yard.projects->begin(), yard.projects->end(),
                                 [](const v1::Project& one) { return !one.unix_user().empty(); });
    if (!any) {
      findings.push_back({Finding::kWarning, "projects",
                          "none has a user of its own: whoever may submit reads what the agents' "
                          "user may; `trainyard admin project set PROJECT --unix-user NAME`"});
    }
  }
  return findings;
}

}  // namespace trainyard::cli
