// PNG through libpng. Rows above what is asked for are inflated and dropped, rows below not read.

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "absl/strings/str_cat.h"
#include "executor/data/images/decoder.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// Deflate shrinks at most 1032 times (as inflating_reader.h).
constexpr int64_t kMostInflation = 1032;

// Of a chunk other than the image's own.
constexpr png_alloc_size_t kMostChunkBytes = 1 << 20;

class PngDecoder : public FormatDecoder {
 public:
  ~PngDecoder() override { Close(); }

  absl::StatusOr<ImageSize> ReadHeader(absl::Span<const uint8_t> file) override {
    Close();
    left_ = file;
    TY_RETURN_IF_ERROR(Open());
    TY_RETURN_IF_ERROR(Protected([&] { png_read_info(png_, info_); }));
    const ImageSize size{.height = png_get_image_height(png_, info_),
                         .width = png_get_image_width(png_, info_)};
    TY_RETURN_IF_ERROR(CheckSize(size));
    const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(png_, info_));
    if (size.height * row_bytes > static_cast<int64_t>(file.size()) * kMostInflation) {
      return absl::InvalidArgumentError(absl::StrCat("declares ", size.width, "x", size.height,
                                                     " pixels, more than ", file.size(),
                                                     " bytes can hold"));
    }
    return size;
  }

  absl::StatusOr<int64_t> Decode(const DecodeRequest& request, Pixels& pixels) override {
    TY_RETURN_IF_ERROR(Protected([&] { Transform(request.channels); }));
    const int64_t width = png_get_image_width(png_, info_);
    const int64_t row_bytes = width * request.channels;
    const auto found = static_cast<int64_t>(png_get_rowbytes(png_, info_));
    TY_CHECK(found == row_bytes, found, " bytes a row, expected ", row_bytes);
    // An interlaced file is read whole: every row is spread over all of it.
    const bool whole = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
    pixels.x = 0;
    pixels.width = width;
    pixels.y = whole ? 0 : request.box.y;
    pixels.height = whole ? png_get_image_height(png_, info_) : request.box.height;
    const auto bytes = static_cast<size_t>(row_bytes * pixels.height);
    if (pixels.bytes.size() < bytes) pixels.bytes.resize(bytes);
    if (dropped_.size() < static_cast<size_t>(row_bytes)) dropped_.resize(row_bytes);
    TY_RETURN_IF_ERROR(Protected([&] { ReadRows(row_bytes, whole ? passes_ : 1, pixels); }));
    Close();
    return 1;
  }

 private:
  static void Fail(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    snprintf(self->message_, sizeof(self->message_), "%s", message);
    longjmp(self->place_, 1);
  }

  static void Ignore(png_structp, png_const_charp) {}

  static void Supply(png_structp png, png_bytep to, size_t bytes) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (bytes > self->left_.size()) png_error(png, "the file ends too early");
    memcpy(to, self->left_.data(), bytes);
    self->left_.remove_prefix(bytes);
  }

  // Runs `f`, which must hold nothing that has a destructor: an error leaves it by longjmp.
  template <typename F>
  absl::Status Protected(const F& f) {
    if (setjmp(place_) == 0) {
      f();
      return absl::OkStatus();
    }
    Close();
    return absl::InvalidArgumentError(absl::StrCat("not a whole PNG: ", message_));
  }

  absl::Status Open() {
    return Protected([&] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, Fail, Ignore);
      info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
      if (info_ == nullptr) {
        snprintf(message_, sizeof(message_), "libpng cannot start");
        longjmp(place_, 1);
      }
      png_set_read_fn(png_, this, Supply);
      // CheckSize says more than libpng would.
      png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      png_set_chunk_malloc_max(png_, kMostChunkBytes);
      // Texts, colour profiles and whatever else is not the image.
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    });
  }

  // Asks for 8-bit RGB or luma, as Pillow's convert("RGB") and convert("L").
  void Transform(int64_t channels) {
    const png_byte type = png_get_color_type(png_, info_);
    const bool colour = (type & PNG_COLOR_MASK_COLOR) != 0;
    if (png_get_bit_depth(png_, info_) == 16) png_set_scale_16(png_);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_alpha(png_);
    if (!colour && channels == 3) png_set_gray_to_rgb(png_);
    if (colour && channels == 1) png_set_rgb_to_gray_fixed(png_, 1, 29900, 58700);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  }

  void ReadRows(int64_t row_bytes, int passes, Pixels& pixels) {
    for (int64_t row = 0; row < pixels.y; ++row) png_read_row(png_, dropped_.data(), nullptr);
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t row = 0; row < pixels.height; ++row) {
        png_read_row(png_, pixels.bytes.data() + row * row_bytes, nullptr);
      }
    }
  }

  void Close() {
    if (png_ != nullptr) png_destroy_read_struct(&png_, &info_, nullptr);
    png_ = nullptr;
    info_ = nullptr;
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  absl::Span<const uint8_t> left_;
  int passes_ = 1;
  std::vector<uint8_t> dropped_;  // a row
  jmp_buf place_{};
  char message_[128] = "";
};

}  // namespace

std::unique_ptr<FormatDecoder> MakePngDecoder() { return std::make_unique<PngDecoder>(); }

}  // namespace trainyard::data
