// The tests of vector_loops_test.cpp again, on what runs where the processor has no wider vectors: the same loops,
// compiled a second time, under names of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "support/random_cases.hpp"

#define TOPAS_EVERY_WIDTH
#define detail narrow
#define VectorLoops NarrowVectorLoops

#include "vector_loops.cpp"       // NOLINT(bugprone-suspicious-include)
#include "vector_loops_test.cpp"  // NOLINT(bugprone-suspicious-include)
