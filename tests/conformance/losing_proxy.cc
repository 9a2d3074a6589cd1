#include "tests/conformance/losing_proxy.h"

#include <arpa/inet.h>
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

// Notices of the protocol: type, length, fields, each with a NUL at its end. More than libpq reads
// at once: it is still reading when it tells of the write that failed, and has not seen the end of
// the stream.
std::string LastWords() {
  const std::string fields("SWARNING\0C57P02\0Mthe server crashes", 35);
  const std::string body = absl::StrCat(fields, std::string(20000, '.'), std::string(2, '\0'));
  const uint32_t length = htonl(static_cast<uint32_t>(body.size()) + 4);
  std::string notices;
  for (int i = 0; i < 8; ++i) {
    absl::StrAppend(&notices, "N", std::string(reinterpret_cast<const char*>(&length), 4), body);
  }
  return notices;
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
  acceptor_.join();  // connections_ is whole
  std::vector<std::thread> connections;
  {
    absl::MutexLock lock(&mu_);  // not while joining: those that still serve take it, too
    connections.swap(connections_);
  }
  for (std::thread& connection : connections) connection.join();
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

void LosingProxy::Lose(const std::string& word, bool hang_up) {
  absl::MutexLock lock(&mu_);
  word_ = word;
  hang_up_ = hang_up;
}

bool LosingProxy::lost() {
  absl::MutexLock lock(&mu_);
  return word_.empty();
}

bool LosingProxy::TakeLoss(const std::string& words, bool& hang_up) {
  absl::MutexLock lock(&mu_);
  if (word_.empty() || !absl::StrContains(words, word_)) return false;
  word_.clear();
  hang_up = hang_up_;
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
      bool hang_up = false;
      if (TakeLoss(words, hang_up)) {
        const std::string answer = ReadSome(server.get());  // done
        if (!hang_up) return;
        shutdown(client.get(), SHUT_RD);
        WriteAll(client.get(), answer + LastWords(), "client").IgnoreError();
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
