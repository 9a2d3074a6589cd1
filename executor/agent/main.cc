#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/agent/agent.h"
#include "executor/agent/ask_arithmetic.h"
#include "executor/agent/node_certificate.h"
#include "executor/agent/nvml.h"
#include "executor/agent/rank_ports.h"
#include "executor/agent/slots.h"
#include "proto/tls/join_token_file.h"
#include "proto/tls/pem_files.h"
#include "storage/base/file.h"
#include "storage/base/flags_file.h"
#include "storage/base/ids.h"
#include "storage/base/kernel_rights.h"
#include "storage/base/log.h"
#include "storage/base/server_list.h"
#include "storage/base/status.h"

namespace trainyard {
namespace {

constexpr int kExitUsage = 64;
constexpr int kExitFailed = 70;

// How long a worker may take to tell what one device computes with.
constexpr absl::Duration kArithmeticPatience = absl::Seconds(30);

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  std::string clean;
  for (const char c : absl::AsciiStrToLower(name)) {
    clean += absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ? c : '-';
  }
  clean = clean.substr(0, 63);
  while (!clean.empty() && !absl::ascii_isalnum(static_cast<unsigned char>(clean.back()))) {
    clean.pop_back();
  }
  return clean.empty() ? "node" : clean;
}

std::string SiblingWorker() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "trainyard-worker").string();
}

struct Flags {
  AgentOptions agent = {.worker = {.path = SiblingWorker()}};  // as given: paths may be relative
  std::vector<std::string> servers = {"127.0.0.1:7070"};
  std::string node = HostName();
  SlotRequest slots;
  std::string address = "127.0.0.1";
  int rank_port = 0;
  std::vector<std::string> labels;
  int leave_grace_s = 0;
  bool print_slots = false;
  bool insecure = false;
};

// What jobs may do to the node.
void DeclareRights(CLI::App& app, Flags& flags) {
  app.add_option("--data-root", flags.agent.worker.roots.data,
                 "folder that jobs may read, with all beneath it that their user may; may be "
                 "repeated; with a root, --data-root or --checkpoint-root, jobs see no other files")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::ExistingDirectory);
  app.add_option("--checkpoint-root", flags.agent.worker.roots.checkpoints,
                 "folder that jobs may write, where the server has them put checkpoints; may be "
                 "repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::ExistingDirectory);
  app.add_option("--project-environments", flags.agent.project_environments,
                 "folder of files PROJECT.env with variables AWS_… for the project's jobs, which "
                 "otherwise, if they run as a user of their own, get none")
      ->check(CLI::ExistingDirectory);
  app.add_flag("--insecure", flags.insecure,
               "run jobs although this kernel cannot keep them from what is not theirs");
  app.add_flag("--require-user", flags.agent.users.required,
               "run no job of a project that has no user of its own (`trainyard admin project "
               "set`); without it such jobs run as this agent");
  app.add_option("--least-uid", flags.agent.users.least_uid,
                 "run no job as a user with a smaller number: those are the system's")
      ->capture_default_str()
      ->check(CLI::Range(1u, 4294967294u));
}

void Declare(CLI::App& app, Flags& flags) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--server", flags.servers,
                 "HOST:PORT of the server; several (repeated, or with commas) of one yard")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app.add_option("--token-file", flags.agent.token_file, "file with the token of this agent");
  app.add_option("--join-token", flags.agent.join_token,
                 "file by which this machine joins the yard as a node, as `trainyard admin "
                 "join-token` makes it, at the server's port for agents; needed once: the "
                 "certificate that the node gets stays in --state-dir");
  app.add_option(
      "--ca-file", flags.agent.ca_file,
      "PEM file with the authority that vouches for the server, which then is reached by "
      "TLS alone; \"system\": those that this machine trusts; default for a node that has joined: "
      "the yard's own");
  app.add_option("--node", flags.node, "name of this node")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](std::string& name) {
            const auto alnum = [](char c) {
              return absl::ascii_islower(static_cast<unsigned char>(c)) ||
                     absl::ascii_isdigit(static_cast<unsigned char>(c));
            };
            bool ok =
                !name.empty() && name.size() <= 63 && alnum(name.front()) && alnum(name.back());
            for (const char c : name) ok = ok && (alnum(c) || c == '.' || c == '-');
            return ok ? std::string()
                      : absl::StrCat("'", name, "' is not [a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?");
          },
          "NAME"));
  app.add_option("--state-dir", flags.agent.state_dir,
                 "folder for assignments, events and logs of ranks; one agent at a time");
  app.add_option("--cpu-slots", flags.slots.cpu_slots, "CPU slots to offer beside the GPUs")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--threads-per-slot", flags.slots.threads_per_slot,
                 "CPU threads of a slot; 0: cores / slots")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--address", flags.address, "host by which ranks on other nodes reach this one")
      ->capture_default_str();
  app.add_option("--rank-port", flags.rank_port,
                 "the first of as many ports as there are slots, by which ranks reach one another; "
                 "default: some that are free")
      ->check(CLI::Range(1, 65535));
  app.add_option("--label", flags.labels, "KEY=VALUE shown with the node; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check([](const std::string& label) {
        return label.find('=') == std::string::npos || label[0] == '='
                   ? absl::StrCat("'", label, "' is not KEY=VALUE")
                   : std::string();
      });
  app.add_option("--standby", flags.agent.standby,
                 "workers that wait with everything loaded, for CPU slots")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  app.add_flag("--standby-gpus,!--no-standby-gpus", flags.agent.standby_gpus,
               "one more on each idle GPU, with some of its memory; default: yes");
  app.add_option("--worker", flags.agent.worker.path, "the worker program")->capture_default_str();
  app.add_flag("--kill-workers-on-exit", flags.agent.kill_workers_on_exit,
               "SIGTERM kills the workers, as SIGINT always does");
  app.add_option(
         "--leave-grace", flags.leave_grace_s,
         "seconds that SIGTERM gives to what runs here: nothing new is placed on this node, "
         "jobs write a checkpoint and go on elsewhere, and what then still runs is killed; "
         "at least 5, of which 2 are for their last words; 0: workers go on for the next agent")
      ->capture_default_str()
      ->check([](const std::string& text) {
        int seconds = -1;
        const bool good = absl::SimpleAtoi(text, &seconds) &&
                          (seconds == 0 || (seconds >= 5 && seconds <= 86400));
        return good ? std::string() : absl::StrCat("'", text, "' is not 0, or 5 to 86400 seconds");
      });
  DeclareRights(app, flags);
  app.add_flag("--print-slots", flags.print_slots, "print what would be offered, and leave");
  app.footer(
      "SIGTERM: leave; the workers go on for the next agent of this state directory, until their "
      "leases end; with --leave-grace they are given away first.\nSIGINT: kill all workers, then "
      "leave.\n"
      "Exit codes: 0 asked to leave, 64 wrong command line, 70 could not run.");
}

// Has each slot tell what it computes with. All CPU slots compute alike; the worker that is asked
// may take seconds to open a GPU.
void FillArithmetic(const std::string& worker, v1::Register& hello) {
  std::map<std::string, Arithmetic> known;
  for (v1::Slot& slot : *hello.mutable_slots()) {
    const std::string device = DeviceOf(slot);
    if (!known.contains(device)) {
      const absl::StatusOr<Arithmetic> told = AskArithmetic(worker, device, kArithmeticPatience);
      if (!told.ok()) {
        spdlog::warn("what {} computes with is unknown: {}", device,
                     std::string(told.status().message()));
      }
      known[device] = told.value_or(Arithmetic());
    }
    const Arithmetic& arithmetic = known[device];
    if (arithmetic.empty()) continue;
    slot.mutable_arithmetic()->mutable_values()->insert(arithmetic.begin(), arithmetic.end());
  }
}

// Whether the yard knows this node by a certificate: it has one, or is told to join.
absl::StatusOr<bool> GoesByCertificate(const AgentOptions& options) {
  const NodeCertificate certificate(options.state_dir);
  if (!options.join_token.has_value()) return options.token_file.empty() && certificate.exists();
  if (!options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "either --join-token or --token-file: a node that has joined shows its certificate");
  }
  if (certificate.exists()) return true;  // the file may be gone by now
  TY_ASSIGN_OR_RETURN(const std::string text, ReadFile(*options.join_token, 64 << 10));
  TY_RETURN_IF_ERROR(ParseJoinTokenFile(text, *options.join_token).status());
  return true;
}

// kFailedPrecondition: the kernel cannot enforce what keeps jobs from what is not theirs.
absl::Status SetSecurity(const Flags& flags, AgentOptions& options) {
  WorkerProgram& worker = options.worker;
  worker.confined = !flags.insecure;
  std::error_code error;
  for (std::vector<std::string>* folders : {&worker.roots.data, &worker.roots.checkpoints}) {
    for (std::string& folder : *folders) folder = std::filesystem::absolute(folder, error).string();
  }
  if (flags.insecure) {
    spdlog::warn("--insecure: the kernel keeps jobs from nothing that their user may do");
    return absl::OkStatus();
  }
  absl::Status can = CanFilterCalls();
  if (can.ok() && !worker.roots.empty()) can = CanRestrictFiles();
  if (can.ok()) return can;
  return absl::FailedPreconditionError(absl::StrCat(
      can.message(), "; --insecure runs jobs all the same, with all that their user may do"));
}

absl::StatusOr<AgentOptions> MakeOptions(const Flags& flags) {
  AgentOptions options = flags.agent;
  options.leave_grace = absl::Seconds(flags.leave_grace_s);
  std::error_code error;  // without it an empty path throws
  TY_RETURN_IF_ERROR(SetSecurity(flags, options));
  options.worker.path = std::filesystem::absolute(options.worker.path, error).string();
  options.state_dir =
      std::filesystem::absolute(options.state_dir, error).lexically_normal().string();
  TY_ASSIGN_OR_RETURN(options.servers, ParseServers(absl::StrJoin(flags.servers, ",")));
  TY_ASSIGN_OR_RETURN(options.by_certificate, GoesByCertificate(options));
  if (options.ca_file.has_value()) {
    TY_RETURN_IF_ERROR(ReadAuthorities(*options.ca_file).status());
  } else if (!options.by_certificate &&
             !std::all_of(options.servers.begin(), options.servers.end(),
                          [](const std::string& server) { return IsLoopback(server); })) {
    spdlog::warn("without --ca-file the token and everything else travel in clear text");
  }
  std::vector<Gpu> gpus;
  // Workers inherit this variable, and number the GPUs that it names as we do.
  const absl::StatusOr<std::shared_ptr<Nvml>> nvml =
      Nvml::Open("libnvidia-ml.so.1", getenv("CUDA_VISIBLE_DEVICES"));
  if (nvml.ok()) {
    options.nvml = *nvml;
    TY_ASSIGN_OR_RETURN(gpus, options.nvml->List());
  } else if (absl::IsNotFound(nvml.status())) {
    spdlog::info("no GPU is offered: {}", std::string(nvml.status().message()));
  } else {
    return nvml.status();
  }
  TY_ASSIGN_OR_RETURN(const Machine machine, ReadMachine());
  TY_ASSIGN_OR_RETURN(const std::vector<v1::Slot> slots, MakeSlots(flags.slots, machine, gpus));
  v1::Register& hello = options.hello;
  hello.set_node(flags.node);
  hello.set_incarnation(RandomHex(16));
  hello.mutable_slots()->Add(slots.begin(), slots.end());
  int port = flags.rank_port;
  if (port == 0) {
    TY_ASSIGN_OR_RETURN(port, FreeRankPorts(flags.node, static_cast<int>(slots.size())));
  }
  if (port + static_cast<int64_t>(slots.size()) > 65536) {
    return absl::InvalidArgumentError(absl::StrCat("--rank-port: the ports of ", slots.size(),
                                                   " slots from ", port, " on end after 65535"));
  }
  const auto colons = std::count(flags.address.begin(), flags.address.end(), ':');
  if (flags.address.empty() || colons == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--address: '", flags.address, "' is no host; --rank-port names the first of its ports"));
  }
  hello.set_address(WithPort(flags.address, port));
  for (const std::string& label : flags.labels) {
    const size_t at = label.find('=');
    (*hello.mutable_labels())[label.substr(0, at)] = label.substr(at + 1);
  }
  hello.set_agent_version(TRAINYARD_VERSION);
  hello.set_protocol_version(v1::PROTOCOL_VERSION_NEWEST);
  hello.set_oldest_protocol_version(v1::PROTOCOL_VERSION_OLDEST);
  return options;
}

int Main(int argc, char** argv) {
  CLI::App app("Runs the ranks that a Trainyard server places on this node.", "trainyard-agent");
  Flags flags;
  Declare(app, flags);
  app.set_version_flag("--version", TRAINYARD_VERSION);
  try {
    ParseFlags(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  SetUpLog("trainyard-agent");
  absl::StatusOr<AgentOptions> options = MakeOptions(flags);
  if (options.ok() && flags.print_slots) {
    for (const v1::Slot& slot : options->hello.slots()) {
      std::cout << slot.index() << " " << DeviceOf(slot) << " " << slot.memory_bytes() << " bytes "
                << slot.cpu_threads() << " threads " << slot.model() << "\n";
    }
    return 0;
  }
  if (options.ok() && flags.agent.state_dir.empty()) {
    std::cerr << "trainyard-agent: --state-dir is required\n";
    return kExitUsage;
  }
  // The signals are blocked before any thread starts, so that all threads inherit that and only the
  // agent's loop reads them; also before the devices are asked, which takes a while: who is asked
  // to leave meanwhile leaves in order.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  if (options.ok()) FillArithmetic(options->worker.path, options->hello);
  if (!options.ok()) {
    std::cerr << "trainyard-agent: " << options.status().message() << "\n";
    return absl::IsInvalidArgument(options.status()) ? kExitUsage : kExitFailed;
  }
  const FileDescriptor signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  Agent agent(*options, SystemClock());
  const absl::Status status = agent.Run(signal_fd.get());
  if (status.ok()) return 0;
  std::cerr << "trainyard-agent: " << status.message() << "\n";
  return kExitFailed;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) { return trainyard::Main(argc, argv); }
