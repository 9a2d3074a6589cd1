// Tar archives and WebDataset's samples in them: members lie within the archive, records can be
// read. Checksums of headers are made right first, or hardly any input would get past them.

#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "executor/data/images/image_records.h"
#include "executor/data/images/tar.h"
#include "storage/base/status.h"

namespace trainyard::data {
namespace {

void MendChecksums(std::string& file) {
  for (size_t at = 0; at + 512 <= file.size(); at += 512) {
    if (file.compare(at + 257, 5, "ustar") != 0) continue;
    file.replace(at + 148, 8, "        ");
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(file[at + i]);
    file.replace(at + 148, 6, absl::StrFormat("%06o", sum));
    file[at + 154] = '\0';
  }
}

void ListMembers(const std::string& path) {
  absl::StatusOr<TarReader> tar = TarReader::Open(path);
  TY_CHECK(tar.ok(), tar.status().message());
  int64_t last = 0;
  for (;;) {
    const auto member = tar->Next();
    if (!member.ok() || !member->has_value()) return;
    TY_CHECK((*member)->offset > last && (*member)->bytes >= 0, (*member)->offset);
    last = (*member)->offset;
    TY_CHECK((*member)->offset + (*member)->bytes <= tar->file().bytes, (*member)->bytes);
    const std::string& name = (*member)->name;
    TY_CHECK(!(*member)->fault.empty() || (!name.empty() && name[0] != '/'), name);
  }
}

void ReadRecords(const std::string& path) {
  v1::WebDatasetData webdataset;
  webdataset.add_train(path);
  webdataset.set_validation_fraction(0.5);
  Warnings warnings;
  SkippedRecords skipped(/*refuse=*/false, warnings);
  const absl::StatusOr<ImageSource> source = IndexWebDataset(webdataset, skipped);
  if (!source.ok()) return;
  RegularFile file;
  std::vector<uint8_t> content;
  for (const auto& records : {std::cref(*source->train), std::cref(*source->validation)}) {
    for (int64_t i = 0; i < records.get().size(); ++i) {
      const absl::Status status = records.get().Read(i, file, content);
      TY_CHECK(status.ok(), records.get().Name(i), ": ", status.message());
      TY_CHECK(records.get().label(i) >= 0 && records.get().label(i) < source->classes, i);
    }
  }
}

}  // namespace
}  // namespace trainyard::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainyard;  // NOLINT: a program of its own
  static const int fd = memfd_create("archive.tar", MFD_CLOEXEC);
  static const std::string path = absl::StrCat("/proc/self/fd/", fd);
  std::string file(reinterpret_cast<const char*>(data), size);
  data::MendChecksums(file);
  TY_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, file.data(), size, 0) == static_cast<ssize_t>(size),
           "memfd");
  data::ListMembers(path);
  data::ReadRecords(path);
  return 0;
}
