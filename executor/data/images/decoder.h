#pragma once

// JPEG and PNG files, read as hostile.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "executor/data/images/pixels.h"

namespace trainyard::data {

// One format. ReadHeader, then Decode once, both of the same `file`, which must live as long.
// Thread-compatible; meant to be kept, so that its memory is.
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;

  // The size that the header declares. kInvalidArgument: what is wrong with the file, or why it is
  // refused (CheckSize; more pixels than so many bytes can hold).
  virtual absl::StatusOr<ImageSize> ReadHeader(absl::Span<const uint8_t> file) = 0;

  // Decodes into `pixels` and returns the reduction. kInvalidArgument names the fault when what is
  // asked for cannot be read whole; faults behind it are not looked for.
  virtual absl::StatusOr<int64_t> Decode(const DecodeRequest& request, Pixels& pixels) = 0;
};

// Grey, YCbCr, RGB, CMYK and YCCK, baseline and progressive, through libjpeg-turbo. Reduces in the
// inverse transform. The pixels are those of a whole decoding, to the bit.
std::unique_ptr<FormatDecoder> MakeJpegDecoder();

// Every kind that PNG has, through libpng: 16 bits become 8, alpha is dropped, a palette resolved.
// Never reduces.
std::unique_ptr<FormatDecoder> MakePngDecoder();

// kInvalidArgument: no pixel, or more than kMostSide or kMostPixels.
absl::Status CheckSize(const ImageSize& size);

// Both formats, told apart by their first bytes. The contract is FormatDecoder's.
class ImageDecoder {
 public:
  ImageDecoder() : jpeg_(MakeJpegDecoder()), png_(MakePngDecoder()) {}

  absl::StatusOr<ImageSize> ReadHeader(absl::Span<const uint8_t> file);
  absl::StatusOr<int64_t> Decode(const DecodeRequest& request, Pixels& pixels) {
    return current_->Decode(request, pixels);
  }

 private:
  std::unique_ptr<FormatDecoder> jpeg_, png_;
  FormatDecoder* current_ = nullptr;
};

}  // namespace trainyard::data
