#include "arrival_walk.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace topas::detail {

ArrivalWalk::ArrivalWalk(const Instance& instance, const OptionOrder& order)
    : instance_(instance),
      words_(order.size() / 64 + 1),
      of_agent_(instance.agents.size() * words_, 0),
      none_(words_, 0),
      overdue_(words_, 0),
      idle_or_overdue_(words_, 0),
      most_from_(words_),
      by_covering_(instance.agents.size(), 0.0),
      covered_(instance.agents.size(), 0) {
  places_.reserve(order.size());
  for (const Ranked& ranked : order.all()) {
    const std::size_t word = places_.size() / 64;
    const std::uint64_t bit = std::uint64_t{1} << (places_.size() % 64);
    const bool idle = instance.agents[ranked.agent].running.size() == 0;
    const bool overdue = instance.tasks[instance.waiting[ranked.option.request].task].overdue;
    places_.push_back({ranked.kv_tokens, ranked.option.gain, ranked.agent, idle, overdue});
    of_agent_[ranked.agent * words_ + word] |= bit;
    overdue_[word] |= overdue ? bit : 0;
    idle_or_overdue_[word] |= idle || overdue ? bit : 0;
  }
  classify_sizes();
  see_most();
}

/// By a sample of the reservations; the smaller ones are told apart better, since most walks end for want of little
/// room.
void ArrivalWalk::classify_sizes() {
  constexpr std::size_t kSample = 8 * kClasses;
  std::vector<std::int64_t> sample;
  sample.reserve(kSample);
  std::int64_t most = 0;
  least_ = std::numeric_limits<std::int64_t>::max();
  for (const Place& place : places_) {
    least_ = std::min(least_, place.kv_tokens);
    most = std::max(most, place.kv_tokens);
  }
  for (std::size_t at = 0; at < kSample && !places_.empty(); ++at) {
    sample.push_back(places_[at * places_.size() / kSample].kv_tokens);
  }
  std::sort(sample.begin(), sample.end());
  for (std::size_t at = 0; at < kClasses; ++at) {
    limit_[at] =
        sample.empty() || at + 1 == kClasses ? most : sample[(at + 1) * (at + 1) * kSample / (kClasses * kClasses)];
  }
  up_to_.assign(kClasses * words_, 0);
  for (std::size_t at = 0; at < places_.size(); ++at) {
    up_to_[class_of(places_[at].kv_tokens) * words_ + at / 64] |= std::uint64_t{1} << (at % 64);
  }
  for (std::size_t at = words_; at < up_to_.size(); ++at) {
    up_to_[at] |= up_to_[at - words_];
  }
}

/// The first class that has every reservation up to so many tokens; the last one for more than there is.
std::size_t ArrivalWalk::class_of(std::int64_t kv_tokens) const noexcept {
  return static_cast<std::size_t>(std::lower_bound(limit_.begin(), limit_.end() - 1, kv_tokens) - limit_.begin());
}

/// What bounds the rest of a walk.
void ArrivalWalk::see_most() {
  for (auto at = places_.size(); at-- > 0;) {
    const Place& place = places_[at];
    if (at + 1 < places_.size() && (at + 1) % 64 == 0) {
      most_from_[at / 64] = most_from_[at / 64 + 1];
    }
    Most& most = most_from_[at / 64];
    most.each = std::max(most.each, place.gain);
    most.for_token = std::max(most.for_token, place.gain / static_cast<double>(place.kv_tokens));
    if (place.idle) {
      by_covering_[place.agent] = std::max(by_covering_[place.agent], place.gain);
    }
  }
}

void ArrivalWalk::toggle(std::uint32_t agent, std::vector<std::uint64_t>& places) const noexcept {
  const std::uint64_t* own = places_of(agent);
  for (std::size_t word = 0; word < words_; ++word) {
    places[word] ^= own[word];
  }
}

void ArrivalWalk::start_from(std::span<const std::uint32_t> members) {
  base_.assign(words_, 0);
  base_by_covering_ = 0.0;
  inside_.assign(by_covering_.size(), 0);
  for (const auto member : members) {
    toggle(member, base_);
    base_by_covering_ += by_covering_[member];
    inside_[member] = 1;
  }
}

std::optional<double> ArrivalWalk::gain_with_toggled(std::span<const std::uint32_t> agents, const Room& room,
                                                     double enough) {
  Walk walk = start(agents, room);
  const std::uint64_t* from = base_.data();
  if (agents.size() > 2) {
    open_ = base_;
    for (const auto agent : agents.subspan(2)) {
      toggle(agent, open_);
    }
    from = open_.data();
  }
  const std::uint64_t* first = agents.empty() ? none_.data() : places_of(agents[0]);
  const std::uint64_t* second = agents.size() < 2 ? none_.data() : places_of(agents[1]);
  for (std::size_t word = 0; word < words_ && !walk.ended; ++word) {
    walk_word(word, from[word] ^ first[word] ^ second[word], walk);
    if (walk.gain + most_left(walk, word) < enough) {
      return std::nullopt;
    }
  }
  return walk.room.uncovered > 0 ? std::nullopt : std::optional(walk.gain);
}

/// A walk before its first step.
ArrivalWalk::Walk ArrivalWalk::start(std::span<const std::uint32_t> agents, const Room& room) {
  ++walks_;
  Walk walk{room, kClasses - 1};
  walk.by_covering = base_by_covering_;
  for (const auto agent : agents) {
    walk.by_covering += inside_[agent] != 0 ? -by_covering_[agent] : by_covering_[agent];
  }
  see_room(walk);
  return walk;
}

/// What is still admitted gains no more, from this word on.
double ArrivalWalk::most_left(const Walk& walk, std::size_t word) const noexcept {
  const Most& most = most_from_[word];
  const double by_room = static_cast<double>(walk.room.tokens) * most.for_token;
  const double by_slots = static_cast<double>(walk.room.slots) * most.each;
  return std::min(by_room, by_slots) + walk.by_covering;
}

/// There is less and less of it. An agent without a request so far may take more than others: what is set aside for it.
void ArrivalWalk::see_room(Walk& walk) const noexcept {
  const bool covered = walk.room.uncovered == 0;
  walk.ended = covered && (walk.room.tokens < least_ || walk.room.slots < 1);
  while (walk.size_class > 0 && limit_[walk.size_class - 1] >= walk.room.tokens) {
    --walk.size_class;
  }
  walk.small = up_to_.data() + walk.size_class * words_;
  walk.other = covered ? overdue_.data() : idle_or_overdue_.data();
}

/// Looks at the open places of a word that may fit, or end the walk.
inline void ArrivalWalk::walk_word(std::size_t word, std::uint64_t open, Walk& walk) {
  for (auto bits = open & (walk.small[word] | walk.other[word]); bits != 0 && !walk.ended;) {
    const Place& place = places_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
    bits &= bits - 1;
    if (admit(place, walk)) {
      bits &= walk.small[word] | walk.other[word];
    } else {
      walk.ended = place.overdue;
    }
  }
}

/// Admits the request of a place if it fits, as GreedyPack::room_for() has it: the first of an agent without one takes
/// what is set aside for it.
inline bool ArrivalWalk::admit(const Place& place, Walk& walk) {
  Room& room = walk.room;
  const bool covers = room.uncovered > 0 && place.idle && covered_[place.agent] != walks_;
  const std::int64_t tokens = place.kv_tokens - (covers ? instance_.agents[place.agent].least_waiting_kv : 0);
  if (tokens > room.tokens || (!covers && room.slots < 1)) {
    return false;
  }
  room.tokens -= tokens;
  if (covers) {
    covered_[place.agent] = walks_;
    --room.uncovered;
    walk.by_covering -= by_covering_[place.agent];
  } else {
    --room.slots;
  }
  walk.gain += place.gain;
  see_room(walk);
  return true;
}

}  // namespace topas::detail
