#include "clients/cli/doctor.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "clients/cli/format.h"

namespace trainyard::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Node Healthy(const std::string& name) {
  v1::Node node;
  node.set_name("nodes/" + name);
  node.set_state(v1::Node::READY);
  node.set_agent_version("1");
  node.add_slots()->set_device(v1::Resources::CPU);
  (*node.mutable_slots(0)->mutable_arithmetic()->mutable_values())["loops"] = "avx2";
  node.mutable_report()->set_disk_free_bytes(int64_t{50} << 30);
  node.mutable_report()->set_disk_total_bytes(int64_t{100} << 30);
  return node;
}

YardReport HealthyYard() {
  YardReport yard{.client_version = "1", .tls = true, .answered = absl::FromUnixSeconds(1000)};
  yard.server.set_version("1");
  yard.server.mutable_time()->set_seconds(1000);
  yard.server.set_store_ms(0.4);
  yard.nodes = {Healthy("n1"), Healthy("n2")};
  v1::Project project;
  project.set_unix_user("ann");
  yard.projects = {project};
  return yard;
}

// "BAD nodes/n1: …"
std::vector<std::string> Said(const YardReport& yard) {
  std::vector<std::string> said;
  for (const Finding& finding : Diagnose(yard)) {
    const char* const state = finding.state == Finding::kBad       ? "BAD "
                              : finding.state == Finding::kWarning ? "warning "
                                                                   : "";
    said.push_back(absl::StrCat(state, finding.what, ": ", finding.detail));
  }
  return said;
}

TEST(Doctor, HasNothingToSayOfAHealthyYard) {
  EXPECT_THAT(Said(HealthyYard()),
              ElementsAre("server: version 1, schema 0, by TLS, its database answers in 400us",
                          "nodes/n1: 1 slots, 50.0 GiB of disk free",
                          "nodes/n2: 1 slots, 50.0 GiB of disk free"));
}

TEST(Doctor, SaysWhatIsWrongWithAServer) {
  YardReport yard = HealthyYard();
  yard.tls = false;
  yard.server.set_version("2");
  yard.server.mutable_time()->set_seconds(1100);
  yard.server.set_store_ms(250);
  yard.round_trip = absl::Seconds(1);
  const auto said = Said(yard);
  EXPECT_THAT(said[0], HasSubstr("BAD server: tokens travel in clear text"));
  EXPECT_THAT(said, Contains("warning server: is of version 2, this program of 1"));
  EXPECT_THAT(said, Contains(HasSubstr("its clock is 1m40s ahead of this machine's")));
  EXPECT_THAT(said, Contains(HasSubstr("its database took 250 ms")));
  yard.loopback = true;
  EXPECT_THAT(Said(yard)[0], ::testing::Not(HasSubstr("clear text")));
  yard.server.set_store_error("connection refused");
  EXPECT_THAT(Said(yard), Contains("BAD server: its database does not answer: connection refused"));
  yard.server.clear_time();  // of a server of before
  EXPECT_THAT(Said(yard), ::testing::Not(Contains(HasSubstr("clock"))));
}

TEST(Doctor, SaysWhatIsWrongWithNodes) {
  YardReport yard = HealthyYard();
  v1::Node& sick = yard.nodes[0];
  sick.set_state(v1::Node::CORDONED);
  sick.set_cordon_reason("failures of three jobs");
  sick.set_agent_version("0");
  sick.mutable_report()->set_disk_free_bytes(int64_t{1} << 30);
  sick.mutable_report()->set_state_dir("/var/lib/x");
  sick.add_failures()->set_category("DEVICE");
  sick.add_lost_ranks()->set_holds_slots(true);
  sick.mutable_slots(0)->mutable_usage()->set_last_xid(79);
  sick.mutable_slots(0)->mutable_usage()->set_temperature_celsius(95);
  (*sick.mutable_slots(0)->mutable_arithmetic()->mutable_values())["loops"] = "avx512";
  const auto said = Said(yard);
  for (const char* words :
       {"BAD nodes/n1: takes no work: failures of three jobs",
        "1.0 GiB of 100.0 GiB are free in /var/lib/x", "BAD nodes/n1: 1 lost ranks hold slots",
        "warning nodes/n1: its agent is of version 0", "1 failures within a day (DEVICE)", "Xid 79",
        "95 degrees", "warning nodes: slots of kind CPU compute in 2 ways"}) {
    EXPECT_THAT(said, Contains(HasSubstr(words)));
  }
  yard.nodes.clear();
  EXPECT_THAT(Said(yard), Contains(HasSubstr("BAD nodes: there is none, so every job waits")));
}

TEST(Doctor, WarnsOfProjectsWithoutUsers) {
  YardReport yard = HealthyYard();
  yard.projects->clear();
  EXPECT_THAT(Said(yard).back(), HasSubstr("warning projects: none has a user of its own"));
  yard.projects.reset();
  EXPECT_THAT(Said(yard).back(), HasSubstr("nodes/n2"));
}

}  // namespace
}  // namespace trainyard::cli
