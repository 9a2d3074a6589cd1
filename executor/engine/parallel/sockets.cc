#include "executor/engine/parallel/sockets.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(absl::string_view address, absl::string_view other_host,
                                  bool to_listen) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not the address of a rank; it reads host:port"));
  }
  absl::string_view host = other_host.empty() ? address.substr(0, colon) : other_host;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string port(address.substr(colon + 1));
  const int error = getaddrinfo(std::string(host).c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the address \"", address, "\" is not known: ", gai_strerror(error)));
  }
  return Addresses(found);
}

void SetOption(int socket, int level, int name) {
  const int on = 1;
  setsockopt(socket, level, name, &on, sizeof on);
}

}  // namespace

absl::StatusOr<FileDescriptor> ListenOn(absl::string_view address,
                                        absl::string_view interface_host) {
  TY_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address, interface_host, true));
  FileDescriptor listener(
      socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return ErrnoStatus(errno, "a socket to listen on");
  SetOption(listener.get(), SOL_SOCKET, SO_REUSEADDR);
  if (bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    const std::string where = interface_host.empty()
                                  ? std::string(address)
                                  : absl::StrCat(address, " on interface ", interface_host);
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", where, ": ",
                     errno == EADDRINUSE ? "the port is in use" : strerror(errno)));
  }
  return listener;
}

absl::StatusOr<FileDescriptor> ConnectTo(absl::string_view address, int attempt) {
  TY_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address, "", false));
  const addrinfo* chosen = addresses.get();
  for (int i = 0; i < attempt; ++i) {
    chosen = chosen->ai_next == nullptr ? addresses.get() : chosen->ai_next;
  }
  FileDescriptor connection(
      socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.valid()) return ErrnoStatus(errno, "a socket to connect with");
  SetOption(connection.get(), IPPROTO_TCP, TCP_NODELAY);
  if (connect(connection.get(), chosen->ai_addr, chosen->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(absl::StrCat(address, ": ", strerror(errno)));
  }
  return connection;
}

FileDescriptor AcceptFrom(int listener) {
  FileDescriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid()) SetOption(connection.get(), IPPROTO_TCP, TCP_NODELAY);
  return connection;
}

int ConnectError(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

absl::StatusOr<FileDescriptor> MakeDoorbell() {
  FileDescriptor doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell.valid()) return ErrnoStatus(errno, "an eventfd");
  return doorbell;
}

void RingDoorbell(int doorbell) {
  const uint64_t once = 1;
  // Fails only when it has been rung 2^64 - 2 times since it was heard, or is none.
  [[maybe_unused]] const ssize_t written = write(doorbell, &once, sizeof once);
}

void SilenceDoorbell(int doorbell) {
  uint64_t times = 0;
  [[maybe_unused]] const ssize_t was_read = read(doorbell, &times, sizeof times);
}

}  // namespace trainyard::engine
