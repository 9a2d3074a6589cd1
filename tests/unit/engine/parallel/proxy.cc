#include "tests/unit/engine/parallel/proxy.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <list>
#include <utility>
#include <vector>

#include "executor/engine/parallel/rendezvous.h"
#include "executor/engine/parallel/sockets.h"
#include "storage/base/status.h"

namespace trainyard::engine::testing {
namespace {

// One direction of one connection.
struct Stream {
  int from = -1;
  int to = -1;
  int64_t passed = 0;
  int64_t flip_at = -1;
  int record = -1;
};

// Blocking sockets: what is handed on is taken by whoever it is for. Returns false at the end.
bool HandOn(Stream& stream) {
  char buffer[65536];
  const ssize_t n = read(stream.from, buffer, sizeof buffer);
  if (n <= 0) {
    shutdown(stream.to, SHUT_WR);
    return false;
  }
  if (stream.flip_at >= stream.passed && stream.flip_at < stream.passed + n) {
    buffer[stream.flip_at - stream.passed] ^= 0x10;
  }
  stream.passed += n;
  const absl::string_view data(buffer, n);
  if (stream.record >= 0) (void)WriteAll(stream.record, data, "record");
  return WriteAll(stream.to, data, "proxy").ok();
}

void Block(int socket) { fcntl(socket, F_SETFL, 0); }

[[noreturn]] void RunProxy(int listener, const std::string& target, int64_t flip_at, int record) {
  signal(SIGPIPE, SIG_IGN);
  std::list<Stream> streams;
  for (;;) {
    std::vector<pollfd> waits = {{listener, POLLIN, 0}};
    for (const Stream& stream : streams) waits.push_back({stream.from, POLLIN, 0});
    poll(waits.data(), waits.size(), -1);
    auto it = streams.begin();
    for (size_t i = 1; i < waits.size(); ++i) {
      const bool ends = waits[i].revents != 0 && !HandOn(*it);
      it = ends ? streams.erase(it) : std::next(it);
    }
    if (waits[0].revents == 0) continue;
    const int near = AcceptFrom(listener).Release();
    auto connection = ConnectTo(target, 0);
    if (!connection.ok()) _exit(1);
    const int far = connection->Release();
    Block(near);
    Block(far);
    streams.push_back({.from = near, .to = far, .flip_at = flip_at, .record = record});
    streams.push_back({.from = far, .to = near});
    record = -1;
  }
}

}  // namespace

Proxy::Proxy(std::string target, int64_t flip_at) {
  auto place = LocalRendezvous(1);
  TY_CHECK(place.ok(), place.status().ToString());
  address_ = (*place)[0].addresses[0];
  const FileDescriptor listener((*place)[0].listening_fd);
  int ends[2];
  TY_CHECK(pipe(ends) == 0, "pipe");
  fflush(nullptr);
  pid_ = fork();
  TY_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    close(ends[0]);
    RunProxy(listener.get(), target, flip_at, ends[1]);
  }
  close(ends[1]);
  record_.Reset(ends[0]);
}

Proxy::~Proxy() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string Proxy::Recorded(size_t bytes) {
  std::string recorded;
  while (recorded.size() < bytes) {
    pollfd wait{record_.get(), POLLIN, 0};
    char buffer[256];
    if (poll(&wait, 1, 10'000) <= 0) break;
    const ssize_t n = read(record_.get(), buffer, std::min(sizeof buffer, bytes - recorded.size()));
    if (n <= 0) break;
    recorded.append(buffer, n);
  }
  return recorded;
}

}  // namespace trainyard::engine::testing
