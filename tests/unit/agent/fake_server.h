#pragma once

// The server's end of the executor protocol, scripted by a test.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "trainyard/v1/executor_service.pb.h"

namespace trainyard {

// How long a test waits for what must happen; generous, since machines that run tests are busy.
inline constexpr absl::Duration kPatience = absl::Seconds(20);

// Thread-safe.
class FakeServer {
 public:
  FakeServer();
  ~FakeServer();

  int port() const { return port_; }
  std::string address() const;

  void Stop();   // cuts all streams
  void Start();  // again, on the same port

  void SetTerms(const v1::Welcome& terms);
  void AckHeartbeats(bool on);
  void AckEvents(bool on);
  void FenceEvents(bool on);
  void SendSets(bool on);  // off: a new session learns nothing of what is wanted

  // The set becomes the next version of the desired one, and is sent now and in later sessions.
  void Want(const std::vector<v1::Assignment>& assignments);
  void Free(const v1::LeftState& state);
  v1::LogChunk AskForLog(const v1::RankKey& key, int64_t offset, int64_t max_bytes);

  // Waits until `condition` (called with the lock held) is true; false when it takes too long.
  bool WaitFor(const std::function<bool()>& condition);

  // What was seen so far. For use within WaitFor's condition.
  const std::vector<v1::RankEvent>& EventsOf(const std::string& rank) { return events_[rank]; }
  const std::optional<v1::Heartbeat>& last_heartbeat() const { return last_heartbeat_; }
  const std::vector<v1::Register>& sessions() const { return sessions_; }
  const std::string& last_token() const { return last_token_; }
  const std::optional<v1::Leaving>& leaving() const { return leaving_; }
  int64_t version() const { return version_; }
  int gaps() const { return gaps_; }
  int repeats() const { return repeats_; }
  int columns() const { return columns_; }  // events that came as columns; kept as points

  // Whether the newest heartbeat was sent under the newest desired set and names just `ranks`.
  bool Runs(const std::vector<std::string>& ranks) const;

  // Stored events of the rank, once its Exited is there.
  std::optional<std::vector<v1::RankEvent>> WaitForEnd(const std::string& rank);

 private:
  class Service;
  struct Session;
  void Handle(const v1::AgentMessage& message, std::vector<v1::ServerMessage>& answers);
  void SendToAll(const v1::ServerMessage& message);

  std::unique_ptr<Service> service_;
  int port_ = 0;

  absl::Mutex mu_;
  v1::Welcome terms_;
  bool ack_heartbeats_ = true;
  bool ack_events_ = true;
  bool fence_events_ = false;
  bool send_sets_ = true;
  int64_t version_ = 0;
  std::vector<v1::Assignment> wanted_;
  std::vector<v1::Register> sessions_;
  std::string last_token_;
  std::optional<v1::Heartbeat> last_heartbeat_;
  std::optional<v1::Leaving> leaving_;
  std::map<std::string, std::vector<v1::RankEvent>> events_;
  std::map<std::string, v1::LogChunk> chunks_;
  int gaps_ = 0;
  int repeats_ = 0;
  int columns_ = 0;
  int next_request_ = 1;
};

}  // namespace trainyard
