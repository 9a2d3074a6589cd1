// JPEG through libjpeg-turbo's libjpeg interface, which TurboJPEG's lacks in this version: only the
// rows and columns that are asked for are transformed, and what lies below them is not read at all.

#include <setjmp.h>
#include <stdio.h>
// After stdio.h, which it needs.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "executor/data/images/decoder.h"
#include "storage/base/status.h"

namespace trainyard::data {

namespace {

// Each scan of a progressive file costs a pass over the whole image; encoders write about ten.
constexpr int kMostScans = 100;

// No coefficient block of 64 pixels takes less than a bit. Twice that much is believed.
constexpr int64_t kMostPixelsPerByte = 1024;

// libjpeg's errors: it calls Fail, which jumps back to whoever called it.
struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands back its address
  jmp_buf place;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void Fail(j_common_ptr c) {
  auto* errors = reinterpret_cast<JpegErrors*>(c->err);
  c->err->format_message(c, errors->message);
  longjmp(errors->place, 1);
}

// Warnings after which libjpeg makes pixels up are errors here.
void OnMessage(j_common_ptr c, int level) {
  if (level >= 0) return;
  switch (c->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:
      return;
    default:
      Fail(c);
  }
}

void OnProgress(j_common_ptr c) {
  if (reinterpret_cast<j_decompress_ptr>(c)->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(c->err);
  snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMostScans);
  longjmp(errors->place, 1);
}

// (255 - c) * (255 - k) / 255 and so on, as Pillow; Adobe writes inks inverted.
void InksToRgb(const uint8_t* cmyk, bool inverted, int64_t n, uint8_t* rgb) {
  const int flip = inverted ? 0 : 255;
  for (int64_t i = 0; i < n; ++i) {
    const int paper = cmyk[4 * i + 3] ^ flip;
    for (int c = 0; c < 3; ++c) {
      rgb[3 * i + c] = static_cast<uint8_t>(((cmyk[4 * i + c] ^ flip) * paper + 127) / 255);
    }
  }
}

void RgbToLuma(const uint8_t* rgb, int64_t n, uint8_t* luma) {
  for (int64_t i = 0; i < n; ++i) {
    luma[i] = static_cast<uint8_t>(
        (299 * rgb[3 * i] + 587 * rgb[3 * i + 1] + 114 * rgb[3 * i + 2] + 500) / 1000);
  }
}

class JpegDecoder : public FormatDecoder {
 public:
  JpegDecoder() {
    c_.err = jpeg_std_error(&landing_.base);
    landing_.base.error_exit = Fail;
    landing_.base.emit_message = OnMessage;
    progress_.progress_monitor = OnProgress;
    TY_CHECK(Protected([&] { jpeg_create_decompress(&c_); }).ok(), landing_.message);
    c_.progress = &progress_;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&c_); }

  absl::StatusOr<ImageSize> ReadHeader(absl::Span<const uint8_t> file) override {
    jpeg_abort_decompress(&c_);
    TY_RETURN_IF_ERROR(Protected([&] {
      jpeg_mem_src(&c_, file.data(), file.size());
      jpeg_read_header(&c_, TRUE);
    }));
    const ImageSize size{.height = c_.image_height, .width = c_.image_width};
    TY_RETURN_IF_ERROR(CheckSize(size));
    const auto most = static_cast<int64_t>(file.size()) * kMostPixelsPerByte;
    if (size.height * size.width > most && !c_.arith_code) {
      return absl::InvalidArgumentError(absl::StrCat("declares ", size.width, "x", size.height,
                                                     " pixels, more than ", file.size(),
                                                     " bytes can hold"));
    }
    switch (c_.jpeg_color_space) {
      case JCS_GRAYSCALE:
      case JCS_RGB:
      case JCS_YCbCr:
      case JCS_CMYK:
      case JCS_YCCK:
        return size;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("found ", c_.num_components,
                         " components of an unknown colour space, expected grey, "
                         "RGB, YCbCr, CMYK or YCCK"));
    }
  }

  absl::StatusOr<int64_t> Decode(const DecodeRequest& request, Pixels& pixels) override {
    const bool inks = c_.jpeg_color_space == JCS_CMYK || c_.jpeg_color_space == JCS_YCCK;
    c_.out_color_space = inks ? JCS_CMYK : request.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    c_.dct_method = JDCT_ISLOW;
    c_.scale_num = 1;
    c_.scale_denom = static_cast<unsigned>(request.reduction);
    TY_RETURN_IF_ERROR(Protected([&] { jpeg_start_decompress(&c_); }));
    SetArea(request, pixels);
    JDIMENSION x = static_cast<JDIMENSION>(pixels.x);
    JDIMENSION width = static_cast<JDIMENSION>(pixels.width);
    TY_RETURN_IF_ERROR(Protected([&] {
      if (width < c_.output_width) jpeg_crop_scanline(&c_, &x, &width);
      if (pixels.y > 0) jpeg_skip_scanlines(&c_, static_cast<JDIMENSION>(pixels.y));
    }));
    pixels.x = x;
    pixels.width = width;
    const auto bytes = static_cast<size_t>(pixels.width * pixels.height * request.channels);
    if (pixels.bytes.size() < bytes) pixels.bytes.resize(bytes);
    if (inks) {
      TY_RETURN_IF_ERROR(ReadInks(request.channels, pixels));
    } else {
      TY_RETURN_IF_ERROR(Protected([&] { ReadRows(request.channels, pixels); }));
    }
    jpeg_abort_decompress(&c_);
    return request.reduction;
  }

 private:
  // Runs `f`, which must hold nothing that has a destructor: an error leaves it by longjmp.
  template <typename F>
  absl::Status Protected(const F& f) {
    if (setjmp(landing_.place) == 0) {
      f();
      return absl::OkStatus();
    }
    jpeg_abort_decompress(&c_);
    return absl::InvalidArgumentError(absl::StrCat("not a whole JPEG: ", landing_.message));
  }

  // The box, reduced, and a column more on each side: chroma is interpolated between neighbours,
  // and a decoding that is cut takes none from beyond the cut.
  void SetArea(const DecodeRequest& request, Pixels& pixels) const {
    const PixelBox& box = request.box;
    const int64_t r = request.reduction;
    pixels.x = std::max<int64_t>(0, box.x / r - 1);
    pixels.y = box.y / r;
    const int64_t right = (box.x + box.width + r - 1) / r + 1;
    const int64_t bottom = (box.y + box.height + r - 1) / r;
    pixels.width = std::min<int64_t>(c_.output_width, right) - pixels.x;
    pixels.height = std::min<int64_t>(c_.output_height, bottom) - pixels.y;
  }

  void ReadRows(int64_t channels, Pixels& pixels) {
    for (int64_t row = 0; row < pixels.height; ++row) {
      JSAMPROW to = pixels.bytes.data() + row * pixels.width * channels;
      jpeg_read_scanlines(&c_, &to, 1);
    }
  }

  absl::Status ReadInks(int64_t channels, Pixels& pixels) {
    inks_.resize(static_cast<size_t>(4 * pixels.width));
    rgb_.resize(static_cast<size_t>(3 * pixels.width));
    for (int64_t row = 0; row < pixels.height; ++row) {
      TY_RETURN_IF_ERROR(Protected([&] {
        JSAMPROW to = inks_.data();
        jpeg_read_scanlines(&c_, &to, 1);
      }));
      uint8_t* to = pixels.bytes.data() + row * pixels.width * channels;
      InksToRgb(inks_.data(), c_.saw_Adobe_marker, pixels.width, channels == 3 ? to : rgb_.data());
      if (channels == 1) RgbToLuma(rgb_.data(), pixels.width, to);
    }
    return absl::OkStatus();
  }

  jpeg_decompress_struct c_{};
  jpeg_progress_mgr progress_{};
  JpegErrors landing_{};
  std::vector<uint8_t> inks_, rgb_;  // a row
};

}  // namespace

std::unique_ptr<FormatDecoder> MakeJpegDecoder() { return std::make_unique<JpegDecoder>(); }

}  // namespace trainyard::data
