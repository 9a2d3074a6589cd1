#include "tests/reference/llama.h"

#include <cmath>

namespace trainyard::reference {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

Vec Rotary(const Vec& x, const RotaryShape& s, bool inverse) {
  Vec y = x;
  for (int64_t row = 0; row < s.batch * s.time; ++row) {
    for (int64_t h = 0; h < s.rotated; ++h) {
      for (int64_t i = 0; i < s.head_dim / 2; ++i) {
        const double turn = std::pow(s.theta, -2.0 * i / s.head_dim);
        const double angle = (inverse ? -1 : 1) * static_cast<double>(row % s.time) * turn;
        const int64_t low = (row * s.heads + h) * s.head_dim + i, high = low + s.head_dim / 2;
        y[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
        y[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      }
    }
  }
  return y;
}

Vec SwiGlu(const Vec& x, int64_t rows, int64_t cols) {
  Vec y(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t gate = i / cols * 2 * cols + i % cols;
    y[i] = x[gate] * Sigmoid(x[gate]) * x[gate + cols];
  }
  return y;
}

Vec SwiGluBackward(const Vec& x, const Vec& dy, int64_t rows, int64_t cols) {
  Vec dx(2 * rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t gate = i / cols * 2 * cols + i % cols;
    const double s = Sigmoid(x[gate]);
    dx[gate] = dy[i] * x[gate + cols] * (s + x[gate] * s * (1 - s));
    dx[gate + cols] = dy[i] * x[gate] * s;
  }
  return dx;
}

}  // namespace trainyard::reference
