// What GreedyPack admits in order of arrival where gains are services, told without packing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "instance.hpp"
#include "option_order.hpp"

namespace topas::detail {

/// By arrival it is the order, and what fits, that decide what a set admits, and a service gains the same whatever else
/// is served: one walk along the order tells the sum. Places of the order are bits; a set's are those of another one
/// with the places of a few agents toggled, 64 at a time.
class ArrivalWalk {
 public:
  /// What a set has before anything is admitted, less the smallest reservation and a slot for each uncovered agent.
  struct Room {
    std::int64_t tokens = 0;
    std::int64_t slots = 0;
    std::int64_t uncovered = 0;  ///< agents without a kept request
  };

  /// `order`: of all waiting requests, by arrival.
  ArrivalWalk(const Instance& instance, const OptionOrder& order);

  /// The set that the next ones are told by.
  void start_from(std::span<const std::uint32_t> members);
  /// What is gained, up to rounding, by all that the set of start_from() admits with these agents toggled; none where
  /// an agent is left without a request, or where it is less than `enough`. The set must be feasible as SetBound sees
  /// it.
  [[nodiscard]] std::optional<double> gain_with_toggled(std::span<const std::uint32_t> agents, const Room& room,
                                                        double enough);

 private:
  static constexpr std::size_t kClasses = 16;

  struct Place {
    std::int64_t kv_tokens = 0;
    double gain = 0.0;
    std::uint32_t agent = 0;
    bool idle = false;     ///< its agent has no running request
    bool overdue = false;  ///< nothing overtakes it
  };
  /// The most that places from some word on gain.
  struct Most {
    double each = 0.0;
    double for_token = 0.0;
  };
  /// How far a walk has come.
  struct Walk {
    Room room;
    std::size_t size_class = 0;            ///< the last that may fit a covered agent
    const std::uint64_t* small = nullptr;  ///< places that are not far too large for a covered agent
    const std::uint64_t* other = nullptr;  ///< and those to be looked at in any case
    double gain = 0.0;
    double by_covering = 0.0;  ///< the most that the first requests of uncovered agents gain
    bool ended = false;        ///< nothing more is admitted
  };

  void classify_sizes();
  [[nodiscard]] std::size_t class_of(std::int64_t kv_tokens) const noexcept;
  void see_most();
  void see_room(Walk& walk) const noexcept;
  [[nodiscard]] double most_left(const Walk& walk, std::size_t word) const noexcept;
  void toggle(std::uint32_t agent, std::vector<std::uint64_t>& places) const noexcept;
  [[nodiscard]] const std::uint64_t* places_of(std::uint32_t agent) const noexcept {
    return of_agent_.data() + agent * words_;
  }
  [[nodiscard]] Walk start(std::span<const std::uint32_t> agents, const Room& room);
  void walk_word(std::size_t word, std::uint64_t open, Walk& walk);
  [[nodiscard]] bool admit(const Place& place, Walk& walk);

  const Instance& instance_;
  std::vector<Place> places_;
  std::size_t words_;                           // of a set of places
  std::vector<std::uint64_t> of_agent_;         // places of each agent
  std::vector<std::uint64_t> none_;             // no places
  std::vector<std::uint64_t> overdue_;          // places that nothing may overtake
  std::vector<std::uint64_t> idle_or_overdue_;  // and those of agents without a running request
  std::array<std::int64_t, kClasses> limit_{};  // of each class of sizes: its largest reservation
  std::vector<std::uint64_t> up_to_;            // of each class: places of the reservations up to its limit
  std::int64_t least_ = 0;                      // the smallest reservation
  std::vector<Most> most_from_;                 // of each word
  std::vector<double> by_covering_;             // of each idle agent: the most that a request gains
  std::vector<std::uint8_t> inside_;            // of each agent: in the set that is started from
  double base_by_covering_ = 0.0;               // of that set
  std::vector<std::uint64_t> base_;             // its open places
  std::vector<std::uint64_t> open_;             // of the set being walked, where it differs by more than two agents
  std::vector<std::uint32_t> covered_;          // of each agent: the last walk that covered it
  std::uint32_t walks_ = 0;
};

}  // namespace topas::detail
