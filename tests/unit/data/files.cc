#include "tests/unit/data/files.h"

#include <stdlib.h>
#include <zlib.h>

#include <filesystem>

#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::data {

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "trainyard-data-XXXXXX").string();
  TY_CHECK(mkdtemp(name.data()) != nullptr, name);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::Write(const std::string& name, const std::string& content) const {
  const absl::Status status = WriteFileAtomically(path(name), content);
  TY_CHECK(status.ok(), status.ToString());
  return path(name);
}

std::string Gzip(const std::string& content) {
  z_stream z{};
  TY_CHECK(deflateInit2(&z, 9, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY) == Z_OK, "");
  std::string out(deflateBound(&z, content.size()) + 64, '\0');
  z.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(content.data()));
  z.avail_in = static_cast<uInt>(content.size());
  z.next_out = reinterpret_cast<unsigned char*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  TY_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END, "");
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

std::string Idx(uint32_t magic, const std::vector<uint32_t>& dims, const std::string& bytes) {
  std::string file;
  const auto append = [&](uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<char>(v >> shift));
  };
  append(magic);
  for (const uint32_t dim : dims) append(dim);
  return file + bytes;
}

std::string IdxImagesFile(uint32_t count, uint32_t height, uint32_t width,
                          const std::string& pixels) {
  return Idx(0x803, {count, height, width}, pixels);
}

std::string IdxLabelsFile(const std::string& labels) {
  return Idx(0x801, {static_cast<uint32_t>(labels.size())}, labels);
}

namespace {

std::string Ids(const std::vector<uint32_t>& ids, int bytes) {
  std::string file;
  for (const uint32_t id : ids) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<char>(id >> (8 * i)));
  }
  return file;
}

}  // namespace

std::string Ids16(const std::vector<uint32_t>& ids) { return Ids(ids, 2); }
std::string Ids32(const std::vector<uint32_t>& ids) { return Ids(ids, 4); }

std::string LlmcFile(const std::vector<uint32_t>& ids) {
  std::string header = Ids32({20240520, 1, static_cast<uint32_t>(ids.size())});
  header.resize(1024, '\0');
  return header + Ids16(ids);
}

}  // namespace trainyard::data
