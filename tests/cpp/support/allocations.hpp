// How often this thread has allocated with `new`.
#pragma once

#include <cstddef>

namespace topas::testing {

[[nodiscard]] std::size_t allocations() noexcept;

}  // namespace topas::testing
