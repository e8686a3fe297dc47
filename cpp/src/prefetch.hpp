// A hint that memory will be read soon.
#pragma once

namespace topas::detail {

/// The line at an address and the next one: thousands of small objects lie anywhere, and are read one after another.
inline void prefetch(const void* address) noexcept {
#ifdef __GNUC__
  __builtin_prefetch(address);
  __builtin_prefetch(static_cast<const char*>(address) + 64);
#else
  static_cast<void>(address);
#endif
}

}  // namespace topas::detail
