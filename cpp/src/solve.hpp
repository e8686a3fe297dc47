// From a dense instance to a decision with ids; both doors end here.
#pragma once

#include "instance.hpp"
#include "topas/decision.hpp"

namespace topas::detail {

/// The decision for an indexed instance. `now` and `state_version` are left to the caller.
[[nodiscard]] Decision solve(const Instance& instance);

/// The same with the `top` best candidates and the reasons for waiting.
[[nodiscard]] Explanation solve_and_explain(const Instance& instance, std::size_t top);

}  // namespace topas::detail
