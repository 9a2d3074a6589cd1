#include "tests/reference/image.h"

#include <limits>

namespace trainyard::reference {

using kernels::ConvolutionShape;
using kernels::PoolShape;

namespace {

// Calls f(x, w, y) with the three places of every product that a convolution sums.
template <typename F>
void EachProduct(const ConvolutionShape& s, const F& f) {
  const int64_t out_height = s.out_height(), out_width = s.out_width();
  const int64_t group_in = s.in / s.groups, group_out = s.out / s.groups;
  const int64_t window = s.kernel_height * s.kernel_width;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t oh = 0; oh < out_height; ++oh) {
      for (int64_t ow = 0; ow < out_width; ++ow) {
        const int64_t y = ((b * out_height + oh) * out_width + ow) * s.out;
        for (int64_t kh = 0; kh < s.kernel_height; ++kh) {
          for (int64_t kw = 0; kw < s.kernel_width; ++kw) {
            const int64_t h = oh * s.stride + kh - s.pad, w = ow * s.stride + kw - s.pad;
            if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
            for (int64_t o = 0; o < s.out; ++o) {
              const int64_t x =
                  ((b * s.height + h) * s.width + w) * s.in + o / group_out * group_in;
              const int64_t weight = o * group_in * window + kh * s.kernel_width + kw;
              for (int64_t i = 0; i < group_in; ++i) f(x + i, weight + i * window, y + o);
            }
          }
        }
      }
    }
  }
}

// Calls f(x, y, place) with every pixel that a window covers, window by window.
template <typename F>
void EachCovered(const PoolShape& s, const F& f) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (int64_t i = 0; i < s.window; ++i) {
          for (int64_t j = 0; j < s.window; ++j) {
            const int64_t h = oh * s.stride + i - s.pad, w = ow * s.stride + j - s.pad;
            if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
            for (int64_t c = 0; c < s.channels; ++c) {
              f(((b * s.height + h) * s.width + w) * s.channels + c,
                ((b * s.out_height() + oh) * s.out_width() + ow) * s.channels + c,
                static_cast<uint8_t>(i * s.window + j));
            }
          }
        }
      }
    }
  }
}

int64_t XSize(const ConvolutionShape& s) { return s.batch * s.height * s.width * s.in; }
int64_t WSize(const ConvolutionShape& s) {
  return s.out * s.in / s.groups * s.kernel_height * s.kernel_width;
}
int64_t YPixels(const ConvolutionShape& s) { return s.batch * s.out_height() * s.out_width(); }

}  // namespace

Vec Convolution(const Vec& x, const Vec& w, const Vec& bias, const ConvolutionShape& s) {
  Vec y(YPixels(s) * s.out, 0.0);
  for (size_t i = 0; i < y.size() && !bias.empty(); ++i) y[i] = bias[i % s.out];
  EachProduct(s, [&](int64_t xi, int64_t wi, int64_t yi) { y[yi] += x[xi] * w[wi]; });
  return y;
}

Vec ConvolutionBackwardData(const Vec& dy, const Vec& w, const ConvolutionShape& s) {
  Vec dx(XSize(s), 0.0);
  EachProduct(s, [&](int64_t xi, int64_t wi, int64_t yi) { dx[xi] += dy[yi] * w[wi]; });
  return dx;
}

ConvolutionWeightGradient ConvolutionBackwardWeights(const Vec& x, const Vec& dy,
                                                     const ConvolutionShape& s) {
  ConvolutionWeightGradient g{Vec(WSize(s), 0.0), Vec(s.out, 0.0)};
  EachProduct(s, [&](int64_t xi, int64_t wi, int64_t yi) { g.dw[wi] += dy[yi] * x[xi]; });
  for (size_t i = 0; i < dy.size(); ++i) g.dbias[i % s.out] += dy[i];
  return g;
}

MaxPoolResult MaxPool(const Vec& x, const PoolShape& s) {
  const int64_t size = s.batch * s.out_height() * s.out_width() * s.channels;
  MaxPoolResult out{Vec(size, -std::numeric_limits<double>::infinity()),
                    std::vector<uint8_t>(size)};
  EachCovered(s, [&](int64_t xi, int64_t yi, uint8_t place) {
    if (!(x[xi] > out.y[yi])) return;
    out.y[yi] = x[xi];
    out.index[yi] = place;
  });
  return out;
}

Vec MaxPoolBackward(const Vec& dy, const std::vector<uint8_t>& index, const PoolShape& s) {
  Vec dx(s.batch * s.height * s.width * s.channels, 0.0);
  EachCovered(s, [&](int64_t xi, int64_t yi, uint8_t place) {
    if (index[yi] == place) dx[xi] += dy[yi];
  });
  return dx;
}

Vec NormalizeImages(const Vec& x, const Vec& mean, const Vec& std) {
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % mean.size();
    y[i] = (x[i] / 255 - mean[c]) / std[c];
  }
  return y;
}

Vec CropImages(const Vec& x, const std::vector<int32_t>& places, int64_t height, int64_t width,
               int64_t channels) {
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t image = at / channels / width / height, c = at / channels % width;
    const int32_t* const place = &places[3 * image];
    const int64_t row = at / channels / width % height + place[0];
    const int64_t col = (place[2] != 0 ? width - 1 - c : c) + place[1];
    if (row < 0 || row >= height || col < 0 || col >= width) continue;
    y[i] = x[((image * height + row) * width + col) * channels + at % channels];
  }
  return y;
}

Vec MeanPool(const Vec& x, int64_t batch, int64_t pixels, int64_t channels) {
  Vec y(batch * channels, 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    y[i / channels / pixels * channels + i % channels] += x[i] / pixels;
  }
  return y;
}

Vec MeanPoolBackward(const Vec& dy, int64_t batch, int64_t pixels, int64_t channels) {
  Vec dx(batch * pixels * channels);
  for (size_t i = 0; i < dx.size(); ++i) {
    dx[i] = dy[i / channels / pixels * channels + i % channels] / pixels;
  }
  return dx;
}

}  // namespace trainyard::reference
