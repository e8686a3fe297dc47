// Settings of a decision; SPEC is docs/specification.md. Units: seconds, KV tokens, bytes.
#pragma once

#include <cstdint>
#include <optional>

namespace topas {

/// What redoing a preempted request costs (SPEC section 3).
enum class RedoModel : std::uint8_t {
  decode,   ///< its generated tokens are decoded again
  prefill,  ///< its input and generated tokens are prefilled again
  kept,     ///< nothing: its KV survives
};

/// Who pays for moving prefixes (SPEC section 3).
enum class MoveModel : std::uint8_t {
  tasks,  ///< every admitted task that waits for one
  once,   ///< the engine, once for each that comes in, and for each that leaves though it is wanted
};

/// What admitting a request gains, before ageing, and preempting it loses (SPEC section 7).
enum class GainModel : std::uint8_t {
  path,     ///< the marginal reduction of its task's expected longest path; the credit of its admission
  service,  ///< its expected service, both ways
};

/// In which order GreedyPack admits what fits.
enum class AdmitOrder : std::uint8_t {
  density,  ///< the largest gain for each token first
  arrival,  ///< the earliest task first
};

/// The values given here are those of the preset `guarded`; `Config::paper()` is the published score.
struct Config {
  std::int64_t kv_capacity_tokens = 0;
  double kv_bytes_per_token = 0.0;
  double swap_bytes_per_s = 0.0;
  double decode_s_per_token = 0.0;
  double prefill_fixed_s = 0.0;
  double prefill_s_per_token = 0.0;
  std::int64_t enumerate_max_agents = 8;  ///< M; 0: always the greedy search
  std::int64_t max_evaluations = 0;       ///< prefix sets packed at most; 0: as many as it takes
  std::int64_t action_cap = 0;            ///< K; 0: no cap
  std::int64_t max_running_requests = 0;  ///< 0: no limit
  double reuse_weight = 1.0;              ///< beta
  double age_weight = 1.0;                ///< rho
  std::optional<double> age_scale_s;      ///< H_age; empty: estimated
  std::int64_t exact_limit = 4096;
  std::int64_t samples = 128;  ///< 0: never sample, refuse what exceeds exact_limit (CapacityError)
  std::uint64_t seed = 0;
  bool count_running = true;
  bool age_credit = true;
  double redo_weight = 3.0;  ///< kappa
  RedoModel redo_model = RedoModel::decode;
  MoveModel move_model = MoveModel::tasks;
  double move_weight = 1.0;
  bool work_conserving = false;  ///< fill what room the best state leaves (SPEC section 6)
  GainModel gain_model = GainModel::path;
  double urgency = 0.0;  ///< gamma
  AdmitOrder admit_order = AdmitOrder::density;
  double preempt_limit = 0.0;          ///< phi; 0: none
  double overtake_limit = 0.0;         ///< theta; 0: none
  double backlog_weight = 0.0;         ///< nu, where gains are services; 0: off
  double reserve_limit = 0.0;          ///< eta; 0: no room is kept
  std::int64_t rollout_scenarios = 0;  ///< 0: no rollout
  std::int64_t rollout_steps = 0;      ///< simulated requests at most; 0: no limit
  double rollout_margin = 1.0;         ///< standard errors by which another decision must be better
  double rollout_power = 1.0;          ///< of completion times

  /// Whether anything goes by the scale of ages.
  [[nodiscard]] bool uses_age_scale() const noexcept {
    return age_weight > 0.0 || urgency > 0.0 || overtake_limit > 0.0 || reserve_limit > 0.0;
  }
  /// Whether anything goes by the longest path of expected residuals.
  [[nodiscard]] bool uses_path() const noexcept { return urgency > 0.0 || rollout_scenarios > 0; }

  [[nodiscard]] static Config paper() {
    Config config;
    config.count_running = false;
    config.age_credit = false;
    config.redo_weight = 1.0;
    return config;
  }

  /// T_prefill(tokens), seconds.
  [[nodiscard]] double prefill_s(std::int64_t tokens) const {
    return prefill_fixed_s + prefill_s_per_token * static_cast<double>(tokens);
  }

  /// Throws ConfigError naming the first field that is out of range.
  void validate() const;
};

}  // namespace topas
