// Requests in the order of their ids, with keys that tell the order without looking at the requests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "topas/id.hpp"

namespace topas::detail {

/// Ascends with the id: ids whose keys differ are in the order of the keys. Half an integer, the first bytes of a
/// string.
[[nodiscard]] inline std::uint64_t order_key(const Id& id) noexcept {
  constexpr std::uint64_t kTop = std::uint64_t{1} << 63U;
  if (const auto* number = std::get_if<std::int64_t>(&id.value())) {
    return (static_cast<std::uint64_t>(*number) ^ kTop) >> 1U;
  }
  const auto& text = *std::get_if<std::string>(&id.value());
  std::uint64_t key = 0;
  for (std::size_t at = 0; at < sizeof key; ++at) {
    key = key << 8U | (at < text.size() ? static_cast<unsigned char>(text[at]) : 0U);
  }
  return kTop | key >> 1U;
}

/// Does not own them. A search reads keys, which lie side by side, and the requests, which lie anywhere, only where
/// keys are equal.
template <class Request>
class RequestList {
 public:
  struct Entry {
    std::uint64_t key = 0;
    Request* request = nullptr;
  };

  void insert(Request& request) {
    const std::uint64_t key = order_key(request.id);
    entries_.insert(place_of(request.id, key), {key, &request});
  }
  /// The request must be in it.
  void erase(const Request& request) { entries_.erase(place_of(request.id, order_key(request.id))); }

  [[nodiscard]] auto begin() const noexcept { return entries_.begin(); }
  [[nodiscard]] auto end() const noexcept { return entries_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  [[nodiscard]] const Entry& operator[](std::size_t at) const noexcept { return entries_[at]; }

 private:
  [[nodiscard]] auto place_of(const Id& id, std::uint64_t key) const {
    return std::lower_bound(entries_.begin(), entries_.end(), key, [&id](const Entry& left, std::uint64_t right) {
      return left.key != right ? left.key < right : left.request->id < id;
    });
  }

  std::vector<Entry> entries_;
};

}  // namespace topas::detail
