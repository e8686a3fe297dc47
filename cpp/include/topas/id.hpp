// Ids as users give them: 64-bit integers or strings, never mixed up ("7" is not 7).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace topas {

/// Ordered: integers by value, then strings by their bytes. The order decides the last ties of a decision.
class Id {
 public:
  Id() = default;
  Id(std::int64_t value) : value_(value) {}              // NOLINT(misc-explicit-constructor)
  Id(std::string value) : value_(std::move(value)) {}    // NOLINT(misc-explicit-constructor)
  Id(const char* value) : value_(std::string(value)) {}  // NOLINT(misc-explicit-constructor)

  [[nodiscard]] const std::variant<std::int64_t, std::string>& value() const noexcept { return value_; }

  friend bool operator==(const Id& left, const Id& right) = default;
  friend std::strong_ordering operator<=>(const Id& left, const Id& right) = default;

 private:
  std::variant<std::int64_t, std::string> value_;
};

/// The id for a message: 7 or 'planner'.
[[nodiscard]] std::string to_string(const Id& id);

/// The same on every platform and in every process; it seeds the draws of a task.
[[nodiscard]] std::uint64_t stable_hash(const Id& id) noexcept;

/// For tables, whose order nobody sees: the standard library's hash, faster than `stable_hash` and not fixed.
struct IdHash {
  [[nodiscard]] std::size_t operator()(const Id& id) const noexcept;
};

}  // namespace topas
