#include "topas/config.hpp"

#include <cmath>

#include "limits.hpp"
#include "text.hpp"
#include "topas/error.hpp"

namespace topas {

namespace {

constexpr std::int64_t kEnumerateLimit = 20;  // a million prefix sets
constexpr std::int64_t kCountLimit = std::int64_t{1} << 31U;
constexpr std::int64_t kScenariosLimit = 1024;
constexpr double kPowerLimit = 8.0;  // ages of a year stay finite
constexpr std::int64_t kOutcomesLimit = std::int64_t{1} << 20U;

void check(std::int64_t value, const char* field, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw ConfigError(detail::text(field, ": must be between ", low, " and ", high, ", got ", value));
  }
}

void check(double value, const char* field, bool zero_is_legal) {
  if (!std::isfinite(value) || value < 0.0 || (value == 0.0 && !zero_is_legal)) {
    const char* bound = zero_is_legal ? "at least 0" : "above 0";
    throw ConfigError(detail::text(field, ": must be finite and ", bound, ", got ", value));
  }
}

void check_rollout(const Config& config) {
  check(config.rollout_scenarios, "rollout_scenarios", 0, kScenariosLimit);
  check(config.rollout_steps, "rollout_steps", 0, kCountLimit);
  check(config.rollout_margin, "rollout_margin", true);
  if (!(config.rollout_power >= 1.0 && config.rollout_power <= kPowerLimit)) {
    throw ConfigError(
        detail::text("rollout_power: must be between 1 and ", kPowerLimit, ", got ", config.rollout_power));
  }
  if (config.rollout_scenarios > 0 && config.reserve_limit > 0.0) {
    throw ConfigError(detail::text("reserve_limit: must be 0 with rollout_scenarios, got ", config.reserve_limit));
  }
  if (config.rollout_scenarios > 0 && config.gain_model != GainModel::service) {
    throw ConfigError(detail::text("rollout_scenarios: needs gain_model 'service', got ", config.rollout_scenarios));
  }
}

}  // namespace

void Config::validate() const {
  check(kv_capacity_tokens, "kv_capacity_tokens", 0, detail::kTokensLimit);
  check(kv_bytes_per_token, "kv_bytes_per_token", true);
  check(swap_bytes_per_s, "swap_bytes_per_s", false);
  check(decode_s_per_token, "decode_s_per_token", true);
  check(prefill_fixed_s, "prefill_fixed_s", true);
  check(prefill_s_per_token, "prefill_s_per_token", true);
  check(enumerate_max_agents, "enumerate_max_agents", 0, kEnumerateLimit);
  check(max_evaluations, "max_evaluations", 0, kCountLimit);
  check(action_cap, "action_cap", 0, kCountLimit);
  check(max_running_requests, "max_running_requests", 0, kCountLimit);
  check(reuse_weight, "reuse_weight", true);
  check(age_weight, "age_weight", true);
  if (age_scale_s.has_value()) {
    check(*age_scale_s, "age_scale_s", false);
  }
  check(exact_limit, "exact_limit", 1, kOutcomesLimit);
  check(samples, "samples", 0, kOutcomesLimit);
  check(redo_weight, "redo_weight", true);
  check(move_weight, "move_weight", true);
  check(urgency, "urgency", true);
  check(preempt_limit, "preempt_limit", true);
  check(overtake_limit, "overtake_limit", true);
  if (overtake_limit > 0.0 && admit_order != AdmitOrder::arrival) {
    throw ConfigError(detail::text("overtake_limit: needs admit_order 'arrival', got ", overtake_limit));
  }
  check(backlog_weight, "backlog_weight", true);
  check(reserve_limit, "reserve_limit", true);
  check_rollout(*this);
  if (!std::isfinite(kv_bytes_per_token / swap_bytes_per_s)) {
    throw ConfigError(detail::text("swap_bytes_per_s: too small beside kv_bytes_per_token, got ", swap_bytes_per_s));
  }
}

}  // namespace topas
