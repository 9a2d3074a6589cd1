#pragma once

#include <cstdint>
#include <random>

#include "absl/strings/match.h"
#include "tests/unit/plan/interpreter.h"
#include "tests/unit/plan/specs.h"

namespace trainyard::plan {

// A model with random parameters and a batch of random samples.
class Model {
 public:
  Model(const v1::JobSpec& spec, const DataFacts& facts)
      : plan(PlanOf(spec, facts)), machine(plan) {
    machine.state = {.seed = 5, .step = 3};
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal(0, 0.5);
    for (const TensorId id : plan.parameters) {
      reference::Vec w(plan.tensors[id].elements());
      const Tensor& tensor = plan.tensors[id];
      // Most relus after a batch norm are on, so that none of a deep model's channels is dead.
      const double mean = tensor.init_value + absl::EndsWith(tensor.name, "normalization.bias");
      for (double& v : w) v = mean + normal(random);
      machine.Write(id, w);
    }
    const int64_t rows = plan.micro_batches * plan.micro_batch * plan.rows_per_sample;
    inputs.resize(plan.micro_batches * plan.tensors[plan.input].elements());
    targets.resize(rows);
    const int64_t classes = plan.tokens ? facts.vocab : facts.classes;
    const bool images = facts.kind == DataFacts::Kind::kImages;
    // What is normalised is as the weights are; here a byte need not be whole.
    for (double& v : inputs) {
      v = images ? 127.5 * (1 + normal(random)) : static_cast<double>(random() % classes);
    }
    for (double& v : targets) v = static_cast<double>(random() % classes);
    if (facts.kind != DataFacts::Kind::kDocuments) return;
    // Some rows do not count, and some places are padding.
    for (double& v : targets) v = random() % 3 == 0 ? -1 : v;
    lengths.resize(plan.micro_batches * plan.micro_batch);
    const int64_t context = plan.rows_per_sample;
    for (double& v : lengths) v = 1.0 + static_cast<double>(random() % context);
  }

  // The mean loss of the step; gradients are left in the arena.
  double Step() {
    machine.Run(plan.copy);
    machine.Run(plan.begin);
    machine.Run(plan.zero);
    for (int64_t i = 0; i < plan.micro_batches; ++i) {
      machine.state.first_sample = i * plan.micro_batch;
      machine.Write(plan.input, Part(inputs, i));
      if (!lengths.empty()) machine.Write(plan.ids, Part(lengths, i));
      machine.Write(plan.target, Part(targets, i));
      machine.Run(plan.micro);
    }
    return machine.Read(plan.loss_sum)[0] / static_cast<double>(targets.size());
  }

  reference::Vec Part(const reference::Vec& all, int64_t i) const {
    const auto n = static_cast<int64_t>(all.size()) / plan.micro_batches;
    return reference::Vec(all.begin() + i * n, all.begin() + (i + 1) * n);
  }

  const Plan plan;
  Interpreter machine;  // its state: seed 5, step 3
  reference::Vec inputs, targets, lengths;
};

}  // namespace trainyard::plan
