#include "option_order.hpp"

#include <algorithm>
#include <utility>

namespace topas::detail {

void OptionOrder::assign(std::vector<Ranked> ranked, std::size_t agents, std::size_t requests) {
  ranked_ = std::move(ranked);
  open_.assign(ranked_.size() / 64 + 1, 0);
  favoured_ = open_;
  opened_.clear();
  closed_.clear();
  mark_runs();
  index_places(agents, requests);
  classify_sizes();
}

void OptionOrder::mark_runs() {
  std::uint32_t run_end = size();
  for (auto at = size(); at-- > 0;) {
    if (at + 1 < size() && ranked_[at].option.density != ranked_[at + 1].option.density) {
      run_end = at + 1;
    }
    ranked_[at].run_end = run_end;
  }
}

void OptionOrder::index_places(std::size_t agents, std::size_t requests) {
  places_of_.assign(agents, {});
  for (const Ranked& ranked : ranked_) {
    ++places_of_[ranked.agent].end;
  }
  lay_out(places_of_);
  places_.resize(ranked_.size());
  place_of_.assign(requests, kNowhere);
  for (std::uint32_t place = 0; place < size(); ++place) {
    places_[places_of_[ranked_[place].agent].end++] = place;
    place_of_[ranked_[place].option.request] = place;
  }
}

void OptionOrder::classify_sizes() {
  classes_ = 0;
  if (ranked_.empty()) {
    return;
  }
  const auto [least, most] = std::minmax_element(
      ranked_.begin(), ranked_.end(), [](const Ranked& a, const Ranked& b) { return a.kv_tokens < b.kv_tokens; });
  first_class_ = class_of(least->kv_tokens);
  classes_ = class_of(most->kv_tokens) - first_class_ + 1;
  const std::size_t words = open_.size();
  up_to_.assign(classes_ * words, 0);
  for (std::uint32_t place = 0; place < size(); ++place) {
    up_to_[(class_of(ranked_[place].kv_tokens) - first_class_) * words + place / 64] |= bit(place);
  }
  for (std::size_t at = words; at < up_to_.size(); ++at) {
    up_to_[at] |= up_to_[at - words];
  }
}

void OptionOrder::open(std::span<const std::uint32_t> members) {
  for (const auto place : closed_) {
    open_[place / 64] |= bit(place);
  }
  closed_.clear();
  std::fill(favoured_.begin(), favoured_.end(), 0);
  auto before = opened_.begin();
  auto now = members.begin();
  while (before != opened_.end() || now != members.end()) {
    if (now == members.end() || (before != opened_.end() && *before < *now)) {
      toggle(*before++, open_);
    } else if (before == opened_.end() || *now < *before) {
      toggle(*now++, open_);
    } else {
      ++before;
      ++now;
    }
  }
  opened_.assign(members.begin(), members.end());
}

void OptionOrder::include(std::uint32_t agent) {
  opened_.insert(std::upper_bound(opened_.begin(), opened_.end(), agent), agent);
  toggle(agent, open_);
}

void OptionOrder::toggle(std::uint32_t agent, std::vector<std::uint64_t>& places) const noexcept {
  const Range range = places_of_[agent];
  for (auto at = range.begin; at < range.end; ++at) {
    places[places_[at] / 64] ^= bit(places_[at]);
  }
}

bool OptionOrder::close(std::uint32_t request) {
  const std::uint32_t place = place_of_[request];
  if (place == kNowhere || (open_[place / 64] & bit(place)) == 0) {
    return false;
  }
  open_[place / 64] &= ~bit(place);
  closed_.push_back(place);
  return true;
}

}  // namespace topas::detail
