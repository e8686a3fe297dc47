// Draws of several stages at once, as a model makes them one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "draws.hpp"

namespace topas::testing {

/// `count` draws of each stage; `streams[stage]` seeds them.
[[nodiscard]] inline detail::Outcomes draw_outcomes(const std::vector<std::vector<double>>& supports,
                                                    std::span<const std::uint64_t> streams, std::size_t count) {
  detail::Outcomes out = detail::equal_outcomes(supports.size(), count);
  for (std::size_t stage = 0; stage < supports.size(); ++stage) {
    detail::StageDraws(streams[stage], count).draw(supports[stage], out.residual[stage]);
  }
  return out;
}

}  // namespace topas::testing
