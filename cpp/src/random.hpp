// SplitMix64: small, fast, the same everywhere. Draws only; never a source of hidden state.
#pragma once

#include <cstdint>

namespace topas::detail {

inline constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15ULL;

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t value) noexcept {
  value += kGamma;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) noexcept : state_(state) {}

  std::uint64_t next() noexcept {
    const std::uint64_t out = mix(state_);
    state_ += kGamma;
    return out;
  }
  /// Uniform in [0, bound), bound above 0 (multiply-shift).
  std::uint32_t below(std::uint32_t bound) noexcept {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint32_t>((static_cast<Wide>(next()) * bound) >> 64U);
  }
  /// Uniform in [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace topas::detail
