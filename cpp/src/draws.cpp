#include "draws.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "random.hpp"

namespace topas::detail {

namespace {

/// Distinct values with their probabilities.
struct Distribution {
  std::vector<double> values;
  std::vector<double> weights;
};

}  // namespace

void append_distinct(const std::vector<double>& support, std::vector<double>& values, std::vector<double>& chances) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < support.size(); ++at) {
    ++count;
    if (at + 1 == support.size() || support[at + 1] != support[at]) {
      values.push_back(support[at]);
      chances.push_back(static_cast<double>(count) / static_cast<double>(support.size()));
      count = 0;
    }
  }
}

Outcomes enumerate_outcomes(const std::vector<std::vector<double>>& supports, std::size_t limit) {
  std::vector<Distribution> stages;
  std::size_t count = 1;
  for (const auto& support : supports) {
    auto& [values, weights] = stages.emplace_back();
    append_distinct(support, values, weights);
    if (values.size() > limit / count) {
      return {};
    }
    count *= values.size();
  }
  Outcomes out{Rows(stages.size(), count), {}, 1.0};
  out.weights.assign(out.residual.columns(), 0.0);
  std::fill_n(out.weights.begin(), count, 1.0);
  std::size_t period = 1;  // how long one value of this stage is held
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto& [values, weights] = stages[stage];
    double* row = out.residual[stage];
    std::size_t digit = 0;
    for (std::size_t held = 0; held < count; held += period) {
      for (std::size_t outcome = held; outcome < held + period; ++outcome) {
        row[outcome] = values[digit];
        out.weights[outcome] *= weights[digit];
      }
      digit = digit + 1 < values.size() ? digit + 1 : 0;
    }
    period *= values.size();
  }
  return out;
}

void StageDraws::find_places() {
  SplitMix64 random(stream_);
  std::vector<std::uint32_t> strata(count_);
  std::iota(strata.begin(), strata.end(), 0U);
  for (auto last = static_cast<std::uint32_t>(count_); last > 1; --last) {
    std::swap(strata[last - 1], strata[random.below(last)]);
  }
  places_.resize(count_);
  std::transform(strata.begin(), strata.end(), places_.begin(),
                 [&random](std::uint32_t stratum) { return stratum + random.unit(); });
}

void StageDraws::draw(const std::vector<double>& support, double* row) {
  if (support.size() == 1) {
    std::fill_n(row, count_, support.front());
    return;
  }
  if (places_.empty()) {
    find_places();
  }
  const auto size = static_cast<double>(support.size());
  const auto count = static_cast<double>(count_);
  for (std::size_t draw = 0; draw < count_; ++draw) {
    const auto index = static_cast<std::size_t>(static_cast<std::int64_t>(places_[draw] * size / count));
    row[draw] = support[std::min(index, support.size() - 1)];
  }
}

Outcomes equal_outcomes(std::size_t stages, std::size_t count) {
  Outcomes out{Rows(stages, count), {}, static_cast<double>(count)};
  out.weights.assign(out.residual.columns(), 0.0);
  std::fill_n(out.weights.begin(), count, 1.0);
  return out;
}

std::uint64_t draw_stream(std::uint64_t seed, std::uint64_t task_hash, std::uint32_t stage) noexcept {
  return mix(mix(mix(seed) ^ task_hash) ^ stage);
}

}  // namespace topas::detail
