#include "storage/objects/object_store.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "storage/base/status.h"
#include "storage/objects/file_store.h"

namespace trainyard {
namespace {

// "s3" of s3://bucket/key, "" of a bare path.
std::string SchemeOf(const std::string& uri) {
  const size_t at = uri.find("://");
  return at == std::string::npos ? "" : absl::AsciiStrToLower(uri.substr(0, at));
}

}  // namespace

absl::StatusOr<std::string> LocalPath(const std::string& uri) {
  const std::string scheme = SchemeOf(uri);
  if (scheme == "s3" || scheme == "http" || scheme == "https") {
    return absl::UnimplementedError(absl::StrCat(
        uri, ": scheme '", scheme, "://' is not built yet; use an absolute path or file:///"));
  }
  if (scheme != "" && scheme != "file") {
    return absl::InvalidArgumentError(
        absl::StrCat(uri, ": unknown scheme '", scheme, "://'; use an absolute path or file:///"));
  }
  const std::string path = scheme == "" ? uri : uri.substr(7);
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a path may not hold a NUL character");
  }
  if (!absl::StartsWith(path, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", uri, "': expected an absolute path (/data/file) or file:///data/file"));
  }
  return path;
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenObjectStore(const std::string& uri) {
  TY_RETURN_IF_ERROR(LocalPath(uri).status());
  return MakeFileStore();
}

}  // namespace trainyard
