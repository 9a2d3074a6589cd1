#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/base/file.h"

namespace trainyard::testing {

// Between libpq and a PostgreSQL socket. Loses the answer to a COMMIT when told to: the server
// commits, the client sees its connection break.
class LosingProxy {
 public:
  // Listens in `folder`, forwards to the socket of the server in `server_folder`.
  LosingProxy(const std::string& folder, const std::string& server_folder);
  ~LosingProxy();

  void LoseNextCommit() { lose_ = true; }
  bool lost() const { return !lose_; }

 private:
  void Accept();
  void Serve(FileDescriptor client);

  const std::string path_;
  const std::string server_path_;
  std::atomic<bool> lose_ = false;
  std::atomic<bool> stopping_ = false;
  FileDescriptor listener_;
  absl::Mutex mu_;
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;
};

}  // namespace trainyard::testing
