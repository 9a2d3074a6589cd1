#include "server/sizing/sizing_cache.h"

#include <algorithm>
#include <utility>

namespace trainyard {
namespace {

constexpr int64_t kOfAnEntry = 256;  // list and map nodes, about

}  // namespace

SizingCache::Found SizingCache::Find(const std::string& key) {
  absl::MutexLock lock(&mu_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return {};
  entries_.splice(entries_.begin(), entries_, found->second);
  return {found->second->known, found->second->looked};
}

void SizingCache::Put(const std::string& key, KnownSizing known, SteadyTime looked) {
  const auto bytes =
      static_cast<int64_t>(sizeof(KnownSizing) + 2 * key.size() + known.identity.size() +
                           known.sizing.summary.SpaceUsedLong()) +
      kOfAnEntry;
  auto shared = std::make_shared<const KnownSizing>(std::move(known));
  absl::MutexLock lock(&mu_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) Drop(found->second);
  entries_.push_front({key, std::move(shared), bytes, looked});
  by_key_[key] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ > most_bytes_) Drop(std::prev(entries_.end()));
}

void SizingCache::StillHolds(const std::string& key, const KnownSizing& known, SteadyTime looked) {
  absl::MutexLock lock(&mu_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || found->second->known.get() != &known) return;
  found->second->looked = std::max(found->second->looked, looked);
}

void SizingCache::Remove(const std::string& key) {
  absl::MutexLock lock(&mu_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) Drop(found->second);
}

int64_t SizingCache::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

void SizingCache::Drop(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace trainyard
