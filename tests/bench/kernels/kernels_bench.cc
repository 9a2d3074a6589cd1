// Times the CPU kernels op by op, best of many launches, because the machine may be shared.
//
//   kernels_bench [--threads N] [--only SUBSTRING] [--seconds S]
//
// `char_gpt` is one whole optimizer step of nanoGPT's character model (4 layers, 4 heads, width
// 128, context 64, batch 12), its kernels in the order in which a plan launches them.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/step_state.h"

namespace trainyard::kernels {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Step {
  std::string label;
  Kernel kernel;
  double flops = 0;
  double best = 1e9;
};

// Memory and kernels of one case.
class Program {
 public:
  explicit Program(int threads) : device_(*OpenCpu(threads)), stream_(device_->MakeStream()) {}

  Buffer Floats(int64_t n, float scale = 1) {
    float* data = static_cast<float*>(*device_->Allocate(n * sizeof(float)));
    uint32_t bits = 12345;
    for (int64_t i = 0; i < n; ++i) {
      bits = bits * 1664525u + 1013904223u;
      data[i] = scale * (static_cast<float>(bits >> 8) / 8388608.0f - 1.0f);
    }
    return {data, DType::kF32};
  }
  Buffer Zeros(int64_t n) { return Floats(n, 0); }
  Buffer Bytes(int64_t n) { return {*device_->Allocate(n), DType::kU8}; }
  Buffer Double() { return {*device_->Allocate(8), DType::kF64}; }
  Buffer Ids(int64_t n, int32_t below) {
    int32_t* data = static_cast<int32_t*>(*device_->Allocate(n * sizeof(int32_t)));
    for (int64_t i = 0; i < n; ++i) data[i] = static_cast<int32_t>(i * 7919 % below);
    return {data, DType::kI32};
  }

  template <typename Op>
  void Add(const std::string& label, const Op& op, double flops = 0) {
    absl::StatusOr<Kernel> kernel = device_->Prepare(op);
    if (!kernel.ok()) {
      std::fprintf(stderr, "%s: %s\n", label.c_str(), kernel.status().ToString().c_str());
      std::exit(1);
    }
    steps_.push_back({label, *std::move(kernel), flops});
  }

  void Multiply(const std::string& label, Buffer a, Buffer b, Buffer c, int64_t m, int64_t n,
                int64_t k, bool ta = false, bool tb = false, bool accumulate = false) {
    Add(label + " " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k),
        Matmul{.a = a,
               .b = b,
               .c = c,
               .m = m,
               .n = n,
               .k = k,
               .transpose_a = ta,
               .transpose_b = tb,
               .accumulate = accumulate},
        2.0 * m * n * k);
  }

  struct Times {
    double best, median;
  };

  // Launches everything until `seconds` have passed: the times of whole runs.
  Times Run(double seconds) {
    size_t bytes = 64;
    for (const Step& s : steps_) bytes = std::max(bytes, s.kernel.scratch_bytes);
    stream_->scratch = *device_->Allocate(bytes);
    stream_->scratch_bytes = bytes;
    std::vector<double> totals;
    const double end = Now() + seconds;
    for (int i = 0; i < 3 || Now() < end; ++i) {
      double total = 0;
      for (Step& s : steps_) {
        const double before = Now();
        s.kernel.launch(*stream_);
        const double took = Now() - before;
        s.best = std::min(s.best, took);
        total += took;
      }
      totals.push_back(total);
    }
    std::sort(totals.begin(), totals.end());
    return {totals.front(), totals[totals.size() / 2]};
  }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Step> steps_;
};

// Equal labels together: how often, time of all, rate.
void Print(const Program& program, const Program::Times& times) {
  struct Line {
    int count = 0;
    double time = 0, flops = 0;
  };
  std::map<std::string, Line> lines;
  std::vector<std::string> order;
  for (const Step& s : program.steps()) {
    Line& line = lines[s.label];
    if (line.count++ == 0) order.push_back(s.label);
    line.time += s.best;
    line.flops += s.flops;
  }
  double sum = 0;
  for (const std::string& label : order) {
    const Line& line = lines[label];
    std::printf("  %-40s x%-3d %9.1f us", label.c_str(), line.count, line.time * 1e6);
    if (line.flops > 0) std::printf(" %8.1f GFLOP/s", line.flops / line.time / 1e9);
    std::printf("\n");
    sum += line.time;
  }
  std::printf("  %-40s      %9.1f us best, %.1f median, %.1f sum of bests\n", "all",
              times.best * 1e6, times.median * 1e6, sum * 1e6);
}

struct GptShape {
  int64_t batch, time, width, heads, layers, vocab;
};

// The kernels of one step of a GPT, in the order of a plan.
class Gpt {
 public:
  Gpt(Program& program, const GptShape& shape)
      : p_(program),
        g_(shape),
        rows_(shape.batch * shape.time),
        c_(shape.width),
        params_((shape.vocab + shape.time + 1) * c_ + shape.layers * (12 * c_ + 2) * c_),
        w_all_(program.Floats(params_, 0.02f)),
        g_all_(program.Zeros(params_)),
        ids_(program.Ids(rows_, static_cast<int32_t>(shape.vocab))),
        wte_(NewParam(shape.vocab * c_)),
        wpe_(NewParam(shape.time * c_)),
        x0_(program.Floats(rows_ * c_)) {}

  void Forward() {
    p_.Add("embedding",
           EmbeddingForward{ids_, wte_.w, wpe_.w, x0_, g_.batch, g_.time, c_, g_.vocab});
    for (int64_t i = 0; i < g_.layers; ++i) {
      layers_.push_back(NewLayer());
      ForwardOf(layers_.back(), InputOf(i));
    }
    last_ = NewNorm();
    Normalize(InputOf(g_.layers), last_);
    p_.Multiply("matmul tb", last_.y, wte_.w, logits_, rows_, g_.vocab, c_, false, true);
    const Buffer losses = p_.Floats(rows_);
    p_.Add("cross_entropy", CrossEntropy{.logits = logits_,
                                         .targets = p_.Ids(rows_, static_cast<int32_t>(g_.vocab)),
                                         .losses = losses,
                                         .dlogits = logits_,
                                         .rows = rows_,
                                         .classes = g_.vocab,
                                         .scale = 1.0f / static_cast<float>(rows_)});
    p_.Add("sum", Sum{losses, p_.Double(), rows_, false});
  }

  void Backward() {
    p_.Multiply("matmul dW", logits_, last_.y, wte_.g, g_.vocab, c_, rows_, true, false);
    p_.Multiply("matmul dx", logits_, wte_.w, dn_, rows_, c_, g_.vocab, false, false);
    NormalizeBackward(InputOf(g_.layers), last_, false);
    for (int64_t i = g_.layers - 1; i >= 0; --i) BackwardOf(layers_[i], InputOf(i));
    p_.Add("embedding backward",
           EmbeddingBackward{dx_, ids_, wte_.g, wpe_.g, g_.batch, g_.time, c_, g_.vocab});
  }

  void Optimizer() {
    static StepState state{.learning_rate = 1e-6f};
    const Buffer squares = p_.Double(), norm = p_.Floats(1), clip = p_.Floats(1);
    p_.Add("squared_norm", SquaredNorm{g_all_, squares, params_, false});
    p_.Add("clip_scale", ClipScale{.sum = squares, .norm = norm, .scale = clip, .max_norm = 1.0f});
    p_.Add("adamw", AdamWStep{.w = w_all_,
                              .grad = g_all_,
                              .m = p_.Zeros(params_),
                              .v = p_.Zeros(params_),
                              .grad_scale = clip,
                              .state = {&state},
                              .n = params_});
  }

 private:
  struct Param {
    Buffer w, g;
  };
  struct Norm {
    Param gamma;
    Buffer y, mean, rstd;
  };
  struct Layer {
    Norm ln1, ln2;
    Param qkv_w, proj_w, fc_w, out_w;
    Buffer qkv, lse, y, a, x1, h, act, o, x2;
  };

  Param NewParam(int64_t n) {
    const Param q{{w_all_.As<float>() + used_}, {g_all_.As<float>() + used_}};
    used_ += n;
    return q;
  }
  Norm NewNorm() {
    return {NewParam(c_), p_.Floats(rows_ * c_), p_.Floats(rows_), p_.Floats(rows_)};
  }
  Layer NewLayer() {
    const int64_t n = rows_ * c_;
    return {NewNorm(),
            NewNorm(),
            NewParam(3 * c_ * c_),
            NewParam(c_ * c_),
            NewParam(4 * c_ * c_),
            NewParam(4 * c_ * c_),
            p_.Floats(3 * n),
            p_.Floats(rows_ * g_.heads),
            p_.Floats(n),
            p_.Floats(n),
            p_.Floats(n),
            p_.Floats(4 * n),
            p_.Floats(4 * n),
            p_.Floats(n),
            p_.Floats(n)};
  }
  Buffer InputOf(int64_t layer) const { return layer == 0 ? x0_ : layers_[layer - 1].x2; }

  void Normalize(Buffer x, const Norm& n) {
    p_.Add("layer_norm", LayerNormForward{.x = x,
                                          .gamma = n.gamma.w,
                                          .y = n.y,
                                          .mean = n.mean,
                                          .rstd = n.rstd,
                                          .rows = rows_,
                                          .cols = c_});
  }
  void NormalizeBackward(Buffer x, const Norm& n, bool accumulate) {
    p_.Add(
        "layer_norm backward",
        LayerNormBackward{
            dn_, x, n.gamma.w, n.mean, n.rstd, dx_, n.gamma.g, {}, rows_, c_, accumulate, false});
  }

  void ForwardOf(const Layer& l, Buffer x) {
    Normalize(x, l.ln1);
    p_.Multiply("matmul", l.ln1.y, l.qkv_w.w, l.qkv, rows_, 3 * c_, c_);
    p_.Add("attention", AttentionForward{l.qkv, l.y, l.lse, g_.batch, g_.time, g_.heads, g_.heads,
                                         Dim(), Scale(), true});
    p_.Multiply("matmul", l.y, l.proj_w.w, l.a, rows_, c_, c_);
    p_.Add("add", Add{x, l.a, l.x1, rows_ * c_});
    Normalize(l.x1, l.ln2);
    p_.Multiply("matmul", l.ln2.y, l.fc_w.w, l.h, rows_, 4 * c_, c_);
    p_.Add("gelu", ActivationForward{ActivationKind::kGelu, l.h, l.act, 4 * rows_ * c_});
    p_.Multiply("matmul", l.act, l.out_w.w, l.o, rows_, c_, 4 * c_);
    p_.Add("add", Add{l.x1, l.o, l.x2, rows_ * c_});
  }

  void BackwardOf(const Layer& l, Buffer x) {
    p_.Multiply("matmul dW", l.act, dx_, l.out_w.g, 4 * c_, c_, rows_, true, false);
    p_.Multiply("matmul dx", dx_, l.out_w.w, dh_, rows_, 4 * c_, c_, false, true);
    p_.Add("gelu backward",
           ActivationBackward{ActivationKind::kGelu, l.h, dh_, dh_, 4 * rows_ * c_});
    p_.Multiply("matmul dW", l.ln2.y, dh_, l.fc_w.g, c_, 4 * c_, rows_, true, false);
    p_.Multiply("matmul dx", dh_, l.fc_w.w, dn_, rows_, c_, 4 * c_, false, true);
    NormalizeBackward(l.x1, l.ln2, true);
    p_.Multiply("matmul dW", l.y, dx_, l.proj_w.g, c_, c_, rows_, true, false);
    p_.Multiply("matmul dx", dx_, l.proj_w.w, dy_, rows_, c_, c_, false, true);
    p_.Add("attention backward", AttentionBackward{dy_, l.qkv, l.y, l.lse, dqkv_, g_.batch, g_.time,
                                                   g_.heads, g_.heads, Dim(), Scale(), true});
    p_.Multiply("matmul dW", l.ln1.y, dqkv_, l.qkv_w.g, c_, 3 * c_, rows_, true, false);
    p_.Multiply("matmul dx", dqkv_, l.qkv_w.w, dn_, rows_, c_, 3 * c_, false, true);
    NormalizeBackward(x, l.ln1, true);
  }

  int64_t Dim() const { return c_ / g_.heads; }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(Dim())); }

  Program& p_;
  const GptShape g_;
  const int64_t rows_, c_, params_;
  const Buffer w_all_, g_all_, ids_;
  int64_t used_ = 0;
  const Param wte_, wpe_;
  const Buffer x0_;
  std::vector<Layer> layers_;
  Norm last_;
  const Buffer logits_ = p_.Floats(rows_ * g_.vocab), dn_ = p_.Floats(rows_ * c_),
               dx_ = p_.Floats(rows_ * c_), dh_ = p_.Floats(4 * rows_ * c_),
               dqkv_ = p_.Floats(3 * rows_ * c_), dy_ = p_.Floats(rows_ * c_);
};

void GptStep(Program& p, const GptShape& shape, bool optimizer) {
  Gpt gpt(p, shape);
  gpt.Forward();
  gpt.Backward();
  if (optimizer) gpt.Optimizer();
}

void Convolutions(Program& p, int64_t batch, int64_t size, int64_t in, int64_t out,
                  int64_t kernel) {
  const ConvolutionShape s{.batch = batch,
                           .height = size,
                           .width = size,
                           .in = in,
                           .out = out,
                           .kernel_height = kernel,
                           .kernel_width = kernel,
                           .pad = kernel / 2};
  const double flops = 2.0 * batch * size * size * in * out * kernel * kernel;
  const Buffer x = p.Floats(batch * size * size * in), y = p.Floats(batch * size * size * out);
  const Buffer w = p.Floats(in * out * kernel * kernel), bias = p.Floats(out);
  const std::string shape = " " + std::to_string(in) + "->" + std::to_string(out) + " k" +
                            std::to_string(kernel) + " " + std::to_string(size) + "x" +
                            std::to_string(size) + "x" + std::to_string(batch);
  p.Add("convolution" + shape, ConvolutionForward{x, w, bias, y, s}, flops);
  p.Add("convolution dx" + shape, ConvolutionBackwardData{y, w, x, s}, flops);
  p.Add("convolution dW" + shape, ConvolutionBackwardWeights{x, y, w, bias, s, false}, flops);
  const int64_t half = batch * size * size * out / 4;
  const Buffer pooled = p.Floats(half), index = p.Bytes(half);
  p.Add("max_pool" + shape, MaxPoolForward{y, pooled, index, {batch, size, size, out}});
  p.Add("max_pool backward" + shape, MaxPoolBackward{pooled, index, y, {batch, size, size, out}});
  const int64_t n = batch * size * size * out;
  p.Add("relu" + shape, ActivationForward{ActivationKind::kRelu, y, y, n});
  p.Add("relu backward" + shape, ActivationBackward{ActivationKind::kRelu, y, y, y, n});
}

void Images(Program& p, DType type, int64_t batch, int64_t side, int64_t channels) {
  const int64_t pixels = batch * side * side;
  p.Add("normalize_images " + std::to_string(side) + "x" + std::to_string(side) + "x" +
            std::to_string(channels) + "x" + std::to_string(batch) +
            (type == DType::kF32 ? "" : " to 16 bits"),
        NormalizeImages{.x = p.Bytes(pixels * channels),
                        .y = {p.Floats(pixels * channels).data, type},
                        .pixels = pixels,
                        .channels = channels});
}

int Main(int argc, char** argv) {
  int threads = 2;
  double seconds = 2;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads") threads = std::atoi(argv[i + 1]);
    if (flag == "--seconds") seconds = std::atof(argv[i + 1]);
    if (flag == "--only") only = argv[i + 1];
  }
  struct Case {
    const char* name;
    std::function<void(Program&)> make;
  };
  const std::vector<Case> cases = {
      {"char_gpt",
       [](Program& p) {
         GptStep(p, {12, 64, 128, 4, 4, 65}, true);
       }},
      {"gpt2_layer",
       [](Program& p) {
         GptStep(p, {4, 64, 768, 12, 1, 50257}, true);
       }},
      {"convnet_28x28",
       [](Program& p) {
         Convolutions(p, 128, 28, 1, 32, 3);
         Convolutions(p, 128, 28, 1, 32, 5);
         Convolutions(p, 128, 14, 32, 64, 3);
         Convolutions(p, 128, 14, 32, 64, 5);
       }},
      {"images",
       [](Program& p) {
         for (const DType type : {DType::kF32, DType::kBF16}) {
           Images(p, type, 32, 224, 3);
           Images(p, type, 128, 28, 1);
         }
       }},
      {"gpt_context_1024",
       [](Program& p) {
         GptStep(p, {4, 1024, 768, 12, 1, 256}, false);
       }},
  };
  std::string json = "{\"threads\": " + std::to_string(threads);
  for (const Case& c : cases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    Program program(threads);
    c.make(program);
    const Program::Times times = program.Run(seconds);
    std::printf("%s, %d threads\n", c.name, threads);
    Print(program, times);
    char figure[120];
    std::snprintf(figure, sizeof figure, ", \"%s_ms\": %.3f, \"%s_ms_median\": %.3f", c.name,
                  times.best * 1e3, c.name, times.median * 1e3);
    json += figure;
  }
  std::printf("%s}\n", json.c_str());
  return 0;
}

}  // namespace
}  // namespace trainyard::kernels

int main(int argc, char** argv) { return trainyard::kernels::Main(argc, argv); }
