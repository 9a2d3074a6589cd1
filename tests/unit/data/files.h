#pragma once

// Files for the tests of this room, in a folder that goes away with the test.

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard::data {

class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // Writes `content` and returns the path.
  std::string Write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

std::string Gzip(const std::string& content);

// An IDX file: magic, dimensions, then the bytes.
std::string Idx(uint32_t magic, const std::vector<uint32_t>& dims, const std::string& bytes);
std::string IdxImagesFile(uint32_t count, uint32_t height, uint32_t width,
                          const std::string& pixels);
std::string IdxLabelsFile(const std::string& labels);

// Little-endian ids.
std::string Ids16(const std::vector<uint32_t>& ids);
std::string Ids32(const std::vector<uint32_t>& ids);
std::string LlmcFile(const std::vector<uint32_t>& ids);

}  // namespace trainyard::data
