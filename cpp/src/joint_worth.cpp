#include "joint_worth.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

#include "random.hpp"
#include "vector_loops.hpp"

namespace topas::detail {

namespace {

/// Of the density: sets leave more room than the one it is of, or less. Of many agents' sets those that come near the
/// best differ from the present one by little, and most leave less.
constexpr std::array<double, kPrices> kAround{1.0, 0.6, 1.3, 2.0};
constexpr std::array<double, kPrices> kAbove{1.0, 1.2, 1.5, 2.0};
constexpr std::size_t kManyAgents = 16;

/// What the last of the tasks gains that fill so many slots, for each slot; the best first.
double gain_of_last_slot(const Instance& instance, const GreedyPack& pack, std::int64_t slots) {
  struct Bundle {
    double gain = 0.0;
    std::int64_t slots = 0;
    [[nodiscard]] double each() const noexcept { return gain / static_cast<double>(slots); }
  };
  std::vector<Bundle> bundles;
  bundles.reserve(instance.waiting_tasks.size());
  for (const auto task : instance.waiting_tasks) {
    bundles.push_back({pack.most_gain_of(task), instance.tasks[task].waiting.size()});
  }
  std::sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) { return a.each() > b.each(); });
  for (const Bundle& bundle : bundles) {
    slots -= bundle.slots;
    if (slots < 0) {
      return bundle.each();
    }
  }
  return 0.0;
}

/// sums[k] = values[k] + more.
template <class Number>
void add_to_each(Number* __restrict sums, const Number* __restrict values, Number more, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    sums[k] = values[k] + more;
  }
}

}  // namespace

Prices choose_prices(const Instance& instance, const GreedyPack& pack, double density) {
  Prices prices;
  const auto& times = instance.agents.size() > kManyAgents ? kAbove : kAround;
  for (std::size_t price = 0; price < kPrices; ++price) {
    prices.token[price] = times[price] * density;
  }
  const auto slots = instance.slots_beside(0);
  if (slots < std::ssize(instance.waiting)) {
    prices.token.back() = 0.0;
    prices.slot.back() = gain_of_last_slot(instance, pack, slots);
  }
  return prices;
}

JointWorth::JointWorth(const Instance& instance, const GreedyPack& pack, const Prices& prices,
                       std::span<const std::uint32_t> tasks, std::vector<Worth> apart, PathScratch& scratch)
    : instance_(instance), prices_(prices), apart_(std::move(apart)), inside_(instance.agents.size(), 0) {
  group_at_.assign(std::bit_ceil(2 * tasks.size() + 1), kNobody);
  for (const auto task : tasks) {
    add_jointly(instance.tasks[task], scratch);
  }
  charge_covers(pack);
  index_groups();
}

/// An agent without a kept request is served at least one, worth it or not: it adds no more than it gains at best.
void JointWorth::charge_covers(const GreedyPack& pack) {
  for (std::uint32_t at = 0; at < instance_.agents.size(); ++at) {
    const AgentView& agent = instance_.agents[at];
    if (agent.running.size() > 0) {
      continue;
    }
    for (std::size_t price = 0; price < kPrices; ++price) {
      double best = -std::numeric_limits<double>::infinity();
      for (auto request = agent.waiting.begin; request < agent.waiting.end; ++request) {
        const auto tokens = static_cast<double>(instance_.waiting[request].kv_tokens);
        best = std::max(best, prices_.left_of(price, pack.most_gain(request), tokens));
      }
      apart_[at][price] += std::min(best, 0.0);
    }
  }
}

/// By agent, so that tasks with requests of the same agents share a group.
void JointWorth::list_siblings(const TaskView& task) {
  siblings_.clear();
  for (auto at = task.waiting.begin; at < task.waiting.end; ++at) {
    const RequestView& request = instance_.waiting[instance_.waiting_of_tasks[at]];
    siblings_.push_back({request.agent, request.bit, request.kv_tokens, true});
  }
  for (auto at = task.running.begin; instance_.config->count_running && at < task.running.end; ++at) {
    const RequestView& request = instance_.running[instance_.running_of_tasks[at]];
    siblings_.push_back({request.agent, request.bit, 0, false});
  }
  std::sort(siblings_.begin(), siblings_.end(),
            [](const Sibling& a, const Sibling& b) { return std::tie(a.agent, a.bit) < std::tie(b.agent, b.bit); });
}

/// What every set of siblings completes, gains and takes; those of the first siblings, once more with each further one.
void JointWorth::take_sets(const TaskView& task, std::span<const double> gains) {
  const std::size_t sets = std::size_t{1} << siblings_.size();
  gains_.resize(sets);
  tokens_.resize(sets);
  slots_.resize(sets);
  tokens_[0] = slots_[0] = 0.0;
  bool same_sets = true;  // as those of the model, none running
  for (std::size_t at = 0; at < siblings_.size(); ++at) {
    const Sibling& sibling = siblings_[at];
    const std::size_t half = std::size_t{1} << at;
    add_to_each(&tokens_[half], tokens_.data(), static_cast<double>(sibling.kv_tokens), half);
    add_to_each(&slots_[half], slots_.data(), sibling.waiting ? 1.0 : 0.0, half);
    same_sets = same_sets && sibling.bit == at && sibling.waiting;
  }
  const double scale = task.scale();
  if (same_sets) {
    gains = gains.first(sets);  // those behind it complete some that are not listed
    std::transform(gains.begin(), gains.end(), gains_.begin(), [scale](double gain) { return scale * gain; });
    return;
  }
  completes_.resize(sets);
  runs_.resize(sets);
  completes_[0] = runs_[0] = 0;
  for (std::size_t at = 0; at < siblings_.size(); ++at) {
    const std::size_t half = std::size_t{1} << at;
    const std::uint32_t bit = std::uint32_t{1} << siblings_[at].bit;
    add_to_each(&completes_[half], completes_.data(), bit, half);
    add_to_each(&runs_[half], runs_.data(), siblings_[at].waiting ? 0 : bit, half);
  }
  for (std::size_t set = 0; set < sets; ++set) {
    gains_[set] = scale * (gains[completes_[set]] - gains[runs_[set]]);
  }
}

/// For every set of siblings that may be served: what the best choice among the waiting ones is worth, given that the
/// running ones complete.
void JointWorth::add_jointly(const TaskView& task, PathScratch& scratch) {
  list_siblings(task);
  take_sets(task, task.model->gains_of_sets(scratch));
  const std::size_t sets = gains_.size();
  worth_.resize(sets * kPrices);
  leave_of_gains(worth_.data(), gains_.data(), tokens_.data(), slots_.data(), sets, prices_.token, prices_.slot);
  std::size_t waiting = 0;  // these need not be admitted; running ones complete
  for (std::size_t at = 0; at < siblings_.size(); ++at) {
    waiting |= siblings_[at].waiting ? std::size_t{1} << at : 0;
  }
  raise_to_smaller_sets(worth_.data(), sets, waiting);
  add(&worths_[group_of_siblings().worth], worth_.data(), worth_.size());
  const std::uint64_t none = 0;
  size_ += task.scale() * task.model->expected_path({&none, 1}, scratch);
}

/// The group of the task's agents.
JointWorth::Group& JointWorth::group_of_siblings() {
  std::uint64_t hash = siblings_.size();
  for (const Sibling& sibling : siblings_) {
    hash = mix(hash ^ sibling.agent);
  }
  const std::size_t mask = group_at_.size() - 1;
  std::size_t slot = hash & mask;
  for (; group_at_[slot] != kNobody; slot = (slot + 1) & mask) {
    Group& group = groups_[group_at_[slot]];
    if (group.hash == hash && group.agents.size() == siblings_.size() &&
        std::equal(siblings_.begin(), siblings_.end(), agents_.begin() + group.agents.begin,
                   [](const Sibling& sibling, std::uint32_t agent) { return agent == sibling.agent; })) {
      return group;
    }
  }
  group_at_[slot] = static_cast<std::uint32_t>(groups_.size());
  Group& group = groups_.emplace_back();
  group.hash = hash;
  group.agents.begin = static_cast<std::uint32_t>(agents_.size());
  for (const Sibling& sibling : siblings_) {
    agents_.push_back(sibling.agent);
  }
  group.agents.end = static_cast<std::uint32_t>(agents_.size());
  group.worth = worths_.size();
  worths_.resize(worths_.size() + worth_.size());
  return group;
}

void JointWorth::index_groups() {
  places_of_.assign(instance_.agents.size(), {});
  for (Group& group : groups_) {
    group.members.begin = static_cast<std::uint32_t>(members_.size());
    for (auto at = group.agents.begin; at < group.agents.end; ++at) {  // ascending
      if (members_.size() == group.members.begin || members_.back().agent != agents_[at]) {
        members_.push_back({agents_[at], 0});
        ++places_of_[agents_[at]].end;
      }
      members_.back().bits |= std::size_t{1} << (at - group.agents.begin);
    }
    group.members.end = static_cast<std::uint32_t>(members_.size());
  }
  lay_out(places_of_);
  places_.resize(members_.size());
  for (std::uint32_t at = 0; at < groups_.size(); ++at) {
    for (const Member& member : members_of(groups_[at])) {
      places_[places_of_[member.agent].end++] = {at, member.bits};
    }
  }
}

void JointWorth::start_from(std::span<const std::uint32_t> members) {
  std::fill(inside_.begin(), inside_.end(), 0);
  for (Group& group : groups_) {
    group.set = 0;
  }
  base_ = {};
  each_told_ = false;
  told_with_ = kNobody;
  for (const auto member : members) {
    inside_[member] = 1;
    add_worth(base_, 1.0, apart_[member].data());
    for (const Place& place : places_at(member)) {
      groups_[place.group].set |= place.bits;
    }
  }
  for (const Group& group : groups_) {
    add_worth(base_, 1.0, worth_of(group, group.set));
  }
}

void JointWorth::add_worth(Worth& sum, double times, const double* values) noexcept {
  for (std::size_t price = 0; price < kPrices; ++price) {
    sum[price] += times * values[price];
  }
}

Worth JointWorth::with_toggled(std::span<const std::uint32_t> agents) {
  if (!agents.empty() && agents.size() <= 2) {
    return with_toggled(agents.front(), agents.back());
  }
  Worth worth = base_;
  changed_.clear();
  for (const auto agent : agents) {
    add_worth(worth, inside_[agent] != 0 ? -1.0 : 1.0, apart_[agent].data());
    for (const Place& place : places_at(agent)) {
      Group& group = groups_[place.group];
      if (group.toggled == 0) {
        changed_.push_back(place.group);
      }
      group.toggled |= place.bits;
    }
  }
  for (const auto at : changed_) {
    Group& group = groups_[at];
    add_worth(worth, -1.0, worth_of(group, group.set));
    add_worth(worth, 1.0, worth_of(group, group.set ^ group.toggled));
    group.toggled = 0;
  }
  return worth;
}

Worth JointWorth::with_toggled(std::uint32_t first, std::uint32_t second) {
  tell_each();
  Worth worth = base_;
  add_worth(worth, 1.0, each_[first].data());
  if (second != first) {
    add_worth(worth, 1.0, each_[second].data());
    // Of swaps those that drop the same agent follow one another, whichever of the two comes first.
    const bool by_second = inside_[second] != 0;
    tell_with(by_second ? second : first);
    add_worth(worth, 1.0, jointly_[by_second ? first : second].data());
  }
  return worth;
}

void JointWorth::tell_each() {
  if (each_told_) {
    return;
  }
  each_told_ = true;
  each_.assign(instance_.agents.size(), Worth{});
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    add_worth(each_[agent], inside_[agent] != 0 ? -1.0 : 1.0, apart_[agent].data());
  }
  for (const Group& group : groups_) {
    for (const Member& member : members_of(group)) {
      add_worth(each_[member.agent], -1.0, worth_of(group, group.set));
      add_worth(each_[member.agent], 1.0, worth_of(group, group.set ^ member.bits));
    }
  }
}

/// In the groups of both agents, and only there, the two together change something else than the sum of each.
void JointWorth::tell_with(std::uint32_t agent) {
  if (told_with_ == agent) {
    return;
  }
  told_with_ = agent;
  jointly_.resize(instance_.agents.size());
  for (const auto other : with_) {
    jointly_[other] = {};
  }
  with_.clear();
  for (const Place& place : places_at(agent)) {
    const Group& group = groups_[place.group];
    const std::size_t without = group.set;
    for (const Member& member : members_of(group)) {
      if (member.agent == agent) {
        continue;
      }
      // The smaller agent first, so that the sums are the same to the bit whichever agent asks.
      const auto [lower, higher] =
          member.agent < agent ? std::pair(member.bits, place.bits) : std::pair(place.bits, member.bits);
      Worth& both = jointly_[member.agent];
      add_worth(both, 1.0, worth_of(group, without));
      add_worth(both, -1.0, worth_of(group, without ^ lower));
      add_worth(both, -1.0, worth_of(group, without ^ higher));
      add_worth(both, 1.0, worth_of(group, without ^ place.bits ^ member.bits));
      with_.push_back(member.agent);
    }
  }
}

}  // namespace topas::detail
