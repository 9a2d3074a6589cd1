#include "executor/engine/parallel/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "executor/engine/parallel/gathering.h"
#include "executor/engine/parallel/sockets.h"
#include "storage/base/ids.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

// They wait already, each for the others.
constexpr absl::Duration kPatienceWithSurvivors = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Meet(Rendezvous rendezvous) {
  return Gathering(std::move(rendezvous)).Run();
}

absl::StatusOr<std::unique_ptr<Communicator>> MeetSurvivors(const Rendezvous& rendezvous,
                                                            const std::vector<int>& survivors) {
  const std::string list = absl::StrJoin(survivors, ",");
  const auto mine = std::find(survivors.begin(), survivors.end(), rendezvous.rank);
  Rendezvous anew = rendezvous;
  anew.rank = static_cast<int>(mine - survivors.begin());
  anew.names = survivors;
  anew.addresses.clear();
  for (const int rank : survivors) anew.addresses.push_back(rendezvous.addresses.at(rank));
  // In the version, so that ranks that were told of others learn that, both of them at once.
  anew.version = absl::StrCat("ranks ", list, " are left of ", rendezvous.version);
  absl::StrAppend(&anew.secret, " after a loss");
  anew.timeout = std::min(rendezvous.timeout, kPatienceWithSurvivors);
  anew.progress_timeout.reset();
  anew.listening_fd = -1;
  return Meet(std::move(anew));
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
