// Waiting requests by what they gain for each token, and which of them the prefix set being packed may still take.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "instance.hpp"

namespace topas::detail {

struct Option {
  std::uint32_t request = 0;
  double gain = 0.0;
  double density = 0.0;  ///< gain for each token of its reservation
};

/// A place in the order: an option that is the same in every set until a request of its task is admitted, or preempted
/// where running ones count.
struct Ranked {
  Option option;
  double arrival = 0.0;  ///< of its task
  std::uint32_t agent = 0;
  std::uint32_t run_end = 0;  ///< where the options of exactly its density end
  std::int64_t kv_tokens = 0;
};

/// Places are bits. A set's open places are those of its agents, less the closed ones; a class of sizes has the bits of
/// all reservations up to its largest, so that what is far too large is passed over 64 places at a time.
class OptionOrder {
 public:
  /// `ranked`: in order, the densest first. `agents`, `requests`: how many there are.
  void assign(std::vector<Ranked> ranked, std::size_t agents, std::size_t requests);

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ranked_.size()); }
  [[nodiscard]] const Ranked& operator[](std::uint32_t place) const noexcept { return ranked_[place]; }
  [[nodiscard]] const std::vector<Ranked>& all() const noexcept { return ranked_; }

  /// Opens the options of these agents, ascending, and no others, and favours nobody. Cheap for sets that differ by a
  /// few agents.
  void open(std::span<const std::uint32_t> members);
  /// Opens those of one more agent.
  void include(std::uint32_t agent);
  /// The options of the agent may take more than those of others, or, if they may, no longer.
  void favour_or_not(std::uint32_t agent) noexcept { toggle(agent, favoured_); }
  /// Takes the option of a waiting request out until open() is called again; whether it was in.
  bool close(std::uint32_t request);
  /// The first open place from `place` on whose option takes no more than `most` tokens; size() if there is none.
  [[nodiscard]] std::uint32_t next(std::uint32_t place, std::int64_t most) const {
    const std::uint64_t* small = places_up_to(most);
    const auto fits = [most](const Ranked& ranked) { return ranked.kv_tokens <= most; };
    return small == nullptr ? size() : find(place, small, small, fits);
  }
  /// The first whose option `fits`, where only those of favoured agents may take more than `most`.
  template <class Fits>
  [[nodiscard]] std::uint32_t next(std::uint32_t place, std::int64_t most, const Fits& fits) const;

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

  void mark_runs();
  void index_places(std::size_t agents, std::size_t requests);
  void classify_sizes();
  void toggle(std::uint32_t agent, std::vector<std::uint64_t>& places) const noexcept;
  /// The first open place from `place` on that is among `either` or `other` and `fits`.
  template <class Fits>
  [[nodiscard]] std::uint32_t find(std::uint32_t place, const std::uint64_t* either, const std::uint64_t* other,
                                   const Fits& fits) const;
  /// Places that take no more than so many tokens, and some that take a little more; null: none takes so little.
  [[nodiscard]] const std::uint64_t* places_up_to(std::int64_t kv_tokens) const noexcept {
    const std::size_t size_class = kv_tokens < 0 ? 0 : class_of(kv_tokens);
    return size_class < first_class_ || classes_ == 0
               ? nullptr
               : up_to_.data() + std::min(size_class - first_class_, classes_ - 1) * open_.size();
  }
  /// Classes of sizes: eight to each doubling.
  [[nodiscard]] static std::size_t class_of(std::int64_t kv_tokens) noexcept {
    const auto tokens = static_cast<std::uint64_t>(kv_tokens);
    const auto doublings = std::max<std::size_t>(std::bit_width(tokens), 4) - 4;
    return doublings * 8 + static_cast<std::size_t>(tokens >> doublings);
  }
  [[nodiscard]] static std::uint64_t bit(std::uint32_t place) noexcept { return std::uint64_t{1} << (place % 64); }

  std::vector<Ranked> ranked_;
  std::vector<std::uint32_t> place_of_;  // of each waiting request, kNowhere if it is not ranked
  std::vector<std::uint32_t> places_;    // of each agent's requests, agent by agent
  std::vector<Range> places_of_;         // of each agent
  std::size_t first_class_ = 0;          // of the smallest reservation
  std::size_t classes_ = 0;              // from there on
  std::vector<std::uint64_t> up_to_;     // of each class: places of the reservations up to it
  std::vector<std::uint64_t> open_;      // places
  std::vector<std::uint32_t> opened_;    // the agents whose places are
  std::vector<std::uint64_t> favoured_;  // places
  std::vector<std::uint32_t> closed_;    // places that open() opened
};

template <class Fits>
std::uint32_t OptionOrder::next(std::uint32_t place, std::int64_t most, const Fits& fits) const {
  const std::uint64_t* small = places_up_to(most);
  return find(place, small != nullptr ? small : favoured_.data(), favoured_.data(), fits);
}

template <class Fits>
std::uint32_t OptionOrder::find(std::uint32_t place, const std::uint64_t* either, const std::uint64_t* other,
                                const Fits& fits) const {
  std::uint64_t below = (std::uint64_t{1} << (place % 64)) - 1;
  for (std::size_t word = place / 64; word < open_.size(); ++word) {
    for (auto bits = open_[word] & (either[word] | other[word]) & ~below; bits != 0; bits &= bits - 1) {
      const auto at = static_cast<std::uint32_t>(word * 64) + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (fits(ranked_[at])) {
        return at;
      }
    }
    below = 0;
  }
  return size();
}

}  // namespace topas::detail
