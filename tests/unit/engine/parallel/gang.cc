#include "tests/unit/engine/parallel/gang.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/status.h"

namespace trainyard::engine::testing {
namespace {

constexpr absl::Duration kBound = absl::Seconds(30);
constexpr char kResultFollows = '\x01';

[[noreturn]] void RunRank(const Rendezvous& rendezvous, const Gang::Body& body, int pipe) {
  const Gang::Say say = [pipe](const std::string& word) {
    TY_CHECK(WriteAll(pipe, absl::StrCat(word, "\n"), "pipe").ok(), word);
  };
  const std::string result = body(rendezvous, say);
  TY_CHECK(WriteAll(pipe, absl::StrCat(std::string(1, kResultFollows), result), "pipe").ok(),
           result);
  // Not _exit: sanitizers look for leaks, and change the exit code.
  std::exit(0);
}

}  // namespace

std::vector<Rendezvous> TestRendezvous(int ranks, LinkKind kind) {
  auto all = LocalRendezvous(ranks);
  TY_CHECK(all.ok(), all.status().ToString());
  for (Rendezvous& rendezvous : *all) {
    rendezvous.version = "test";
    rendezvous.timeout = absl::Seconds(20);
    rendezvous.allow_shared_memory = kind == LinkKind::kMemory;
  }
  return *all;
}

Gang::Gang(const std::vector<Rendezvous>& ranks, const Body& body) : processes_(ranks.size()) {
  fflush(nullptr);
  for (size_t r = 0; r < ranks.size(); ++r) {
    int ends[2];
    TY_CHECK(pipe(ends) == 0, "pipe");
    const pid_t pid = fork();
    TY_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      close(ends[0]);
      for (const Process& process : processes_) close(process.pipe.get());
      for (const Rendezvous& other : ranks) {
        if (other.rank != ranks[r].rank && other.listening_fd >= 0) close(other.listening_fd);
      }
      RunRank(ranks[r], body, ends[1]);
    }
    close(ends[1]);
    processes_[r].pid = pid;
    processes_[r].pipe.Reset(ends[0]);
  }
  for (const Rendezvous& rendezvous : ranks) {
    if (rendezvous.listening_fd >= 0) close(rendezvous.listening_fd);
  }
}

Gang::~Gang() {
  for (const Process& process : processes_) {
    if (process.pid == 0) continue;
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
}

void Gang::Signal(int rank, int signal) const { kill(processes_[rank].pid, signal); }

bool Gang::ReadMore(Process& process, absl::Time until) {
  pollfd wait{process.pipe.get(), POLLIN, 0};
  const int ms = static_cast<int>(absl::ToInt64Milliseconds(until - absl::Now()));
  if (ms <= 0 || poll(&wait, 1, ms) <= 0) return false;
  char buffer[4096];
  const ssize_t n = read(process.pipe.get(), buffer, sizeof buffer);
  if (n <= 0) {
    process.open = false;
    return false;
  }
  process.said.append(buffer, n);
  return true;
}

bool Gang::Hears(int rank, const std::string& word) {
  Process& process = processes_[rank];
  const absl::Time until = absl::Now() + kBound;
  const std::string line = absl::StrCat(word, "\n");
  while (process.said.find(line) == std::string::npos) {
    if (!process.open || !ReadMore(process, until)) return false;
  }
  return true;
}

std::string Gang::Result(int rank) {
  Process& process = processes_[rank];
  const absl::Time until = absl::Now() + kBound;
  while (process.open) {
    if (!ReadMore(process, until) && process.open) return "no end in sight";
  }
  if (process.pid != 0) {
    int status = 0;
    waitpid(process.pid, &status, 0);
    process.pid = 0;
    if (WIFSIGNALED(status)) process.said = absl::StrCat("\x01signal ", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
      absl::StrAppend(&process.said, " exit code ", WEXITSTATUS(status));
    }
  }
  const size_t at = process.said.find(kResultFollows);
  return at == std::string::npos ? absl::StrCat("no result: ", process.said)
                                 : process.said.substr(at + 1);
}

std::vector<std::string> Gang::Results() {
  std::vector<std::string> results;
  for (size_t r = 0; r < processes_.size(); ++r) results.push_back(Result(static_cast<int>(r)));
  return results;
}

Gang::Body Meeting(CommunicatorBody body) {
  return [body](const Rendezvous& rendezvous, const Gang::Say& say) -> std::string {
    auto communicator = Meet(rendezvous);
    if (!communicator.ok()) return absl::StrCat("Meet: ", communicator.status().ToString());
    const absl::Status status = body(**communicator, say);
    return status.ok() ? "" : status.ToString();
  };
}

std::string Content(uint64_t seed, int from, int to, size_t bytes) {
  std::string content(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(from) * 1000003 +
                   static_cast<uint64_t>(to) * 7919 + bytes;
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    content[i] = static_cast<char>(state >> 56);
  }
  return content;
}

}  // namespace trainyard::engine::testing
