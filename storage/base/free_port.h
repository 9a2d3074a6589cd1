#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include "storage/base/file.h"

namespace trainyard {

// Whether nothing on this machine listens now at `port` of `address`, INADDR_LOOPBACK or
// INADDR_ANY. Connections that are over do not count, as they do not for a server that starts
// there.
inline bool PortIsFree(in_addr_t address, int port) {
  const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(address);
  return bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 &&
         listen(fd.get(), 1) == 0;
}

}  // namespace trainyard
