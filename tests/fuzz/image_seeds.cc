// Writes the seeds of the targets jpeg, png and tar: FOLDER/jpeg/…, FOLDER/png/…, FOLDER/tar/….

#include <iostream>

#include "storage/base/file.h"
#include "storage/base/status.h"
#include "tests/unit/data/images/encoders.h"
#include "tests/unit/data/images/pillow_files.h"

namespace trainyard::data {
namespace {

std::string root;

// The choices of decode_any.h in front: the whole of it in colour, and a part.
void Write(const std::string& target, const std::string& name, const Bytes& file) {
  for (const char* choices : {"\xc0\x3f", "\x09\x6d"}) {
    const std::string path =
        absl::StrCat(root, "/", target, "/", name, choices[0] < 0 ? "" : "-part");
    const absl::Status status = WriteFileAtomically(path, std::string(choices, 2) + AsString(file));
    TY_CHECK(status.ok(), status.message());
  }
}

void WriteJpegs() {
  const ImageSize size = {.height = 17, .width = 24};
  const Bytes picture = Picture(size, 3), grey = Picture(size, 1), inks = Picture(size, 4);
  Write("jpeg", "420", JpegFile(size, 3, picture));
  Write("jpeg", "422", JpegFile(size, 3, picture, {.v_sampling = 1}));
  Write("jpeg", "444", JpegFile(size, 3, picture, {.h_sampling = 1, .v_sampling = 1}));
  Write("jpeg", "progressive", JpegFile(size, 3, picture, {.progressive = true}));
  Write("jpeg", "restarts", JpegFile(size, 3, picture, {.restarts = true}));
  Write("jpeg", "grey", JpegFile(size, 1, grey));
  Write("jpeg", "scans", JpegFile(size, 1, grey, {.scans = 127}));
  Write("jpeg", "inks", JpegFile(size, 4, inks, {.inks = true}));
  Write("jpeg", "pillow", kPillowJpeg);
  Write("jpeg", "pillow-inks", kPillowInks);
}

void WritePngs() {
  const ImageSize size = {.height = 9, .width = 16};
  for (const bool interlaced : {false, true}) {
    for (const int depth : {1, 4, 8, 16}) {
      for (const int type : {0, 2, 3, 4, 6}) {
        if ((type != 0 && type != 3 && depth < 8) || (type == 3 && depth == 16)) continue;
        const int values = type == 2 ? 3 : type == 4 ? 2 : type == 6 ? 4 : 1;
        Write("png", absl::StrCat(type, "-", depth, interlaced ? "-interlaced" : ""),
              PngFile(size, Bytes(static_cast<size_t>(9 * 16 * values * depth / 8), 5),
                      {.colour_type = type, .depth = depth, .interlaced = interlaced}));
      }
    }
  }
}

void WriteTar(const std::string& name, const std::string& file) {
  const absl::Status status = WriteFileAtomically(absl::StrCat(root, "/tar/", name), file);
  TY_CHECK(status.ok(), status.message());
}

void WriteTars() {
  const TarEntry image = {.name = "0.jpg", .content = "x"},
                 label = {.name = "0.cls", .content = "1"};
  const std::string gnu = std::string("ustar  ") + '\0';
  WriteTar("sample", TarBlocks(image) + TarBlocks(label));
  WriteTar("end", TarFile({image, label, {.name = "1.png", .content = "y"}}));
  WriteTar("pax", TarBlocks({.name = "p",
                             .content = PaxRecord("path", "2.jpg") + PaxRecord("size", "1"),
                             .type = 'x'}) +
                      TarBlocks(image) + TarBlocks(label));
  WriteTar("global", TarBlocks({.name = "p", .content = PaxRecord("comment", "c"), .type = 'g'}) +
                         TarBlocks(image) + TarBlocks(label));
  WriteTar("gnu", TarBlocks({.name = "L", .content = "3.jpg", .type = 'L', .magic = gnu}) +
                      TarBlocks(image) + TarBlocks(label));
  WriteTar("links", TarBlocks({.name = "d/", .type = '5'}) +
                        TarBlocks({.name = "../4.jpg", .type = '2'}) +
                        TarBlocks({.name = "4.cls", .content = "1", .prefix = "dir"}));
  WriteTar("sparse",
           TarBlocks({.name = "p", .content = PaxRecord("GNU.sparse.map", "0,1"), .type = 'x'}) +
               TarBlocks(image));
}

}  // namespace
}  // namespace trainyard::data

int main(int argc, char** argv) {
  using namespace trainyard;  // NOLINT: a program of its own
  if (argc != 2) {
    std::cerr << "usage: image_seeds FOLDER\n";
    return 2;
  }
  data::root = argv[1];
  for (const char* target : {"jpeg", "png", "tar"}) {
    const absl::Status status = MakeDirectories(absl::StrCat(data::root, "/", target));
    TY_CHECK(status.ok(), status.message());
  }
  data::WriteJpegs();
  data::WritePngs();
  data::WriteTars();
  return 0;
}
