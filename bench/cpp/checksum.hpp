// A number for what was decided, the same as bench/replaying.py computes.
#pragma once

#include <cstdint>
#include <string_view>

#include "topas/decision.hpp"

namespace topas::bench {

/// CRC-32 of ids and the bits of scores.
class Checksum {
 public:
  void add(const Decision& decision);
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  void add(std::string_view bytes) noexcept;
  void add(const std::vector<Id>& ids);

  std::uint32_t state_ = 0xFFFFFFFFU;
};

}  // namespace topas::bench
