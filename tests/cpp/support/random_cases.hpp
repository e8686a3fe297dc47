// Random inputs, the same on every platform: engines of <random> are specified, its distributions are not.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "residual.hpp"
#include "topas/config.hpp"
#include "topas/snapshot.hpp"
#include "topas/workflow.hpp"

namespace topas::testing {

/// Predecessors of each stage.
using Adjacency = std::vector<std::vector<std::uint32_t>>;

/// Totals of each stage, ascending.
using Totals = std::vector<std::vector<double>>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Uniform in [0, bound), near enough for small bounds.
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance(double probability) { return unit() < probability; }
  double unit() { return static_cast<double>(engine_() >> 11U) * 0x1.0p-53; }
  /// A multiple of 1/4 in [0, high]: sums of few of them are exact, so that ties occur.
  double quarters(std::int64_t high) { return static_cast<double>(between(0, 4 * high)) / 4.0; }

  template <class Values>
  const auto& pick(const Values& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

/// A DAG whose stage numbers are not in topological order.
[[nodiscard]] Adjacency random_dag(Random& random, std::uint32_t size, double edge_probability);

[[nodiscard]] StageGraph graph_of(const Adjacency& after);

/// Stages with histories of their own.
class Stages {
 public:
  /// One unfinished stage for each list of totals.
  explicit Stages(Totals totals);

  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;

  void finish(std::uint32_t stage) { outlooks_[stage].finished = true; }
  void serve(std::uint32_t stage, double service_s) { outlooks_[stage].service_s = service_s; }
  [[nodiscard]] const std::vector<detail::StageOutlook>& outlooks() const noexcept { return outlooks_; }
  [[nodiscard]] const detail::StageOutlook& operator[](std::uint32_t stage) const { return outlooks_[stage]; }

 private:
  Totals totals_;
  std::vector<detail::StageOutlook> outlooks_;
};

/// `count` histories of one to `most` totals.
[[nodiscard]] Totals random_totals(Random& random, std::uint32_t count, std::int64_t most);

/// A waiting request of a snapshot.
[[nodiscard]] RequestState make_request(Id id, Id task, std::uint32_t stage, Id agent, std::int64_t kv_tokens,
                                        double service_s = 0.0);

/// Sizes of a random snapshot.
struct Shape {
  std::int64_t agents = 5;
  std::int64_t tasks = 4;
  std::int64_t stages = 5;    ///< of a task, at most
  std::int64_t requests = 8;  ///< at most; a few of them run
  bool string_ids = false;
};

/// A consistent snapshot: ready stages have requests, resident prefixes of running ones, ids not in order.
[[nodiscard]] Snapshot random_snapshot(Random& random, const Shape& shape);

/// A config for it, both presets and all options by chance; the prefixes and a few requests fit.
[[nodiscard]] Config random_config(Random& random);

/// The same with gains that are services, admitted by arrival.
[[nodiscard]] Config random_service_config(Random& random);

}  // namespace topas::testing
