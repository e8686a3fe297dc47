// Building messages.
#pragma once

#include <sstream>
#include <string>

namespace topas::detail {

/// The parts one after another, numbers with 12 digits.
template <class... Parts>
[[nodiscard]] std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.precision(12);
  (out << ... << parts);
  return out.str();
}

}  // namespace topas::detail
