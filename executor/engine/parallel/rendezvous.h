#pragma once

// How the ranks of a gang find each other and make their communicator.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "executor/engine/parallel/communicator.h"

namespace trainyard::engine {

// Where and with whom a rank meets the others of its gang.
struct Rendezvous {
  int rank = 0;
  // host:port, one per rank. A host is best a number: on Debian the name of a host means 127.0.1.1
  // to that host itself.
  std::vector<std::string> addresses;
  std::string secret;           // of this attempt, known to its ranks only; not empty
  std::string version;          // engine, attempt and whatever else must be the same everywhere
  std::vector<int> names = {};  // by rank: the number by which failures name it; empty: its own
  absl::Duration timeout = absl::Seconds(60);  // how long ranks wait for one another
  absl::Duration silence = absl::Seconds(10);  // after which a rank that says nothing has failed
  // How long an exchange may stand still; Communicator::SetPatience changes it only if this is
  // absent.
  std::optional<absl::Duration> progress_timeout = {};
  // The host to listen on; "" for that of this rank's own address.
  std::string interface_address = "";
  // A socket that listens already, which Meet takes over and closes; -1: Meet makes one.
  int listening_fd = -1;
  // Ranks that can share memory use it instead of TCP; false: they do not.
  bool allow_shared_memory = true;
  // How long a rank that waits for another over shared memory looks again and again before it
  // sleeps. With 20 us, two ranks on two idle cores gather 8 bytes in 0.5 us instead of 6, but in
  // 30 where others use the cores, too. 0 is used where this host has fewer cores than ranks.
  absl::Duration spin = absl::ZeroDuration();
};

// Meets the other ranks: returns once each has met all others, with a connection (and memory, where
// that is possible) between any two. Whoever cannot prove that it knows the secret is refused and
// does not disturb the others.
//
// A rank that gives up tells the others why, for which it stays up to a second.
// kDeadlineExceeded: the message names the ranks that are missing, with their addresses.
// kPermissionDenied: who listens at the address of another rank has another secret.
// kFailedPrecondition: another rank has another version, another size or another place in the gang.
// kUnavailable: the port is in use, or another rank ended during the rendezvous.
// kInvalidArgument: `rendezvous` is not meaningful.
absl::StatusOr<std::unique_ptr<Communicator>> Meet(Rendezvous rendezvous);

// Lets the survivors of a gang that met by `rendezvous` meet again, at the same addresses. Each
// calls it once its first communicator has failed. `survivors`: their numbers, in order, this
// rank's among them, by which they are also named. Ranks that name others do not meet. Failures as
// those of Meet, but after 5 s at most.
absl::StatusOr<std::unique_ptr<Communicator>> MeetSurvivors(const Rendezvous& rendezvous,
                                                            const std::vector<int>& survivors);

// What each of `ranks` processes of this machine, children of the caller, has to meet with:
// addresses of 127.0.0.1 whose ports are taken already, and a random secret. The caller gives it to
// children that it forks, each of which closes the listening_fd of the others, and then closes all
// of them. A child that executes another program has to clear close-on-exec of its own.
absl::StatusOr<std::vector<Rendezvous>> LocalRendezvous(int ranks);

}  // namespace trainyard::engine
