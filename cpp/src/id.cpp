#include "topas/id.hpp"

#include <functional>

#include "random.hpp"
#include "text.hpp"

namespace topas {

namespace {

std::uint64_t fnv1a(const std::string& text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  }
  return hash;
}

/// Control characters written out, so that a message stays one line and ends where it should.
std::string printable(const std::string& text) {
  constexpr const char* digits = "0123456789abcdef";
  std::string out;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20U || byte == 0x7FU) {
      out.append("\\x").append(1, digits[byte >> 4U]).append(1, digits[byte & 0xFU]);
    } else {
      out.push_back(letter);
    }
  }
  return out;
}

}  // namespace

std::string to_string(const Id& id) {
  if (const auto* number = std::get_if<std::int64_t>(&id.value())) {
    return std::to_string(*number);
  }
  return detail::text("'", printable(std::get<std::string>(id.value())), "'");
}

std::uint64_t stable_hash(const Id& id) noexcept {
  if (const auto* number = std::get_if<std::int64_t>(&id.value())) {
    return detail::mix(static_cast<std::uint64_t>(*number));
  }
  return detail::mix(~fnv1a(*std::get_if<std::string>(&id.value())));
}

std::size_t IdHash::operator()(const Id& id) const noexcept {
  if (const auto* number = std::get_if<std::int64_t>(&id.value())) {
    return detail::mix(static_cast<std::uint64_t>(*number));
  }
  return std::hash<std::string>{}(*std::get_if<std::string>(&id.value()));
}

}  // namespace topas
