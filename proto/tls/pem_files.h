#pragma once

// The PEM files that servers, agents and clients are pointed to.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tls/certificate.h"
#include "storage/base/file.h"

namespace trainyard {

// A server's certificate and key, each in a PEM file. The first also holds the certificates of
// those authorities that clients do not know, after its own.
struct TlsFiles {
  std::string certificate;
  std::string key;
};

// What the certificate says, if a server can show it at `now`: both files can be read, belong
// together, and others than the owner and the group of the key's file cannot read that. The message
// of an error names the file.
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files, absl::Time now);

// Likewise, and what is in the files.
absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// kPermissionDenied: everybody may read the file `fd` at `path`, which holds `what`.
absl::Status CheckIsSecret(int fd, const std::string& path, const std::string& what);

// A PEM file that lies in memory alone, for what wants to be told a path.
class PemInMemory {
 public:
  // Puts `pem` in the place of what was there, from one moment to the next.
  absl::Status Write(const std::string& pem);
  // By which this process can read it, once it was written.
  const std::string& path() const { return path_; }

 private:
  FileDescriptor memory_;
  std::string path_;
};

// In place of a file or its text: the authorities that this machine trusts.
inline constexpr char kSystemAuthorities[] = "system";

// The certificates of authorities in a PEM file, as PEM text, without what else it holds (a private
// key, say); "system" stays what it is. kInvalidArgument: it holds no certificate, or too many.
absl::StatusOr<std::string> ReadAuthorities(const std::string& path);

}  // namespace trainyard
