// From a dense instance to a decision with ids; both doors end here.
#pragma once

#include <span>
#include <vector>

#include "instance.hpp"
#include "topas/decision.hpp"

namespace topas::detail {

/// The decision for an indexed instance. `now` and `state_version` are left to the caller.
[[nodiscard]] Decision solve(const Instance& instance);

/// The decision that admits these waiting requests, in order, beside all that runs; `members`: the agents with a
/// request afterwards, ascending. Gains are services.
[[nodiscard]] Decision admitting(const Instance& instance, const std::vector<std::uint32_t>& members,
                                 std::span<const std::uint32_t> admit);

/// The same with the `top` best candidates and the reasons for waiting.
[[nodiscard]] Explanation solve_and_explain(const Instance& instance, std::size_t top);

}  // namespace topas::detail
