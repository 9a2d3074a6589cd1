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

  // The next message that holds `word`: COMMIT, or the name of a prepared statement.
  void LoseAnswerTo(const std::string& word);
  bool lost();

 private:
  void Accept();
  void Serve(FileDescriptor client);
  bool TakeLoss(const std::string& words);

  const std::string path_;
  const std::string server_path_;
  std::atomic<bool> stopping_ = false;
  FileDescriptor listener_;
  absl::Mutex mu_;
  std::string lose_ ABSL_GUARDED_BY(mu_);  // empty: nothing
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace trainyard::testing
