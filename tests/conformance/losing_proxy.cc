#include "tests/conformance/losing_proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "storage/base/status.h"

namespace trainyard::testing {
namespace {

constexpr char kSocket[] = "/.s.PGSQL.5432";
constexpr int kPollMs = 20;  // how soon the end is noticed

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TY_CHECK(path.size() < sizeof address.sun_path, path);
  std::strcpy(address.sun_path, path.c_str());
  return address;
}

bool Readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, kPollMs) > 0;
}

// What can be read at once; empty at the end of the stream.
std::string ReadSome(int fd) {
  char buffer[65536];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  return n > 0 ? std::string(buffer, n) : "";
}

}  // namespace

LosingProxy::LosingProxy(const std::string& folder, const std::string& server_folder)
    : path_(folder + kSocket),
      server_path_(server_folder + kSocket),
      listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(path_);
  TY_CHECK(
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
          listen(listener_.get(), 16) == 0,
      path_, ": ", std::strerror(errno));
  acceptor_ = std::thread([this] { Accept(); });
}

LosingProxy::~LosingProxy() {
  stopping_ = true;
  acceptor_.join();
  absl::MutexLock lock(&mu_);
  for (std::thread& connection : connections_) connection.join();
  unlink(path_.c_str());
}

void LosingProxy::Accept() {
  while (!stopping_) {
    if (!Readable(listener_.get())) continue;
    FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client.valid()) continue;
    absl::MutexLock lock(&mu_);
    connections_.emplace_back(
        [this, accepted = std::move(client)]() mutable { Serve(std::move(accepted)); });
  }
}

void LosingProxy::LoseAnswerTo(const std::string& word) {
  absl::MutexLock lock(&mu_);
  lose_ = word;
}

bool LosingProxy::lost() {
  absl::MutexLock lock(&mu_);
  return lose_.empty();
}

bool LosingProxy::TakeLoss(const std::string& words) {
  absl::MutexLock lock(&mu_);
  if (lose_.empty() || !absl::StrContains(words, lose_)) return false;
  lose_.clear();
  return true;
}

void LosingProxy::Serve(FileDescriptor client) {
  const FileDescriptor server(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(server_path_);
  if (connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return;
  pollfd ends[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
  while (!stopping_) {
    if (poll(ends, 2, kPollMs) <= 0) continue;
    if (ends[0].revents != 0) {
      const std::string words = ReadSome(client.get());
      if (words.empty() || !WriteAll(server.get(), words, "server").ok()) return;
      if (TakeLoss(words)) {
        ReadSome(server.get());  // done
        return;
      }
    }
    if (ends[1].revents != 0) {
      const std::string words = ReadSome(server.get());
      if (words.empty() || !WriteAll(client.get(), words, "client").ok()) return;
    }
  }
}

}  // namespace trainyard::testing
