#include "task_model.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "path_blocks.hpp"
#include "text.hpp"
#include "topas/error.hpp"

namespace topas::detail {

namespace {

bool contains(CompletionSet set, std::uint32_t request) noexcept {
  return ((set[request / 64] >> (request % 64)) & 1U) != 0;
}

/// Equally likely residuals of a stage.
std::vector<double> support_of(const StageOutlook& stage) {
  std::vector<double> out;
  if (stage.finished) {
    out.push_back(0.0);
  } else {
    residual_support(stage, out);
  }
  return out;
}

/// Whether no stage of the block comes before another.
bool is_parallel(const StageGraph& graph, std::span<const std::uint32_t> block) {
  return std::none_of(block.begin(), block.end(), [&](auto stage) {
    const auto next = graph.successors(stage);
    return std::any_of(next.begin(), next.end(),
                       [&](auto other) { return std::find(block.begin(), block.end(), other) != block.end(); });
  });
}

bool can_enumerate(std::span<const StageOutlook> stages, std::span<const std::uint32_t> block, std::size_t limit) {
  std::size_t count = 1;
  for (const auto at : block) {
    const std::size_t distinct = stages[at].finished ? 1 : distinct_residuals(stages[at]);
    if (distinct > limit / count) {
      return false;
    }
    count *= distinct;
  }
  return true;
}

}  // namespace

TaskModel::TaskModel(const Config& config, const Id& task, const StageGraph& graph, const PathBlocks& blocks,
                     std::span<const StageOutlook> stages, std::span<const RequestOutlook> requests, Scope scope,
                     TaskModel* previous)
    : requests_(requests.begin(), requests.end()), order_(requests.size()) {
  std::iota(order_.begin(), order_.end(), 0U);
  std::sort(order_.begin(), order_.end(), [this](auto a, auto b) {
    return requests_[a].stage != requests_[b].stage ? requests_[a].stage < requests_[b].stage : a < b;
  });
  const auto has_request = [this](std::uint32_t stage) {
    const Span found = requests_of(stage);
    return found.begin < found.end;
  };
  for (const auto& block : blocks) {
    if (scope == Scope::blocks_of_requests && std::none_of(block.begin(), block.end(), has_request)) {
      continue;
    }
    stages_.insert(stages_.end(), block.begin(), block.end());
    if (!is_single(config, stages, block)) {
      add_part(config, task, graph, stages, block, previous);
    } else if (!stages[block.front()].finished) {
      const std::uint32_t stage = block.front();
      singles_.push_back({stage, stages[stage], requests_of(stage), residual_key(stages[stage])});
    }
  }
}

/// Whether a block needs no outcomes.
bool TaskModel::is_single(const Config& config, std::span<const StageOutlook> stages,
                          std::span<const std::uint32_t> block) noexcept {
  const StageOutlook& first = stages[block.front()];
  return block.size() == 1 &&
         (first.finished || residual_support_size(first) <= static_cast<std::size_t>(config.exact_limit));
}

/// The requests of a stage.
TaskModel::Span TaskModel::requests_of(std::uint32_t stage) const noexcept {
  const auto before = [this](std::uint32_t request, std::uint32_t wanted) { return requests_[request].stage < wanted; };
  const auto begin = std::lower_bound(order_.begin(), order_.end(), stage, before);
  const auto end = std::lower_bound(begin, order_.end(), stage + 1, before);
  return {static_cast<std::uint32_t>(begin - order_.begin()), static_cast<std::uint32_t>(end - order_.begin())};
}

void TaskModel::add_part(const Config& config, const Id& task, const StageGraph& graph,
                         std::span<const StageOutlook> stages, std::span<const std::uint32_t> block,
                         TaskModel* previous) {
  const auto limit = static_cast<std::size_t>(config.exact_limit);
  const auto samples = static_cast<std::size_t>(config.samples);
  const bool drawn = !can_enumerate(stages, block, limit);
  if (drawn && samples == 0) {
    throw CapacityError(text("task ", to_string(task), ": the residuals of its ", block.size(),
                             " parallel stages have more than exact_limit = ", config.exact_limit,
                             " joint outcomes, and samples = 0 forbids sampling"));
  }
  std::vector<std::vector<double>> supports;
  std::vector<Residual> residuals;
  std::vector<std::uint32_t> reducible;  // places in the block
  std::vector<Span> of_reducible;
  supports.reserve(block.size());
  residuals.reserve(block.size());
  for (std::uint32_t at = 0; at < block.size(); ++at) {
    const std::uint32_t stage = block[at];
    supports.push_back(support_of(stages[stage]));
    const auto stream = draw_stream(config.seed, stable_hash(task), stage);
    residuals.push_back({stage, residual_key(stages[stage]),
                         previous != nullptr ? previous->draws_of(stream, samples) : StageDraws(stream, samples)});
    if (const Span here = requests_of(stage); here.begin < here.end) {
      reducible.push_back(at);
      of_reducible.push_back(here);
    }
  }
  const auto make_block = [&]() -> std::variant<PathBlock, ParallelBlock> {
    // With a budget the order of the bounds decides which sets are packed: there even their rounding must stay.
    if (!drawn && config.max_evaluations == 0 && is_parallel(graph, block)) {
      return ParallelBlock(supports, reducible);
    }
    Outcomes outcomes = drawn ? equal_outcomes(block.size(), samples) : enumerate_outcomes(supports, limit);
    for (std::size_t at = 0; drawn && at < block.size(); ++at) {
      residuals[at].draws.draw(supports[at], outcomes.residual[at]);
    }
    return PathBlock(graph, block, std::move(outcomes), std::move(reducible));
  };
  auto made = make_block();
  parts_.push_back({std::move(made), std::move(of_reducible), std::move(residuals), drawn});
}

/// The draws of a stream, this model's where it has them: they are no longer its own then.
StageDraws TaskModel::draws_of(std::uint64_t stream, std::size_t count) {
  for (Part& part : parts_) {
    for (Residual& residual : part.residuals) {
      if (residual.draws.same_as(stream, count)) {
        return std::move(residual.draws);
      }
    }
  }
  return {stream, count};
}

bool TaskModel::refresh(const Config& config, std::span<const StageOutlook> stages,
                        std::span<const RequestOutlook> requests) {
  bool changed = false;
  for (Single& single : singles_) {
    if (!is_single(config, stages, {&single.stage, 1})) {
      return false;
    }
    const ResidualKey key = residual_key(stages[single.stage]);
    changed = changed || key != single.key;
    single.key = key;
    single.outlook = stages[single.stage];
  }
  for (Part& part : parts_) {
    if (!refresh(config, stages, part, changed)) {
      return false;
    }
  }
  for (std::size_t at = 0; at < requests_.size(); ++at) {
    changed = changed || requests_[at].expected_service_s != requests[at].expected_service_s;
    requests_[at] = requests[at];
  }
  if (changed) {
    remembered_.clear();
    gains_of_sets_.clear();
    last_set_.clear();
  }
  return true;
}

/// Draws the stages whose residuals have changed; false where outcomes must be enumerated, or no longer can be.
bool TaskModel::refresh(const Config& config, std::span<const StageOutlook> stages, Part& part, bool& changed) {
  auto* block = std::get_if<PathBlock>(&part.block);
  bool redrawn = false;
  for (std::size_t place = 0; place < part.residuals.size(); ++place) {
    auto& [stage, key, draws] = part.residuals[place];
    const ResidualKey now = residual_key(stages[stage]);
    if (key == now || stages[stage].finished) {
      continue;
    }
    if (!part.drawn || block == nullptr) {
      return false;
    }
    key = now;
    draws.draw(support_of(stages[stage]), block->residuals(place));
    redrawn = true;
  }
  if (!redrawn) {
    return true;
  }
  block->refresh();
  changed = true;
  std::vector<std::uint32_t> drawn(part.residuals.size());
  std::transform(part.residuals.begin(), part.residuals.end(), drawn.begin(),
                 [](const Residual& residual) { return residual.stage; });
  return !can_enumerate(stages, drawn, static_cast<std::size_t>(config.exact_limit));
}

bool TaskModel::tells_each() const {
  return singles_.empty() && parts_.size() == 1 &&
         std::visit([](const auto& block) { return block.only_sources(); }, parts_.front().block);
}

std::uint32_t TaskModel::outcomes() const {
  return tells_sets() ? static_cast<std::uint32_t>(
                            std::visit([](const auto& block) { return block.outcomes(); }, parts_.front().block))
                      : 0;
}

double TaskModel::expected_path_before_each(CompletionSet completed, PathScratch& scratch) const {
  if (completed.size() != 1 || requests_.size() < 2 || !tells_each()) {
    return expected_path(completed, scratch);
  }
  const std::uint64_t key = completed.front();
  if (const double* known = remembered_.find(key)) {
    return *known;
  }
  const Part& part = parts_.front();
  reduction_.clear();
  alternatives_.clear();
  larger_.clear();
  for (std::uint32_t stage = 0; stage < part.requests.size(); ++stage) {
    const Span requests = part.requests[stage];
    reduction_.push_back(reduction_of(requests, completed));
    for (auto at = requests.begin; at < requests.end; ++at) {
      const std::uint64_t with = key | std::uint64_t{1} << order_[at];
      if (with != key && remembered_.find(with) == nullptr) {
        alternatives_.push_back({stage, reduction_of(requests, {&with, 1})});
        larger_.push_back(with);
      }
    }
  }
  paths_.resize(alternatives_.size());
  const double path = std::visit(
      [&](const auto& block) { return block.expected_paths(reduction_, alternatives_, paths_, scratch); }, part.block);
  remembered_.insert(key, path);
  for (std::size_t at = 0; at < larger_.size(); ++at) {
    remembered_.insert(larger_[at], paths_[at]);
  }
  return path;
}

double TaskModel::expected_path(CompletionSet completed, PathScratch& scratch) const {
  if (completed.size() > 1) {
    if (!std::equal(completed.begin(), completed.end(), last_set_.begin(), last_set_.end())) {
      last_value_ = evaluate(completed, scratch);
      last_set_.assign(completed.begin(), completed.end());
    }
    return last_value_;
  }
  const std::uint64_t key = completed.empty() ? 0 : completed.front();
  if (const double* known = remembered_.find(key)) {
    return *known;
  }
  const double value = evaluate(completed, scratch);
  remembered_.insert(key, value);
  return value;
}

/// As many stages as requests: one each.
bool TaskModel::tells_sets() const {
  return requests_.size() <= PathBlock::kSubsetStages && tells_each() &&
         parts_.front().requests.size() == requests_.size();
}

std::span<const double> TaskModel::gains_of_sets(PathScratch& scratch) const {
  if (!gains_of_sets_.empty() || !tells_sets()) {
    return gains_of_sets_;
  }
  const Part& part = parts_.front();
  reduction_.clear();
  for (const Span requests : part.requests) {  // one each
    reduction_.push_back(requests_[order_[requests.begin]].expected_service_s);
  }
  const auto request_of = [this](Span requests) { return order_[requests.begin]; };
  if (std::is_sorted(part.requests.begin(), part.requests.end(),
                     [&](Span a, Span b) { return request_of(a) < request_of(b); })) {  // bit for bit in that order
    std::visit([&](const auto& block) { block.gains_of_subsets(reduction_, gains_of_sets_, scratch); }, part.block);
    return gains_of_sets_;
  }
  std::vector<double> by_stage;
  std::visit([&](const auto& block) { block.gains_of_subsets(reduction_, by_stage, scratch); }, part.block);
  gains_of_sets_.resize(by_stage.size());
  std::size_t set = 0;  // of request bits
  for (const double gain : by_stage) {
    gains_of_sets_[set] = gain;
    for (const Span requests : part.requests) {  // to the next set of stages, counting in binary
      const std::size_t bit = std::size_t{1} << request_of(requests);
      set ^= bit;
      if ((set & bit) != 0) {
        break;
      }
    }
  }
  return gains_of_sets_;
}

/// What the completed requests of a stage take off its residual, in the order of their ids.
double TaskModel::reduction_of(Span requests, CompletionSet completed) const noexcept {
  double reduction = 0.0;
  for (auto at = requests.begin; at < requests.end; ++at) {
    if (contains(completed, order_[at])) {
      reduction += requests_[order_[at]].expected_service_s;
    }
  }
  return reduction;
}

double TaskModel::evaluate(CompletionSet completed, PathScratch& scratch) const {
  double path = 0.0;
  for (const Single& single : singles_) {
    path += expected_residual(single.outlook, reduction_of(single.requests, completed));
  }
  for (const Part& part : parts_) {
    reduction_.clear();
    for (const Span requests : part.requests) {
      reduction_.push_back(reduction_of(requests, completed));
    }
    path += std::visit([&](const auto& block) { return block.expected_path(reduction_, scratch); }, part.block);
  }
  return path;
}

}  // namespace topas::detail
