// Values remembered by a set of at most 64 members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.hpp"

namespace topas::detail {

/// Few entries are searched in a row; many sit in an open hash table that is at most half full.
class SetMemo {
 public:
  /// The value of a set, or nothing.
  [[nodiscard]] const double* find(std::uint64_t set) const noexcept {
    if (entries_.size() <= kFew) {
      for (const Entry& entry : entries_) {
        if (entry.set == set) {
          return &entry.value;
        }
      }
      return nullptr;
    }
    const Entry& entry = entries_[slot_of(set)];
    return entry.used ? &entry.value : nullptr;
  }

  /// Remembers a value; the set must not be known yet.
  void insert(std::uint64_t set, double value) {
    ++count_;
    if (count_ <= kFew) {
      entries_.reserve(kFew);
      entries_.push_back({set, value, true});
      return;
    }
    if (2 * count_ > entries_.size() || entries_.size() <= kFew) {
      grow();
    }
    entries_[slot_of(set)] = {set, value, true};
  }

  /// Forgets all, and keeps the room for it.
  void clear() noexcept {
    entries_.clear();
    count_ = 0;
  }

 private:
  static constexpr std::size_t kFew = 8;
  struct Entry {
    std::uint64_t set = 0;
    double value = 0.0;
    bool used = false;
  };

  [[nodiscard]] std::size_t slot_of(std::uint64_t set) const noexcept {
    const std::size_t mask = entries_.size() - 1;
    std::size_t slot = mix(set) & mask;
    while (entries_[slot].used && entries_[slot].set != set) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }
  void grow() {
    std::vector<Entry> old(entries_.size() <= kFew ? 4 * kFew : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.used) {
        entries_[slot_of(entry.set)] = entry;
      }
    }
  }

  std::vector<Entry> entries_;
  std::size_t count_ = 0;
};

}  // namespace topas::detail
