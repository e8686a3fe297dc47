#include "support/naive.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace topas::testing {

namespace {

using detail::Instance;
using detail::RequestView;

constexpr double kLowest = -std::numeric_limits<double>::infinity();

bool same(double left, double right) {
  return left == right || (std::isfinite(left) && std::isfinite(right) &&
                           std::abs(left - right) <= 1e-12 * std::max({1.0, std::abs(left), std::abs(right)}));
}

/// reaches[a][b]: a path of one edge or more leads from a to b.
std::vector<std::vector<bool>> reachability(const Adjacency& after) {
  const std::size_t size = after.size();
  std::vector<std::vector<bool>> reaches(size, std::vector<bool>(size, false));
  for (std::size_t stage = 0; stage < size; ++stage) {
    for (const auto before : after[stage]) {
      reaches[before][stage] = true;
    }
  }
  for (std::size_t via = 0; via < size; ++via) {
    for (std::size_t from = 0; from < size; ++from) {
      for (std::size_t to = 0; to < size; ++to) {
        reaches[from][to] = reaches[from][to] || (reaches[from][via] && reaches[via][to]);
      }
    }
  }
  return reaches;
}

std::vector<std::uint32_t> kept_stages(const std::vector<std::vector<bool>>& reaches,
                                       const std::vector<bool>& finished) {
  std::vector<std::uint32_t> kept;
  for (std::uint32_t stage = 0; stage < finished.size(); ++stage) {
    bool behind = false;
    bool ahead = false;
    for (std::uint32_t other = 0; other < finished.size(); ++other) {
      behind = behind || (!finished[other] && reaches[other][stage]);
      ahead = ahead || (!finished[other] && reaches[stage][other]);
    }
    if (!finished[stage] || (behind && ahead)) {
      kept.push_back(stage);
    }
  }
  return kept;
}

}  // namespace

std::vector<StageSet> naive_blocks(const Adjacency& after, const std::vector<bool>& finished) {
  const auto reaches = reachability(after);
  const auto kept = kept_stages(reaches, finished);
  std::vector<std::uint32_t> separators;
  for (const auto stage : kept) {
    const auto comparable = [&](auto other) {
      return other == stage || reaches[stage][other] || reaches[other][stage];
    };
    if (std::all_of(kept.begin(), kept.end(), comparable)) {
      separators.push_back(stage);
    }
  }
  std::map<std::int64_t, StageSet> blocks;  // runs at even places, separators at odd ones
  for (const auto stage : kept) {
    const auto before =
        std::count_if(separators.begin(), separators.end(), [&](auto separator) { return reaches[separator][stage]; });
    const bool separates = std::find(separators.begin(), separators.end(), stage) != separators.end();
    blocks[2 * before + (separates ? 1 : 0)].insert(stage);
  }
  std::vector<StageSet> out;
  for (const auto& [place, block] : blocks) {
    out.push_back(block);
  }
  return out;
}

double naive_longest_path(const Adjacency& after, const std::vector<double>& weights) {
  std::map<std::uint32_t, double> known;
  const std::function<double(std::uint32_t)> up_to = [&](std::uint32_t stage) {
    if (const auto found = known.find(stage); found != known.end()) {
      return found->second;
    }
    double before = 0.0;
    for (const auto other : after[stage]) {
      before = std::max(before, up_to(other));
    }
    return known[stage] = before + weights[stage];
  };
  double longest = 0.0;
  for (std::uint32_t stage = 0; stage < after.size(); ++stage) {
    longest = std::max(longest, up_to(stage));
  }
  return longest;
}

double naive_expected_path(const Adjacency& after, const Stages& stages, const std::vector<double>& reduction) {
  Totals supports(after.size());
  for (std::uint32_t stage = 0; stage < after.size(); ++stage) {
    const auto& outlook = stages[stage];
    for (const double total : outlook.sorted_totals) {
      if (outlook.service_s == 0.0 || total > outlook.service_s) {
        supports[stage].push_back(total - outlook.service_s);
      }
    }
    if (outlook.finished) {
      supports[stage] = {0.0};
    } else if (supports[stage].empty()) {
      supports[stage] = {outlook.request_s};
    }
  }
  std::vector<double> weights(after.size(), 0.0);
  const std::function<double(std::size_t)> mean_from = [&](std::size_t stage) {
    if (stage == after.size()) {
      return naive_longest_path(after, weights);
    }
    double sum = 0.0;
    for (const double residual : supports[stage]) {
      weights[stage] = std::max(residual - reduction[stage], 0.0);
      sum += mean_from(stage + 1);
    }
    return sum / static_cast<double>(supports[stage].size());
  };
  return mean_from(0);
}

namespace {

/// The state of one packing.
class Packing {
 public:
  Packing(const Instance& instance, const Members& members) : instance_(instance), members_(members) {}

  [[nodiscard]] std::optional<NaiveAllocation> run();

 private:
  [[nodiscard]] bool inside(std::uint32_t agent) const {
    return std::find(members_.begin(), members_.end(), agent) != members_.end();
  }
  [[nodiscard]] bool start();
  [[nodiscard]] std::set<std::uint32_t> uncovered() const;
  [[nodiscard]] std::int64_t least_kv(std::uint32_t agent) const;
  [[nodiscard]] double expected_path(std::uint32_t task, std::optional<std::uint32_t> also) const;
  [[nodiscard]] double backlog(std::uint32_t agent) const;
  [[nodiscard]] double gain(std::uint32_t request) const;
  [[nodiscard]] bool fits(std::uint32_t request) const;
  [[nodiscard]] std::vector<std::uint32_t> options() const;
  [[nodiscard]] auto rank(std::uint32_t request) const;
  [[nodiscard]] std::optional<std::uint32_t> first_in_turn() const;
  [[nodiscard]] std::optional<std::uint32_t> best() const;
  [[nodiscard]] double score() const;
  [[nodiscard]] double move_s() const;
  void emit();

  const Instance& instance_;
  const Members& members_;
  std::int64_t free_ = 0;
  std::int64_t slots_ = std::numeric_limits<std::int64_t>::max();
  std::size_t kept_ = 0;
  std::vector<std::uint32_t> admitted_;
  double gains_ = 0.0;
  std::vector<NaiveAllocation> emitted_;
};

bool Packing::start() {
  const Config& config = *instance_.config;
  free_ = config.kv_capacity_tokens;
  for (const auto member : members_) {
    free_ -= instance_.agents[member].prefix_tokens;
  }
  for (const auto& request : instance_.running) {
    if (inside(request.agent)) {
      free_ -= request.kv_tokens;
      ++kept_;
    } else if (request.firm) {
      return false;
    }
  }
  const auto preempted = static_cast<std::int64_t>(instance_.running.size() - kept_);
  if (config.action_cap > 0) {
    slots_ = config.action_cap;
  }
  if (config.max_running_requests > 0) {
    slots_ = std::min(slots_, config.max_running_requests - static_cast<std::int64_t>(kept_));
  }
  return free_ >= 0 && slots_ >= 0 && (config.action_cap == 0 || preempted <= config.action_cap);
}

std::set<std::uint32_t> Packing::uncovered() const {
  std::set<std::uint32_t> out(members_.begin(), members_.end());
  for (const auto& request : instance_.running) {
    out.erase(request.agent);
  }
  for (const auto request : admitted_) {
    out.erase(instance_.waiting[request].agent);
  }
  return out;
}

std::int64_t Packing::least_kv(std::uint32_t agent) const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& request : instance_.waiting) {
    if (request.agent == agent) {
      least = std::min(least, request.kv_tokens);
    }
  }
  return least;
}

double Packing::expected_path(std::uint32_t task, std::optional<std::uint32_t> also) const {
  const auto& model = *instance_.tasks[task].model;
  std::vector<std::uint64_t> completed(model.words(), 0);
  const auto complete = [&](const RequestView& request) {
    if (request.task == task) {
      completed[request.bit / 64] |= std::uint64_t{1} << (request.bit % 64);
    }
  };
  for (const auto request : admitted_) {
    complete(instance_.waiting[request]);
  }
  for (const auto& request : instance_.running) {
    if (instance_.config->count_running && inside(request.agent)) {
      complete(request);
    }
  }
  if (also.has_value()) {
    complete(instance_.waiting[*also]);
  }
  detail::PathScratch scratch;
  return model.expected_path(completed, scratch);
}

double Packing::backlog(std::uint32_t agent) const {
  const std::int64_t room = instance_.config->kv_capacity_tokens - instance_.agents[agent].prefix_tokens;
  std::int64_t tokens = 0;
  for (const auto* requests : {&instance_.waiting, &instance_.running}) {
    for (const auto& request : *requests) {
      tokens += request.agent == agent && request.kv_tokens <= room ? request.kv_tokens : 0;
    }
  }
  const double batches = tokens > 0 ? static_cast<double>(tokens) / static_cast<double>(room) : 0.0;
  return 1.0 + instance_.config->backlog_weight * batches;
}

double Packing::gain(std::uint32_t request) const {
  const auto task = instance_.waiting[request].task;
  if (instance_.config->gain_model == GainModel::service) {
    return instance_.tasks[task].age_factor * instance_.waiting[request].service_s *
           backlog(instance_.waiting[request].agent);
  }
  return instance_.tasks[task].age_factor * (expected_path(task, std::nullopt) - expected_path(task, request));
}

bool Packing::fits(std::uint32_t request) const {
  const RequestView& view = instance_.waiting[request];
  auto others = uncovered();
  others.erase(view.agent);
  std::int64_t reserved = 0;
  for (const auto agent : others) {
    reserved += least_kv(agent);
  }
  return view.kv_tokens + reserved <= free_ && 1 + static_cast<std::int64_t>(others.size()) <= slots_;
}

/// Waiting requests of the set that are not admitted.
std::vector<std::uint32_t> Packing::options() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t request = 0; request < instance_.waiting.size(); ++request) {
    const bool gone = std::find(admitted_.begin(), admitted_.end(), request) != admitted_.end();
    if (!gone && inside(instance_.waiting[request].agent)) {
      out.push_back(request);
    }
  }
  return out;
}

auto Packing::rank(std::uint32_t request) const {
  const RequestView& view = instance_.waiting[request];
  const bool represented = instance_.config->admit_order == AdmitOrder::density &&
                           std::any_of(admitted_.begin(), admitted_.end(),
                                       [&](auto other) { return instance_.waiting[other].task == view.task; });
  return std::tuple(!represented, instance_.tasks[view.task].arrival, *view.id);
}

/// The first that fits, if no overdue one comes before it.
std::optional<std::uint32_t> Packing::first_in_turn() const {
  auto queue = options();
  std::sort(queue.begin(), queue.end(), [this](auto left, auto right) { return rank(left) < rank(right); });
  const auto first = std::find_if(queue.begin(), queue.end(), [this](auto request) {
    return fits(request) || instance_.tasks[instance_.waiting[request].task].overdue;
  });
  return first == queue.end() || !fits(*first) ? std::nullopt : std::optional(*first);
}

std::optional<std::uint32_t> Packing::best() const {
  if (instance_.config->admit_order == AdmitOrder::arrival) {
    return first_in_turn();
  }
  const auto density = [this](std::uint32_t request) {
    return gain(request) / static_cast<double>(instance_.waiting[request].kv_tokens);
  };
  auto fitting = options();
  std::erase_if(fitting, [this](auto request) { return !fits(request); });
  double highest = kLowest;
  for (const auto request : fitting) {
    highest = std::max(highest, density(request));
  }
  std::erase_if(fitting, [&](auto request) { return !same(density(request), highest); });
  const auto first =
      std::min_element(fitting.begin(), fitting.end(), [&](auto left, auto right) { return rank(left) < rank(right); });
  return first == fitting.end() ? std::nullopt : std::optional(*first);
}

double Packing::move_s() const {
  std::set<std::uint32_t> tasks;
  for (const auto request : admitted_) {
    if (!instance_.agents[instance_.waiting[request].agent].resident) {
      tasks.insert(instance_.waiting[request].task);
    }
  }
  const Config& config = *instance_.config;
  const bool once = config.move_model == MoveModel::once;
  std::int64_t moved = once ? 0 : instance_.idle_resident_tokens;
  for (std::uint32_t agent = 0; agent < instance_.agents.size(); ++agent) {
    const auto& view = instance_.agents[agent];
    const bool leaves = view.resident && !inside(agent);
    const bool enters = !view.resident && inside(agent) && (!once || !tasks.empty());
    moved += leaves || enters ? view.prefix_tokens : 0;
  }
  const std::size_t waits = once ? 1 : tasks.size();
  return config.move_weight * static_cast<double>(waits) * config.kv_bytes_per_token / config.swap_bytes_per_s *
         static_cast<double>(moved);
}

double Packing::score() const {
  const Config& config = *instance_.config;
  double value = gains_ - move_s();
  for (const auto member : members_) {
    const auto& agent = instance_.agents[member];
    value += config.reuse_weight * static_cast<double>(agent.next_stages) * config.kv_bytes_per_token *
             static_cast<double>(agent.prefix_tokens) / config.swap_bytes_per_s;
  }
  for (const auto& request : instance_.running) {
    value -= inside(request.agent) ? 0.0 : request.redo + request.revoke;
  }
  return value;
}

void Packing::emit() {
  if (uncovered().empty()) {
    emitted_.push_back({admitted_, kept_, instance_.running.size() - kept_, score()});
  }
}

std::optional<NaiveAllocation> Packing::run() {
  if (!start()) {
    return std::nullopt;
  }
  std::int64_t reserved = 0;
  for (const auto agent : uncovered()) {
    if (least_kv(agent) > free_) {
      return std::nullopt;
    }
    reserved += least_kv(agent);
  }
  if (reserved > free_ || static_cast<std::int64_t>(uncovered().size()) > slots_) {
    return std::nullopt;
  }
  emit();
  for (auto request = best(); request.has_value(); request = best()) {
    gains_ += gain(*request);
    admitted_.push_back(*request);
    free_ -= instance_.waiting[*request].kv_tokens;
    --slots_;
    emit();
  }
  double highest = kLowest;
  for (const auto& allocation : emitted_) {
    highest = std::max(highest, allocation.score);
  }
  std::erase_if(emitted_, [highest](const auto& allocation) { return !same(allocation.score, highest); });
  return emitted_.empty() ? std::nullopt : std::optional(emitted_.back());
}

}  // namespace

std::optional<NaiveAllocation> naive_pack(const Instance& instance, const Members& members) {
  return Packing(instance, members).run();
}

double NaiveSearch::phi(const Members& members) {
  auto found = known_.find(members);
  if (found == known_.end()) {
    found = known_.emplace(members, evaluate_(members)).first;
  }
  return found->second.has_value() ? found->second->score : kLowest;
}

void NaiveSearch::enumerate() {
  for (std::uint32_t subset = 0; subset < (1U << agents_); ++subset) {
    Members members;
    for (std::uint32_t agent = 0; agent < agents_; ++agent) {
      if (((subset >> agent) & 1U) != 0) {
        members.push_back(agent);
      }
    }
    static_cast<void>(phi(members));
  }
}

/// All sets with `by` more agents, in lexicographic order of what is added.
std::vector<Members> NaiveSearch::grown(const Members& members, std::size_t by) const {
  std::vector<Members> out;
  for (std::uint32_t first = 0; first < agents_; ++first) {
    for (std::uint32_t second = by == 2 ? first + 1 : first; second < (by == 2 ? agents_ : first + 1); ++second) {
      std::set<std::uint32_t> larger(members.begin(), members.end());
      larger.insert({first, second});
      if (larger.size() == members.size() + by) {
        out.emplace_back(larger.begin(), larger.end());
      }
    }
  }
  return out;
}

bool NaiveSearch::improve(Members& at, const std::vector<Members>& neighbours) {
  double highest = kLowest;
  for (const auto& neighbour : neighbours) {
    highest = std::max(highest, phi(neighbour));
  }
  if (!(highest > phi(at)) || same(highest, phi(at))) {
    return false;
  }
  at = *std::find_if(neighbours.begin(), neighbours.end(), [&](const auto& set) { return same(phi(set), highest); });
  return true;
}

Members NaiveSearch::climb(Members at) {
  while (improve(at, grown(at, 1))) {
  }
  if (improve(at, grown(at, 2))) {
    while (improve(at, grown(at, 1))) {
    }
  }
  return at;
}

void NaiveSearch::repair(const Members& members) {
  for (const auto gone : members) {
    Members rest = members;
    std::erase(rest, gone);
    static_cast<void>(phi(rest));
    for (const auto& swapped : grown(rest, 1)) {
      static_cast<void>(phi(swapped));
    }
  }
}

void NaiveSearch::search_greedily(const Members& start, const Members& firm) {
  Members reached = climb(start);
  if (phi(reached) == kLowest) {
    reached = climb(firm);
  }
  repair(start);
  repair(reached);
}

std::optional<Members> NaiveSearch::choose() const {
  std::vector<std::pair<Members, NaiveAllocation>> best;
  for (const bool empty : {false, true}) {
    for (const auto& [members, allocation] : known_) {
      if (allocation.has_value() && (allocation->kept + allocation->admit.size() == 0) == empty) {
        best.emplace_back(members, *allocation);
      }
    }
    if (!best.empty()) {
      break;
    }
  }
  double highest = kLowest;
  for (const auto& [members, allocation] : best) {
    highest = std::max(highest, allocation.score);
  }
  std::erase_if(best, [highest](const auto& entry) { return !same(entry.second.score, highest); });
  const auto rank = [](const auto& entry) {
    return std::tuple(entry.second.preempted, -static_cast<std::int64_t>(entry.second.admit.size()), entry.first);
  };
  const auto first = std::min_element(best.begin(), best.end(),
                                      [&](const auto& left, const auto& right) { return rank(left) < rank(right); });
  return first == best.end() ? std::nullopt : std::optional(first->first);
}

}  // namespace topas::testing
