#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/file.h"

namespace trainyard::testing {

// Between libpq and a PostgreSQL socket. Loses the answer to a message when told to: the server
// does what it was asked, the client sees its connection break.
class LosingProxy {
 public:
  // Listens in `folder`, forwards to the socket of the server in `server_folder`.
  LosingProxy(const std::string& folder, const std::string& server_folder);
  ~LosingProxy();

  // The next message that holds `word`: BEGIN, COMMIT, or the name of a prepared statement.
  void LoseAnswerTo(const std::string& word) { Lose(word, false); }
  // Its answer arrives, and a warning as of a crash; nothing more can be written.
  void HangUpAfter(const std::string& word) { Lose(word, true); }
  bool lost();

 private:
  void Accept();
  void Serve(FileDescriptor client);
  void Lose(const std::string& word, bool hang_up);
  // Whether a loss begins with this message; says of which kind.
  bool TakeLoss(const std::string& words, bool& hang_up);

  const std::string path_;
  const std::string server_path_;
  std::atomic<bool> stopping_ = false;
  FileDescriptor listener_;
  absl::Mutex mu_;
  std::string word_ ABSL_GUARDED_BY(mu_);  // empty: nothing is lost
  bool hang_up_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace trainyard::testing
