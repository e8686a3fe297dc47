// Bounds that every door checks.
#pragma once

#include <cstdint>

namespace topas::detail {

/// Token counts stay below it, so that sums of them stay exact in 64-bit integers and in doubles.
inline constexpr std::int64_t kTokensLimit = std::int64_t{1} << 48U;

}  // namespace topas::detail
