// Objects by their ids.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "topas/id.hpp"

namespace topas::detail {

/// Owns objects that have an `id`. An open hash table, at most half full, of hashes and pointers: a search reads one
/// place of it, and the object that it finds, where a table of nodes reads several more; with thousands of objects each
/// of them is a cache miss. Its order is nobody's business.
template <class Object>
class IdTable {
 public:
  /// Nothing where no object has the id.
  [[nodiscard]] Object* find(const Id& id) const {
    const Slot& slot = slots_[place_of(id)];
    return slot.object.get();
  }

  /// The id must be new.
  Object& insert(std::unique_ptr<Object> object) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    const std::uint64_t hash = IdHash{}(object->id);
    Slot& slot = slots_[free_place(hash)];
    slot = {hash, std::move(object)};
    ++size_;
    return *slot.object;
  }

  /// The object must be in the table. What was put behind it moves up, so that no search stops too early.
  void erase(const Object& object) {
    std::size_t hole = place_of(object.id);
    slots_[hole].object.reset();
    --size_;
    for (std::size_t at = next(hole); slots_[at].object != nullptr; at = next(at)) {
      const std::size_t home = slots_[at].hash & mask();
      if (((at - home) & mask()) >= ((at - hole) & mask())) {
        slots_[hole] = std::move(slots_[at]);
        hole = at;
      }
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.object != nullptr) {
        visit(*slot.object);
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::unique_ptr<Object> object;
  };
  static constexpr std::size_t kFew = 16;

  [[nodiscard]] std::size_t mask() const noexcept { return slots_.size() - 1; }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }
  /// Where the object of an id is, or a free place.
  [[nodiscard]] std::size_t place_of(const Id& id) const {
    const std::uint64_t hash = IdHash{}(id);
    std::size_t at = hash & mask();
    while (slots_[at].object != nullptr && (slots_[at].hash != hash || slots_[at].object->id != id)) {
      at = next(at);
    }
    return at;
  }
  [[nodiscard]] std::size_t free_place(std::uint64_t hash) const noexcept {
    std::size_t at = hash & mask();
    while (slots_[at].object != nullptr) {
      at = next(at);
    }
    return at;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.object != nullptr) {
        slots_[free_place(slot.hash)] = std::move(slot);
      }
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kFew);  // a power of two
  std::size_t size_ = 0;
};

}  // namespace topas::detail
