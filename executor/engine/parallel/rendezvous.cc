#include "executor/engine/parallel/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "executor/engine/parallel/gathering.h"
#include "executor/engine/parallel/sockets.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard::engine {

absl::StatusOr<std::unique_ptr<Communicator>> Meet(Rendezvous rendezvous) {
  return Gathering(std::move(rendezvous)).Run();
}

absl::StatusOr<std::vector<Rendezvous>> LocalRendezvous(int ranks) {
  std::vector<FileDescriptor> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) {
    TY_ASSIGN_OR_RETURN(FileDescriptor listener, ListenOn("127.0.0.1:0", ""));
    sockaddr_in bound{};
    socklen_t bytes = sizeof bound;
    if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
      return ErrnoStatus(errno, "getsockname");
    }
    addresses.push_back(absl::StrCat("127.0.0.1:", ntohs(bound.sin_port)));
    listeners.push_back(std::move(listener));
  }
  const std::string secret = RandomHex(32);
  std::vector<Rendezvous> all(ranks);
  for (int r = 0; r < ranks; ++r) {
    all[r].rank = r;
    all[r].addresses = addresses;
    all[r].secret = secret;
    all[r].listening_fd = listeners[r].Release();
  }
  return all;
}

}  // namespace trainyard::engine
