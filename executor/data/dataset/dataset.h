#pragma once

// Samples by number, ready for the device.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executor/data/dataset/warnings.h"
#include "executor/plan/spec/facts.h"

namespace trainyard::data {

class Tokenizer;

enum class Split { kTrain, kValidation };

// An open data set. Thread-safe: const methods may run at once on several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  const plan::DataFacts& facts() const { return facts_; }

  // Samples are numbered [0, size(split)).
  //   Images, clicks: train and validation samples in the order of the files (of folders: by name).
  //   Tokens, training: windows of `context` that start at any token (nanoGPT's); they overlap.
  //   Tokens, validation: windows side by side that cover the whole split.
  //   Documents: windows side by side, of which the last of a document may be shorter.
  // No window crosses from one file into the next, nor from one split into the other.
  virtual int64_t size(Split split) const = 0;

  // Bytes of one sample. Images: u8 [height, width, channels], for training the place of a crop
  // (plan::TakesCrops), and one i32 label. Tokens: i32 [context] ids and i32 [context] next ids.
  // Documents: i32 [context] masked ids, i32 length and i32 [context] hidden ids (-1: not hidden).
  // Clicks: f32 [dense], i32 [categorical] and one i32 label.
  int64_t input_bytes() const { return input_bytes_; }
  int64_t target_bytes() const { return target_bytes_; }

  // Writes samples[i] to the i-th place of `inputs` and `targets`; clicks fill `inputs` with all
  // dense features [n, dense], then all ids [n, categorical], documents all ids [n, context], then
  // all lengths [n], images for training all pixels, then all places [n, kPlace]. A negative number
  // is padding, as is what a last window lacks: inputs 0, lengths 1, targets -1 (rows that do not
  // count). Documents are masked the same way each time. An image that cannot be read is skipped or
  // refused (v1::BadRecords). Allocates nothing, but that the image libraries take and give back
  // rows. Fails only when a token file or an image does: kInvalidArgument for an id that is out of
  // range (named with file and position) or an image that is refused, kDataLoss for a file that
  // shrank.
  virtual absl::Status Fill(Split split, absl::Span<const int64_t> samples, void* inputs,
                            void* targets) const = 0;

  // Fill of the training split as training sees it: images are cropped and flipped, or come with
  // places by which the device does so, documents are masked, by draws that are a function of
  // (seed, epoch, sample), where epochs[i] says how often samples[i] came before.
  virtual absl::Status FillForTraining(uint64_t /*seed*/, absl::Span<const int64_t> samples,
                                       absl::Span<const int64_t> /*epochs*/, void* inputs,
                                       void* targets) const {
    return Fill(Split::kTrain, samples, inputs, targets);
  }

  // Samples that one thread should fill at a time, where the samples of a micro-batch lie one
  // behind the other and cost time enough to share. 0: micro-batches are filled whole.
  virtual int64_t grain() const { return 0; }

  // Whether training draws windows with replacement (tokens) or permutes each epoch (images,
  // documents, clicks).
  virtual bool sampled_with_replacement() const = 0;

  // The AUC of the true probabilities over the first `samples` of the held-out split, where they
  // are known: no model can be expected to do better.
  virtual std::optional<double> BestAuc(int64_t /*samples*/) const { return std::nullopt; }

  // What the user should know of the files although they can be trained on, since the last call.
  std::vector<std::string> TakeWarnings() const { return warnings_.Take(); }

  // Different images that could not be used so far; those of tables are in a warning.
  virtual int64_t skipped() const { return 0; }

  // How ids map to text, or null (no text, token files).
  virtual const Tokenizer* tokenizer() const { return nullptr; }

  // Host memory held.
  virtual int64_t bytes() const = 0;

 protected:
  plan::DataFacts facts_;
  int64_t input_bytes_ = 0;
  int64_t target_bytes_ = 0;
  mutable Warnings warnings_;
};

}  // namespace trainyard::data
