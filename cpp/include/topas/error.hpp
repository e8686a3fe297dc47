// The kinds of refusal. Every public function that can fail throws one of these and leaves the state unchanged.
#pragma once

#include <stdexcept>
#include <string>

namespace topas {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A setting is out of range.
class ConfigError final : public Error {
 public:
  using Error::Error;
};

/// An argument of an event is out of range.
class ArgumentError final : public Error {
 public:
  using Error::Error;
};

/// A workflow that cannot be registered.
class WorkflowError final : public Error {
 public:
  using Error::Error;
};

/// A snapshot that is malformed or inconsistent.
class SnapshotError final : public Error {
 public:
  using Error::Error;
};

/// More is needed than there is; the message gives the numbers.
class CapacityError final : public Error {
 public:
  using Error::Error;
};

/// An id that nothing is registered under (or no longer).
class UnknownId final : public Error {
 public:
  using Error::Error;
};

/// An event or a commit that is not legal in the present state.
class StateError final : public Error {
 public:
  using Error::Error;
};

}  // namespace topas
