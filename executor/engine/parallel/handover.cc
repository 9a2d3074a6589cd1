#include "executor/engine/parallel/handover.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
};

// The NUL in front makes the name an abstract one.
Address AbstractAddress(absl::string_view name) {
  Address address;
  address.value.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof address.value.sun_path - 1);
  std::memcpy(address.value.sun_path + 1, name.data(), bytes);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

union Ancillary {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * Handover::kMostFds) + CMSG_SPACE(sizeof(ucred))];
};

}  // namespace

absl::StatusOr<Handover> Handover::Open() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "a UNIX socket");
  const int on = 1;
  std::string name = absl::StrCat("trainyard-", RandomHex(16));
  const Address address = AbstractAddress(name);
  if (setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.value), address.bytes) != 0) {
    return ErrnoStatus(errno, "a UNIX socket");
  }
  return Handover(std::move(fd), std::move(name));
}

absl::Status Handover::Send(absl::string_view name, absl::string_view words,
                            absl::Span<const int> fds) const {
  TY_CHECK(words.size() <= kMostWords && !fds.empty() && fds.size() <= kMostFds, words.size());
  Address address = AbstractAddress(name);
  Ancillary ancillary{};
  iovec piece{const_cast<char*>(words.data()), words.size()};
  msghdr message{};
  message.msg_name = &address.value;
  message.msg_namelen = address.bytes;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.bytes;
  message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  if (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
    return absl::UnavailableError(absl::StrCat(name, ": its queue is full"));
  }
  return ErrnoStatus(errno, name);
}

std::optional<Parcel> Handover::Receive() const {
  for (;;) {
    char words[kMostWords];
    Ancillary ancillary{};
    iovec piece{words, sizeof words};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.bytes;
    message.msg_controllen = sizeof ancillary.bytes;
    const ssize_t n = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return std::nullopt;
    Parcel parcel{.words = std::string(words, n)};
    bool ours = false;
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET) continue;
      if (h->cmsg_type == SCM_CREDENTIALS) {
        ucred sender;
        std::memcpy(&sender, CMSG_DATA(h), sizeof sender);
        ours = sender.uid == geteuid();
      } else if (h->cmsg_type == SCM_RIGHTS) {
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= h->cmsg_len; at += sizeof(int)) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(h) + at, sizeof fd);
          parcel.fds.emplace_back(fd);
        }
      }
    }
    if (ours && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) return parcel;
  }
}

}  // namespace trainyard::engine
