#include "checksum.hpp"

#include <array>
#include <bit>
#include <string>
#include <variant>

namespace topas::bench {

void Checksum::add(std::string_view bytes) noexcept {
  for (const char byte : bytes) {
    state_ ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      state_ = (state_ >> 1U) ^ ((state_ & 1U) != 0U ? 0xEDB88320U : 0U);
    }
  }
}

void Checksum::add(const std::vector<Id>& ids) {
  for (std::size_t at = 0; at < ids.size(); ++at) {
    const auto* name = std::get_if<std::string>(&ids[at].value());
    add(at > 0 ? " " : "");
    add(name != nullptr ? *name : std::to_string(std::get<std::int64_t>(ids[at].value())));
  }
}

void Checksum::add(const Decision& decision) {
  add(decision.resident);
  add(";");
  add(decision.admit);
  add(";");
  add(decision.preempt);
  const auto bits = std::bit_cast<std::uint64_t>(decision.score());
  std::array<char, 8> bytes{};
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<char>((bits >> (8U * at)) & 0xFFU);
  }
  add(std::string_view(bytes.data(), bytes.size()));
}

}  // namespace topas::bench
