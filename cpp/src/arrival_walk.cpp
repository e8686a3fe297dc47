#include "arrival_walk.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace topas::detail {

ArrivalWalk::ArrivalWalk(const Instance& instance, const OptionOrder& order)
    : instance_(instance),
      words_(order.size() / 64 + 1),
      of_agent_(instance.agents.size() * words_, 0),
      overdue_(words_, 0),
      covered_(instance.agents.size(), 0) {
  places_.reserve(order.size());
  for (const Ranked& ranked : order.all()) {
    const std::size_t word = places_.size() / 64;
    const std::uint64_t bit = std::uint64_t{1} << (places_.size() % 64);
    const bool overdue = instance.tasks[instance.waiting[ranked.option.request].task].overdue;
    places_.push_back({ranked.kv_tokens, ranked.option.gain, ranked.agent, overdue});
    of_agent_[ranked.agent * words_ + word] |= bit;
    overdue_[word] |= overdue ? bit : 0;
  }
  classify_sizes();
}

/// Classes of about as many places each, by a sample of the reservations.
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
    limit_[at] = sample.empty() || at + 1 == kClasses ? most : sample[(at + 1) * kSample / kClasses];
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

void ArrivalWalk::toggle(std::uint32_t agent, std::vector<std::uint64_t>& places) const noexcept {
  const std::uint64_t* own = of_agent_.data() + agent * words_;
  for (std::size_t word = 0; word < words_; ++word) {
    places[word] ^= own[word];
  }
}

void ArrivalWalk::start_from(std::span<const std::uint32_t> members) {
  base_.assign(words_, 0);
  for (const auto member : members) {
    toggle(member, base_);
  }
}

std::optional<double> ArrivalWalk::gain_with_toggled(std::span<const std::uint32_t> agents, const Room& room) {
  open_ = base_;
  for (const auto agent : agents) {
    toggle(agent, open_);
  }
  ++walks_;
  Walk walk{room, up_to(room.tokens)};
  for (std::size_t word = 0; word < words_ && !walk.ended; ++word) {
    if (walk.room.tokens < least_ || walk.room.slots < 1) {
      break;  // what would end the walk changes nothing any more
    }
    walk_word(word, walk);
  }
  return walk.room.uncovered > 0 ? std::nullopt : std::optional(walk.gain);
}

/// Looks at the places of a word that may fit, or end the walk.
void ArrivalWalk::walk_word(std::size_t word, Walk& walk) {
  for (auto bits = open_[word] & (walk.small[word] | overdue_[word]); bits != 0;) {
    const Place& place = places_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
    bits &= bits - 1;
    if (admit(place, walk)) {
      bits &= walk.small[word] | overdue_[word];
    } else if (place.overdue) {
      walk.ended = true;
      return;
    }
  }
}

/// Admits the request of a place if it fits, as GreedyPack::room_for() has it.
bool ArrivalWalk::admit(const Place& place, Walk& walk) {
  Room left = walk.room;
  const AgentView& agent = instance_.agents[place.agent];
  if (left.uncovered > 0 && agent.running.size() == 0 && covered_[place.agent] != walks_) {
    left.cover_tokens -= agent.least_waiting_kv;
    --left.uncovered;
  }
  left.tokens -= place.kv_tokens;
  --left.slots;
  if (left.tokens < left.cover_tokens || left.slots < left.uncovered) {
    return false;
  }
  walk.room = left;
  walk.small = up_to(left.tokens);
  walk.gain += place.gain;
  covered_[place.agent] = walks_;
  return true;
}

}  // namespace topas::detail
