// The end of a step as a whole, in double precision, against each optimizer written down plainly.

#include "executor/plan/passes/optimizer_step.h"
#include "executor/plan/spec/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tests/reference/optimizer.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/random_model.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {
namespace {

using reference::Vec;

Vec Random(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Vec v(n);
  for (double& x : v) x = normal(random);
  return v;
}

// A plan whose weights and gradients are random; the backward pass is left out.
class Steps {
 public:
  Steps(const v1::JobSpec& spec, const DataFacts& facts)
      : plan(PlanOf(spec, facts)), machine(plan) {
    for (const TensorId id : plan.parameters) {
      machine.Write(id, Random(plan.tensors[id].elements(), std::hash<std::string>()(Name(id))));
    }
    machine.state.learning_rate = 0.125f;
    machine.Run(plan.start);
  }

  const std::string& Name(TensorId id) const { return plan.tensors[id].name; }

  void Step() {
    for (size_t i = 0; i < plan.gradients.size(); ++i) {
      machine.Write(plan.gradients[i], Gradient(i));
    }
    machine.Run(plan.norm);
    machine.Run(plan.end);
    ++machine.state.step;
    ++machine.state.updates;
  }

  // Of the step that comes, of the parameter at `position`.
  Vec Gradient(size_t position) const {
    return Random(plan.tensors[plan.parameters[position]].elements(),
                  1000 * machine.state.step + position);
  }

  size_t Position(const std::string& name) const {
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      if (Name(plan.parameters[i]) == name) return i;
    }
    ADD_FAILURE() << name;
    return 0;
  }

  Vec Weights(const std::string& name) const {
    return machine.Read(plan.parameters[Position(name)]);
  }

  const Plan plan;
  Interpreter machine;
};

void ExpectNear(const Vec& found, const Vec& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    // Constants of an op are single precision.
    ASSERT_NEAR(found[i], expected[i], 2e-6 * (1 + std::abs(expected[i])))
        << what << "[" << i << "]";
  }
}

// rows [from, from + count) of a matrix of `cols` columns
Vec Rows(const Vec& matrix, int64_t from, int64_t count, int64_t cols) {
  return Vec(matrix.begin() + from * cols, matrix.begin() + (from + count) * cols);
}

// Muon's step on one matrix.
void ReferenceMuonStep(const Vec& grad, int64_t rows, int64_t cols, double lr, double scale, Vec& w,
                       Vec& velocity) {
  const Vec y = reference::MuonMomentum(grad, 1, 0.95, true, velocity);
  const Vec x = reference::Orthogonalized(y, rows, cols, 5);
  for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * (0.25 * w[i] + scale * x[i]);
}

TEST(MuonSteps, AreTheReferencesOnEachStoredMatrix) {
  for (const bool match_rms : {false, true}) {
    v1::JobSpec spec = LlamaSpec();
    v1::Muon& muon = *spec.mutable_optimizer()->mutable_muon();
    muon.set_weight_decay(0.25);
    if (match_rms) muon.set_scale(v1::Muon::MATCH_RMS_ADAMW);
    Steps steps(spec, TokenFacts(11));
    const auto scale = [&](int64_t rows, int64_t cols) {
      return match_rms ? 0.2 * std::sqrt(std::max(rows, cols))
                       : std::sqrt(std::max(1.0, static_cast<double>(rows) / cols));
    };
    // Packed: q [8, 8], k [4, 8], v [4, 8]; gate and up, [6, 8] each. Alone and wide: down [8, 6].
    const struct {
      const char* name;
      std::vector<int64_t> rows;
      int64_t cols;
    } matrices[] = {{"model.layers.0.self_attn.qkv_proj.weight", {8, 4, 4}, 8},
                    {"model.layers.1.mlp.gate_up_proj.weight", {6, 6}, 8},
                    {"model.layers.1.mlp.down_proj.weight", {8}, 6}};
    std::map<std::string, Vec> w, velocity;
    for (const auto& m : matrices) {
      w[m.name] = steps.Weights(m.name);
      velocity[m.name] = Vec(w[m.name].size(), 0);
    }
    for (int i = 0; i < 3; ++i) {
      for (const auto& m : matrices) {
        const Vec grad = steps.Gradient(steps.Position(m.name));
        Vec all_w, all_v;
        int64_t from = 0;
        for (const int64_t rows : m.rows) {
          Vec part = Rows(w[m.name], from, rows, m.cols);
          Vec v = Rows(velocity[m.name], from, rows, m.cols);
          ReferenceMuonStep(Rows(grad, from, rows, m.cols), rows, m.cols, 0.125,
                            scale(rows, m.cols), part, v);
          all_w.insert(all_w.end(), part.begin(), part.end());
          all_v.insert(all_v.end(), v.begin(), v.end());
          from += rows;
        }
        w[m.name] = all_w;
        velocity[m.name] = all_v;
      }
      steps.Step();
      for (const auto& m : matrices) ExpectNear(steps.Weights(m.name), w[m.name], m.name);
    }
  }
}

// GPT-2's weights are [in, out]: one that widens takes the larger steps, one that narrows does not.
TEST(MuonSteps, ScaleByOutputsOverInputsHoweverTheWeightLies) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->mutable_muon()->set_weight_decay(0.25);
  Steps steps(spec, TokenFacts(11));
  const struct {
    const char* name;
    int64_t in, out;
    double scale;
  } matrices[] = {{"transformer.h.0.mlp.c_fc.weight", 8, 32, 2},
                  {"transformer.h.0.mlp.c_proj.weight", 32, 8, 1},
                  {"transformer.h.1.attn.c_attn.weight", 8, 24, std::sqrt(3.0)}};
  std::map<std::string, Vec> w;
  for (const auto& m : matrices) {
    w[m.name] = steps.Weights(m.name);
    Vec velocity(w[m.name].size(), 0);
    ReferenceMuonStep(steps.Gradient(steps.Position(m.name)), m.in, m.out, 0.125, m.scale,
                      w[m.name], velocity);
  }
  steps.Step();
  for (const auto& m : matrices) ExpectNear(steps.Weights(m.name), w[m.name], m.name);
}

TEST(MuonSteps, TakeAConvolutionAsAMatrixOfItsFilters) {
  v1::JobSpec spec = ConvnetSpec();
  spec.mutable_optimizer()->mutable_muon()->set_weight_decay(0.25);
  Steps steps(spec, ImageFacts(8, 8, 2, 3));
  const std::string name = "stages.0.0.weight";  // [3, 2, 3, 3]
  Vec w = steps.Weights(name), velocity(w.size(), 0);
  ReferenceMuonStep(steps.Gradient(steps.Position(name)), 3, 18, 0.125, 1, w, velocity);
  steps.Step();
  ExpectNear(steps.Weights(name), w, name);
}

TEST(LambSteps, TakeTheTrustRatioOfEachStoredTensorThatDecays) {
  for (const bool always : {false, true}) {
    v1::JobSpec spec = LlamaSpec();
    spec.mutable_optimizer()->mutable_lamb()->set_weight_decay(0.25);
    spec.mutable_optimizer()->mutable_lamb()->set_always_adapt(always);
    Steps steps(spec, TokenFacts(11));
    const reference::AdamWRates rates{.lr = 0.125, .epsilon = 1e-6, .weight_decay = 0.25};
    const std::string packed = "model.layers.0.self_attn.qkv_proj.weight",
                      norm = "model.norm.weight";
    const Vec w = steps.Weights(packed), grad = steps.Gradient(steps.Position(packed));
    Vec expected;
    for (const auto& [from, rows] : {std::pair(0, 8), std::pair(8, 4), std::pair(12, 4)}) {
      reference::AdamWState part{Rows(w, from, rows, 8), Vec(rows * 8, 0), Vec(rows * 8, 0)};
      reference::LambStep(Rows(grad, from, rows, 8), 1, rates, true, 0, part);
      expected.insert(expected.end(), part.w.begin(), part.w.end());
    }
    reference::AdamWState of_norm{steps.Weights(norm), Vec(8, 0), Vec(8, 0)};
    reference::LambStep(steps.Gradient(steps.Position(norm)), 1, {.lr = 0.125, .epsilon = 1e-6},
                        always, 0, of_norm);
    steps.Step();
    ExpectNear(steps.Weights(packed), expected, packed);
    ExpectNear(steps.Weights(norm), of_norm.w, norm);
  }
}

// Gradients of two types lie apart, each type side by side; the norm is of all.
TEST(AdamWSteps, TakeEachGradientFromWhereItsTypeLies) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_precision()->set_compute(v1::Precision::BF16);
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.25);
  Steps steps(spec, TokenFacts(11));
  std::map<std::string, reference::AdamWState> expected;
  for (const TensorId id : steps.plan.parameters) {
    const Vec w = steps.machine.Read(id);
    expected[steps.Name(id)] = {w, Vec(w.size(), 0), Vec(w.size(), 0)};
  }
  for (int i = 0; i < 3; ++i) {
    double squares = 0;
    for (size_t p = 0; p < steps.plan.parameters.size(); ++p) {
      const Tensor& tensor = steps.plan.tensors[steps.plan.parameters[p]];
      const reference::AdamWRates rates{.lr = 0.125,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-8,
                                        .weight_decay = tensor.dims.size() >= 2 ? 0.25 : 0};
      const Vec gradient = steps.Gradient(p);
      for (const double g : gradient) squares += g * g;
      reference::AdamWStep(gradient, 1, rates, i, expected[tensor.name]);
    }
    steps.Step();
    EXPECT_NEAR(steps.machine.Read(steps.plan.grad_norm)[0], std::sqrt(squares), 1e-9 * squares);
  }
  for (const auto& [name, state] : expected) ExpectNear(steps.Weights(name), state.w, name);
}

TEST(SgdSteps, AreNesterovsWhenAskedFor) {
  v1::JobSpec spec = MlpSpec();
  v1::Sgd& sgd = *spec.mutable_optimizer()->mutable_sgd();
  sgd.set_momentum(0.75);
  sgd.set_nesterov(true);
  Steps steps(spec, ImageFacts(4, 4, 1, 3));
  const std::string name = "layers.0.weight";
  reference::SgdState expected{steps.Weights(name), {}};
  expected.velocity = Vec(expected.w.size(), 0);
  for (int i = 0; i < 3; ++i) {
    reference::SgdStep(steps.Gradient(steps.Position(name)), 1,
                       {.lr = 0.125, .momentum = 0.75, .nesterov = true}, i, expected);
    steps.Step();
    ExpectNear(steps.Weights(name), expected.w, name);
  }
}

TEST(Averages, BeginAtTheFirstWeightsAndFollowThem) {
  for (const bool warmup : {false, true}) {
    v1::JobSpec spec = MlpSpec();
    spec.mutable_training()->set_ema_decay(0.75);
    spec.mutable_training()->set_ema_warmup(warmup);
    v1::ParameterGroup& group = *spec.mutable_optimizer()->add_groups();
    group.set_pattern("layers.1.bias");
    group.set_frozen(true);
    Steps steps(spec, ImageFacts(4, 4, 1, 3));
    EXPECT_EQ(steps.plan.averages.size(), steps.plan.parameters.size() - 1);
    std::vector<Vec> expected;
    for (size_t i = 0; i < steps.plan.averages.size(); ++i) {
      expected.push_back(steps.machine.Read(steps.plan.parameters[i]));
    }
    for (int step = 0; step < 4; ++step) {
      steps.Step();
      const double decay = warmup ? std::min(0.75, (1.0 + step) / (10.0 + step)) : 0.75;
      EXPECT_DOUBLE_EQ(EmaDecay(spec.training(), step), decay);
      for (size_t i = 0; i < expected.size(); ++i) {
        const Vec w = steps.machine.Read(steps.plan.parameters[i]);
        for (size_t j = 0; j < w.size(); ++j) {
          expected[i][j] = decay * expected[i][j] + (1 - decay) * w[j];
        }
        ExpectNear(steps.machine.Read(steps.plan.averages[i]), expected[i], "average");
      }
    }
  }
}

TEST(Averages, AreWhatIsEvaluatedAndCostTheirBytes) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_checkpoint()->set_every_steps(10);
  const Plan plain = PlanOf(spec, TokenFacts(11));
  spec.mutable_training()->set_ema_decay(0.75);
  Plan plan = PlanOf(spec, TokenFacts(11));
  for (Op& op : plan.evaluate) {
    VisitOperands(op, [&](TensorId id, Access) {
      EXPECT_NE(plan.tensors[id].kind, TensorKind::kParameter) << plan.tensors[id].name;
    });
  }
  EXPECT_EQ(plain.summary.ema_bytes(), 0);
  EXPECT_EQ(plan.summary.ema_bytes(), plan.summary.parameter_bytes());
  EXPECT_EQ(plan.arena_bytes, plain.arena_bytes + plan.summary.ema_bytes());
  // Once in the arena, once in the copy that a checkpoint is written from.
  EXPECT_EQ(plan.summary.bytes_per_slot(),
            plain.summary.bytes_per_slot() + 2 * plan.summary.ema_bytes());
}

TEST(MuonSteps, CountTheirProductsAndShareTheActivationsMemory) {
  v1::JobSpec spec = CharGptSpec();
  const Plan adamw = PlanOf(spec, TokenFacts(65));
  spec.mutable_optimizer()->mutable_muon();
  const Plan plan = PlanOf(spec, TokenFacts(65));
  // Per iteration, of a matrix whose smaller side is s and larger l: s s l, s s s and s s l
  // multiplications and additions. Four layers of 128 x 384, 128 x 128 and two of 128 x 512.
  double products = 0;
  for (const double l : {384.0, 128.0, 512.0, 512.0}) {
    products += 4 * 5 * 2 * 128 * 128 * (2 * l + 128);
  }
  EXPECT_DOUBLE_EQ(plan.summary.flops_per_step() - adamw.summary.flops_per_step(), products);
  EXPECT_EQ(plan.activation_bytes, adamw.activation_bytes);
  // One moment for the matrices, two for the rest.
  EXPECT_LT(plan.summary.optimizer_bytes(), adamw.summary.optimizer_bytes() * 2 / 3);
}

// --- whole models --------------------------------------------------------------------------------

TEST(OptimizerSweep, LeavesPaddingAtZeroAndMovesEveryParameter) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->set_clip_norm(0.1);
  for (const bool adam : {true, false}) {
    if (!adam) spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    Model model(spec, TokenFacts(11));
    model.machine.state.learning_rate = 0.1f;
    std::vector<Vec> before;
    for (const TensorId id : model.plan.parameters) before.push_back(model.machine.Read(id));
    model.Step();
    model.machine.Run(model.plan.norm);
    model.machine.Run(model.plan.end);
    EXPECT_GT(model.machine.Read(model.plan.grad_norm)[0], 0);
    const auto padding_is_zero = [&](const std::vector<TensorId>& ids) {
      for (const TensorId id : ids) {
        const int64_t n = model.plan.tensors[id].elements();
        const Vec padded = model.machine.Read(id, (n + 31) / 32 * 32);
        for (size_t i = n; i < padded.size(); ++i) {
          ASSERT_EQ(padded[i], 0) << model.plan.tensors[id].name;
        }
      }
    };
    padding_is_zero(model.plan.parameters);
    padding_is_zero(model.plan.gradients);
    for (const auto& kind : model.plan.optimizer_state) padding_is_zero(kind);
    for (size_t p = 0; p < before.size(); ++p) {
      EXPECT_NE(model.machine.Read(model.plan.parameters[p]), before[p])
          << model.plan.tensors[model.plan.parameters[p]].name;
    }
  }
}

TEST(OptimizerSweep, DecaysMatricesOnly) {
  v1::JobSpec spec = GptSpec();
  spec.mutable_optimizer()->mutable_adamw()->set_weight_decay(0.1);
  const Plan plan = PlanOf(spec, TokenFacts(11));
  const std::vector<AdamWStep> steps = OpsOf<AdamWStep>(plan.end);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FLOAT_EQ(steps[0].weight_decay, 0.1f);
  EXPECT_EQ(steps[1].weight_decay, 0);
  EXPECT_EQ(steps[0].w, plan.parameters[0]);
  EXPECT_EQ((steps[0].n + steps[1].n) * 4, plan.parameter_region.bytes);
  for (const TensorId id : plan.parameters) {
    const bool decayed = plan.offsets[id] < plan.offsets[steps[1].w];
    EXPECT_EQ(decayed, plan.tensors[id].dims.size() >= 2) << plan.tensors[id].name;
  }
}

}  // namespace
}  // namespace trainyard::plan
