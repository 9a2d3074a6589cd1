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

  // Launches everything until `seconds` have passed; returns the best time of a whole run.
  double Run(double seconds) {
    size_t bytes = 64;
    for (const Step& s : steps_) bytes = std::max(bytes, s.kernel.scratch_bytes);
    stream_->scratch = *device_->Allocate(bytes);
    stream_->scratch_bytes = bytes;
    double best = 1e9;
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
      best = std::min(best, total);
    }
    return best;
  }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Step> steps_;
};

// Equal labels together: how often, time of all, rate.
void Print(const Program& program, double best) {
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
  std::printf("  %-40s      %9.1f us (sum of bests %.1f)\n", "all, best run", best * 1e6,
              sum * 1e6);
}

struct GptShape {
  int64_t batch, time, width, heads, layers, vocab;
};

void CharGpt(Program& p, const GptShape& g, bool optimizer) {
  const int64_t rows = g.batch * g.time, c = g.width, dim = c / g.heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const Buffer ids = p.Ids(rows, static_cast<int32_t>(g.vocab));
  const int64_t params = g.vocab * c + g.time * c + g.layers * (12 * c * c + 2 * c) + c;
  const Buffer w_all = p.Floats(params, 0.02f), g_all = p.Zeros(params);
  int64_t used = 0;
  struct Param {
    Buffer w, g;
  };
  const auto param = [&](int64_t n) {
    const Param q{{w_all.As<float>() + used}, {g_all.As<float>() + used}};
    used += n;
    return q;
  };
  struct Layer {
    Param ln1, qkv_w, proj_w, ln2, fc_w, out_w;
    Buffer n1, mean1, rstd1, qkv, lse, y, a, x1, n2, mean2, rstd2, h, act, o, x2;
  };
  const Param wte = param(g.vocab * c), wpe = param(g.time * c);
  const Buffer x0 = p.Floats(rows * c);
  p.Add("embedding", EmbeddingForward{ids, wte.w, wpe.w, x0, g.batch, g.time, c, g.vocab});
  std::vector<Layer> layers;
  Buffer x = x0;
  const auto buffer = [&](int64_t n) { return p.Floats(n); };
  for (int64_t i = 0; i < g.layers; ++i) {
    Layer l{param(c), param(3 * c * c), param(c * c), param(c), param(4 * c * c), param(4 * c * c)};
    l.n1 = buffer(rows * c), l.mean1 = buffer(rows), l.rstd1 = buffer(rows);
    l.qkv = buffer(3 * rows * c), l.lse = buffer(rows * g.heads), l.y = buffer(rows * c);
    l.a = buffer(rows * c), l.x1 = buffer(rows * c), l.n2 = buffer(rows * c);
    l.mean2 = buffer(rows), l.rstd2 = buffer(rows), l.h = buffer(4 * rows * c);
    l.act = buffer(4 * rows * c), l.o = buffer(rows * c), l.x2 = buffer(rows * c);
    p.Add("layer_norm", LayerNormForward{x, l.ln1.w, {}, l.n1, l.mean1, l.rstd1, rows, c});
    p.Multiply("matmul", l.n1, l.qkv_w.w, l.qkv, rows, 3 * c, c);
    p.Add("attention",
          AttentionForward{l.qkv, l.y, l.lse, g.batch, g.time, g.heads, dim, scale, true});
    p.Multiply("matmul", l.y, l.proj_w.w, l.a, rows, c, c);
    p.Add("add", Add{x, l.a, l.x1, rows * c});
    p.Add("layer_norm", LayerNormForward{l.x1, l.ln2.w, {}, l.n2, l.mean2, l.rstd2, rows, c});
    p.Multiply("matmul", l.n2, l.fc_w.w, l.h, rows, 4 * c, c);
    p.Add("gelu", ActivationForward{ActivationKind::kGelu, l.h, l.act, 4 * rows * c});
    p.Multiply("matmul", l.act, l.out_w.w, l.o, rows, c, 4 * c);
    p.Add("add", Add{l.x1, l.o, l.x2, rows * c});
    x = l.x2;
    layers.push_back(l);
  }
  const Param lnf = param(c);
  const Buffer nf = buffer(rows * c), meanf = buffer(rows), rstdf = buffer(rows);
  const Buffer logits = buffer(rows * g.vocab), losses = buffer(rows), loss = p.Double();
  p.Add("layer_norm", LayerNormForward{x, lnf.w, {}, nf, meanf, rstdf, rows, c});
  p.Multiply("matmul tb", nf, wte.w, logits, rows, g.vocab, c, false, true);
  p.Add("cross_entropy", CrossEntropy{logits,
                                      p.Ids(rows, static_cast<int32_t>(g.vocab)),
                                      losses,
                                      {},
                                      logits,
                                      rows,
                                      g.vocab,
                                      1.0f / rows});
  p.Add("sum", Sum{losses, loss, rows, false});

  const Buffer dn = buffer(rows * c), dx = buffer(rows * c), dh = buffer(4 * rows * c),
               dqkv = buffer(3 * rows * c), dy = buffer(rows * c);
  p.Multiply("matmul dW", logits, nf, wte.g, g.vocab, c, rows, true, false);
  p.Multiply("matmul dx", logits, wte.w, dn, rows, c, g.vocab, false, false);
  p.Add("layer_norm backward",
        LayerNormBackward{dn, x, lnf.w, meanf, rstdf, dx, lnf.g, {}, rows, c, false, false});
  for (int64_t i = g.layers - 1; i >= 0; --i) {
    const Layer& l = layers[i];
    const Buffer in = i == 0 ? x0 : layers[i - 1].x2;
    p.Multiply("matmul dW", l.act, dx, l.out_w.g, 4 * c, c, rows, true, false);
    p.Multiply("matmul dx", dx, l.out_w.w, dh, rows, 4 * c, c, false, true);
    p.Add("gelu backward", ActivationBackward{ActivationKind::kGelu, l.h, dh, dh, 4 * rows * c});
    p.Multiply("matmul dW", l.n2, dh, l.fc_w.g, c, 4 * c, rows, true, false);
    p.Multiply("matmul dx", dh, l.fc_w.w, dn, rows, c, 4 * c, false, true);
    p.Add("layer_norm backward",
          LayerNormBackward{
              dn, l.x1, l.ln2.w, l.mean2, l.rstd2, dx, l.ln2.g, {}, rows, c, true, false});
    p.Multiply("matmul dW", l.y, dx, l.proj_w.g, c, c, rows, true, false);
    p.Multiply("matmul dx", dx, l.proj_w.w, dy, rows, c, c, false, true);
    p.Add("attention backward", AttentionBackward{dy, l.qkv, l.y, l.lse, dqkv, g.batch, g.time,
                                                  g.heads, dim, scale, true});
    p.Multiply("matmul dW", l.n1, dqkv, l.qkv_w.g, c, 3 * c, rows, true, false);
    p.Multiply("matmul dx", dqkv, l.qkv_w.w, dn, rows, c, 3 * c, false, true);
    p.Add("layer_norm backward",
          LayerNormBackward{
              dn, in, l.ln1.w, l.mean1, l.rstd1, dx, l.ln1.g, {}, rows, c, true, false});
  }
  p.Add("embedding backward",
        EmbeddingBackward{dx, ids, wte.g, wpe.g, g.batch, g.time, c, g.vocab});
  if (!optimizer) return;
  static StepState state{.learning_rate = 1e-6f};
  const Buffer norm2 = p.Double(), norm = p.Floats(1), clip = p.Floats(1);
  p.Add("squared_norm", SquaredNorm{g_all, norm2, params, false});
  p.Add("clip_scale", ClipScale{norm2, norm, clip, 1.0f});
  p.Add("adamw", AdamWStep{.w = w_all,
                           .grad = g_all,
                           .m = p.Zeros(params),
                           .v = p.Zeros(params),
                           .grad_scale = clip,
                           .state = &state,
                           .n = params});
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
  p.Add("max_pool" + shape, MaxPoolForward{y, pooled, index, batch, size, size, out, 2});
  p.Add("max_pool backward" + shape, MaxPoolBackward{pooled, index, y, batch, size, size, out, 2});
  const int64_t n = batch * size * size * out;
  p.Add("relu" + shape, ActivationForward{ActivationKind::kRelu, y, y, n});
  p.Add("relu backward" + shape, ActivationBackward{ActivationKind::kRelu, y, y, y, n});
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
         CharGpt(p, {12, 64, 128, 4, 4, 65}, true);
       }},
      {"gpt2_layer",
       [](Program& p) {
         CharGpt(p, {4, 64, 768, 12, 1, 50257}, true);
       }},
      {"convnet_28x28",
       [](Program& p) {
         Convolutions(p, 128, 28, 1, 32, 3);
         Convolutions(p, 128, 28, 1, 32, 5);
         Convolutions(p, 128, 14, 32, 64, 3);
         Convolutions(p, 128, 14, 32, 64, 5);
       }},
      {"gpt_context_1024",
       [](Program& p) {
         CharGpt(p, {4, 1024, 768, 12, 1, 256}, false);
       }},
  };
  std::string json = "{\"threads\": " + std::to_string(threads);
  for (const Case& c : cases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    Program program(threads);
    c.make(program);
    const double best = program.Run(seconds);
    std::printf("%s, %d threads\n", c.name, threads);
    Print(program, best);
    char figure[80];
    std::snprintf(figure, sizeof figure, ", \"%s_ms\": %.3f", c.name, best * 1e3);
    json += figure;
  }
  std::printf("%s}\n", json.c_str());
  return 0;
}

}  // namespace
}  // namespace trainyard::kernels

int main(int argc, char** argv) { return trainyard::kernels::Main(argc, argv); }
