// Trains a few steps and writes all that another framework needs to make the same steps, and what
// came out: parity_dump JOB.yaml OUT.safetensors [SCALE [SHIFT [IGNORE]]]
//
// With SCALE the matrices begin that many times larger: what GPT-2 starts from is so small that
// most of its nonlinearities are lines. Those that begin at zero (the second of an adapter, without
// which the first has no gradient) then begin like the others. Biases of batch norms begin at
// SHIFT: with relus that are mostly on, a value that rounding pushes across zero, and with it a
// gradient by a thousandth, is rare. With IGNORE 1 half of the targets of every other micro-batch
// count, and a fifth of the others.
//
//   before/{parameter}, after/{parameter}   weights before the first and after the last step
//   gradient/{parameter}                    gradient of the first step, over the whole batch
//   input/{i}, ids/{i}, target/{i}          micro-batches in order; images as bytes, ids for clicks
//   ema/{parameter}                         moving averages after the last step
//   buffer/{name}                           running statistics after the last step
//   logits                                  evaluation of the last micro-batch after it
//   loss, learning_rate, grad_norm          f64, per step
//   loss_scale                              f64, per step: what gradients are multiplied by

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "executor/data/loader.h"
#include "executor/data/open_dataset.h"
#include "executor/engine/initialize.h"
#include "executor/engine/session.h"
#include "executor/engine/trainer.h"
#include "executor/plan/build.h"
#include "executor/plan/spec/spec.h"
#include "executor/weights/safetensors.h"
#include "proto/text/job_file.h"
#include "storage/base/file.h"
#include "storage/base/status.h"

namespace trainyard::engine {
namespace {

constexpr double kStdOfZeros = 0.02;

struct Blob {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

class Dump {
 public:
  void Add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           const void* data, size_t bytes) {
    blobs_[name] = {dtype, std::move(shape), std::string(static_cast<const char*>(data), bytes)};
  }

  void Add(const std::string& name, const std::vector<double>& values) {
    Add(name, "F64", {static_cast<int64_t>(values.size())}, values.data(), values.size() * 8);
  }

  // Each under the name of the tensor at its place in `names`.
  absl::Status AddTensors(const std::string& prefix, const std::vector<plan::TensorId>& ids,
                          const std::vector<plan::TensorId>& names, Session& session) {
    const plan::Plan& plan = session.plan();
    for (size_t i = 0; i < ids.size(); ++i) {
      TY_ASSIGN_OR_RETURN(const std::vector<float> values, ReadWide(ids[i], session));
      for (const plan::StoredTensor& stored : plan::Stored(plan.tensors[names[i]])) {
        Add(prefix + stored.name, "F32", stored.dims, values.data() + stored.offset / sizeof(float),
            stored.elements() * sizeof(float));
      }
    }
    return absl::OkStatus();
  }

  // A tensor of fp32 or bf16 as fp32.
  static absl::StatusOr<std::vector<float>> ReadWide(plan::TensorId id, Session& session) {
    const plan::Tensor& tensor = session.plan().tensors[id];
    std::vector<float> values(tensor.elements());
    if (tensor.type == plan::ElementType::kF32) {
      session.Read(id, values.data(), tensor.bytes());
      TY_RETURN_IF_ERROR(session.Synchronize());
      return values;
    }
    TY_CHECK(tensor.type == plan::ElementType::kBF16, tensor.name, " is neither fp32 nor bf16");
    std::vector<uint16_t> bits(values.size());
    session.Read(id, bits.data(), tensor.bytes());
    TY_RETURN_IF_ERROR(session.Synchronize());
    for (size_t i = 0; i < bits.size(); ++i) {
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
    }
    return values;
  }

  // The gradients of tables that are kept by row, spread over whole tables.
  absl::Status AddRowGradients(Session& session) {
    const plan::Plan& plan = session.plan();
    if (plan.row_gradient == plan::kNone) return absl::OkStatus();
    const std::vector<int64_t>& dims = plan.tensors[plan.row_gradient].dims;
    const int64_t count = dims[1], width = dims[2];
    std::vector<float> rows(plan.tensors[plan.row_gradient].elements());
    std::vector<int32_t> ids(plan.tensors[plan.row_ids].elements());
    session.Read(plan.row_gradient, rows.data(), rows.size() * sizeof(float));
    session.Read(plan.row_ids, ids.data(), ids.size() * sizeof(int32_t));
    TY_RETURN_IF_ERROR(session.Synchronize());
    for (int64_t t = 0; t < count; ++t) {
      const plan::Tensor& table = plan.tensors[plan.parameters[plan.gradients.size() + t]];
      std::vector<float> gradient(table.elements());
      for (size_t place = t; place < ids.size(); place += count) {
        if (ids[place] < 0) continue;
        std::copy_n(rows.begin() + place * width, width, gradient.begin() + ids[place] * width);
      }
      Add("gradient/" + table.name, "F32", table.dims, gradient.data(), table.bytes());
    }
    return absl::OkStatus();
  }

  void Write(const std::string& path) const {
    weights::SafetensorsHeader header;
    int64_t at = 0;
    for (const auto& [name, blob] : blobs_) {
      const auto bytes = static_cast<int64_t>(blob.bytes.size());
      header.tensors[name] = {blob.dtype, blob.shape, at, at + bytes};
      at += bytes;
    }
    std::ofstream out(path, std::ios::binary);
    out << weights::SafetensorsPrefix(header);
    for (const auto& [name, blob] : blobs_) out << blob.bytes;
  }

 private:
  std::map<std::string, Blob> blobs_;
};

absl::StatusOr<v1::JobSpec> ReadSpec(const std::string& path) {
  TY_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(path));
  TY_ASSIGN_OR_RETURN(const v1::Job job, ParseJobFile(yaml, path));
  return plan::ResolveSpec(job.spec());
}

absl::Status MoveStart(Session& session, float scale, float shift) {
  const plan::Plan& plan = session.plan();
  for (const plan::TensorId id : plan.parameters) {
    const bool matrix = plan.tensors[id].dims.size() >= 2;
    if (!matrix && !absl::EndsWith(plan.tensors[id].name, "normalization.bias")) continue;
    const plan::Tensor& tensor = plan.tensors[id];
    if (matrix && scale != 1 && tensor.init_std == 0 && tensor.init_value == 0) {
      TY_RETURN_IF_ERROR(session.DrawNormal(id, /*seed=*/1, StreamOf(tensor.name), kStdOfZeros));
    }
    std::vector<float> values(tensor.elements());
    session.Read(id, values.data(), values.size() * sizeof(float));
    TY_RETURN_IF_ERROR(session.Synchronize());
    for (float& value : values) value = matrix ? value * scale : value + shift;
    session.Write(id, values.data(), values.size() * sizeof(float));
    TY_RETURN_IF_ERROR(session.Synchronize());
  }
  return absl::OkStatus();
}

// What the evaluation of the last micro-batch gives.
absl::Status Evaluate(Session& session, const std::string& inputs, Dump& dump) {
  const plan::Plan& plan = session.plan();
  TY_ASSIGN_OR_RETURN(const auto begin, session.Prepare(plan.evaluate_begin));
  TY_ASSIGN_OR_RETURN(const auto program, session.Prepare(plan.evaluate));
  const std::vector<int32_t> targets(plan.tensors[plan.eval_target].elements(), 0);
  session.Upload({.input = plan.eval_input,
                  .ids = plan.eval_ids,
                  .target = plan.eval_target,
                  .inputs = inputs.data(),
                  .targets = targets.data()});
  session.Launch(begin);
  session.Launch(program);
  const plan::Tensor& logits = plan.tensors[plan.eval_logits];
  std::vector<float> values(logits.elements());
  session.Read(plan.eval_logits, values.data(), logits.bytes());
  TY_RETURN_IF_ERROR(session.Synchronize());
  dump.Add("logits", "F32", logits.dims, values.data(), logits.bytes());
  return absl::OkStatus();
}

absl::Status Run(const std::string& job, const std::string& out, float scale, float shift,
                 bool ignore) {
  TY_ASSIGN_OR_RETURN(const v1::JobSpec spec, ReadSpec(job));
  TY_ASSIGN_OR_RETURN(const auto dataset,
                      data::OpenDataset(spec.data(), plan::WindowingOf(spec.model())));
  TY_ASSIGN_OR_RETURN(const plan::Plan plan, plan::BuildPlan(spec, dataset->facts()));
  TY_ASSIGN_OR_RETURN(const auto device, kernels::OpenCpu(2));
  TY_ASSIGN_OR_RETURN(const auto session, Session::Open(*device, plan));
  TY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(*session, spec));
  TY_RETURN_IF_ERROR(trainer->Initialize());
  TY_RETURN_IF_ERROR(MoveStart(*session, scale, shift));
  TY_RETURN_IF_ERROR(trainer->TakeParameters());
  data::Loader loader(*dataset, {.seed = spec.training().seed(),
                                 .batch_size = spec.training().batch_size(),
                                 .samples = spec.training().batch_size(),
                                 .micro_batch = plan.micro_batch});
  Dump dump;
  TY_RETURN_IF_ERROR(dump.AddTensors("before/", plan.parameters, plan.parameters, *session));
  int64_t delivered = 0;
  std::string last;
  std::vector<int32_t> targets(plan.tensors[plan.target].elements());
  const BatchSource next = [&]() -> absl::StatusOr<data::Loader::Batch> {
    TY_ASSIGN_OR_RETURN(data::Loader::Batch batch, loader.Next());
    const plan::Tensor& input = plan.tensors[plan.input];
    const plan::Tensor& target = plan.tensors[plan.target];
    memcpy(targets.data(), batch.targets, target.bytes());
    for (size_t i = 0; ignore && i < targets.size(); ++i) {
      if (i % (delivered % 2 == 0 ? 2 : 5) != 0) targets[i] = -1;
    }
    batch.targets = targets.data();
    const bool images = input.type == plan::ElementType::kU8;
    const char* const type = images ? "U8" : plan.tokens ? "I32" : "F32";
    dump.Add(absl::StrCat("input/", delivered), type, input.dims, batch.inputs, input.bytes());
    if (plan.ids != plan::kNone) {
      const plan::Tensor& ids = plan.tensors[plan.ids];
      dump.Add(absl::StrCat("ids/", delivered), "I32", ids.dims,
               static_cast<const char*>(batch.inputs) + input.bytes(), ids.bytes());
    }
    last.assign(static_cast<const char*>(batch.inputs),
                input.bytes() + (plan.ids == plan::kNone ? 0 : plan.tensors[plan.ids].bytes()));
    dump.Add(absl::StrCat("target/", delivered++), "I32", target.dims, batch.targets,
             target.bytes());
    return batch;
  };
  std::vector<double> losses, rates, norms, scales;
  for (int64_t step = 0; step < plan.total_steps; ++step) {
    TY_ASSIGN_OR_RETURN(const StepResult result, trainer->Step(next));
    losses.push_back(result.loss);
    rates.push_back(result.learning_rate);
    norms.push_back(result.grad_norm);
    scales.push_back(trainer->loss_scale() ? trainer->loss_scale()->scale : 1);
    if (step == 0) {
      TY_RETURN_IF_ERROR(dump.AddTensors("gradient/", plan.gradients, plan.parameters, *session));
      TY_RETURN_IF_ERROR(dump.AddRowGradients(*session));
    }
  }
  TY_RETURN_IF_ERROR(dump.AddTensors("after/", plan.parameters, plan.parameters, *session));
  TY_RETURN_IF_ERROR(dump.AddTensors("ema/", plan.averages, plan.parameters, *session));
  TY_RETURN_IF_ERROR(dump.AddTensors("buffer/", plan.buffers, plan.buffers, *session));
  TY_RETURN_IF_ERROR(Evaluate(*session, last, dump));
  dump.Add("loss", losses);
  dump.Add("learning_rate", rates);
  dump.Add("grad_norm", norms);
  dump.Add("loss_scale", scales);
  dump.Write(out);
  return absl::OkStatus();
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::cerr << "usage: parity_dump JOB.yaml OUT.safetensors [SCALE [SHIFT [IGNORE]]]\n";
    return 64;
  }
  const absl::Status status = trainyard::engine::Run(
      argv[1], argv[2], argc > 3 ? std::stof(argv[3]) : 1.0f, argc > 4 ? std::stof(argv[4]) : 0.0f,
      argc > 5 && std::stoi(argv[5]) != 0);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
