#include "executor/facts/facts_message.h"

namespace trainyard::facts {

static_assert(static_cast<int>(plan::DataFacts::Kind::kImages) == v1::DataFacts::IMAGES);
static_assert(static_cast<int>(plan::DataFacts::Kind::kTokens) == v1::DataFacts::TOKENS);
static_assert(static_cast<int>(plan::DataFacts::Kind::kDocuments) == v1::DataFacts::DOCUMENTS);
static_assert(static_cast<int>(plan::DataFacts::Kind::kClicks) == v1::DataFacts::CLICKS);

v1::DataFacts ToMessage(const plan::DataFacts& facts) {
  v1::DataFacts message;
  message.set_kind(static_cast<v1::DataFacts::Kind>(facts.kind));
  message.set_height(facts.height);
  message.set_width(facts.width);
  message.set_channels(facts.channels);
  message.set_classes(facts.classes);
  message.set_vocab(facts.vocab);
  message.set_dense(facts.dense);
  message.set_categorical(facts.categorical);
  message.set_buckets(facts.buckets);
  message.set_train_size(facts.train_size);
  message.set_validation_size(facts.validation_size);
  message.set_held_bytes(facts.held_bytes);
  message.set_bytes_per_thread(facts.bytes_per_thread);
  return message;
}

absl::StatusOr<plan::DataFacts> FromMessage(const v1::DataFacts& facts) {
  const bool known = v1::DataFacts::Kind_IsValid(facts.kind());
  for (const int64_t number :
       {facts.height(), facts.width(), facts.channels(), facts.classes(), facts.vocab(),
        facts.dense(), facts.categorical(), facts.buckets(), facts.train_size(),
        facts.validation_size(), facts.held_bytes(), facts.bytes_per_thread()}) {
    if (known && number >= 0) continue;
    return absl::InvalidArgumentError("facts that no data of this version can have");
  }
  return plan::DataFacts{.kind = static_cast<plan::DataFacts::Kind>(facts.kind()),
                         .height = facts.height(),
                         .width = facts.width(),
                         .channels = facts.channels(),
                         .classes = facts.classes(),
                         .vocab = facts.vocab(),
                         .dense = facts.dense(),
                         .categorical = facts.categorical(),
                         .buckets = facts.buckets(),
                         .train_size = facts.train_size(),
                         .validation_size = facts.validation_size(),
                         .held_bytes = facts.held_bytes(),
                         .bytes_per_thread = facts.bytes_per_thread()};
}

}  // namespace trainyard::facts
