// The bounds of every setting.
#include "topas/config.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "support/refusal.hpp"
#include "support/world.hpp"
#include "topas/error.hpp"

namespace topas::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

template <class Value>
struct Field {
  const char* name;
  void (*set)(Config&, Value);
};

template <class Value>
void expect_refused(const Field<Value>& field, Value value) {
  Config config = plain_config(100);
  field.set(config, value);
  const auto message = refusal<ConfigError>([&config] {
    config.validate();
    return 0;
  });
  EXPECT_EQ(message.rfind(std::string(field.name) + ": ", 0), 0U) << message;
}

template <class Value>
void expect_legal(const Field<Value>& field, Value value) {
  Config config = plain_config(100);
  field.set(config, value);
  EXPECT_NO_THROW(config.validate()) << field.name << " = " << value;
}

class Amounts : public ::testing::TestWithParam<Field<double>> {};

TEST_P(Amounts, MustBeFiniteAndNotNegative) {
  for (const double bad : {-1e-9, -kInfinite, kInfinite, kNotANumber}) {
    expect_refused(GetParam(), bad);
  }
  for (const double good : {0.0, 1e-9, 1e6}) {
    expect_legal(GetParam(), good);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Config, Amounts,
    ::testing::Values(Field<double>{"kv_bytes_per_token", [](Config& c, double v) { c.kv_bytes_per_token = v; }},
                      Field<double>{"decode_s_per_token", [](Config& c, double v) { c.decode_s_per_token = v; }},
                      Field<double>{"prefill_fixed_s", [](Config& c, double v) { c.prefill_fixed_s = v; }},
                      Field<double>{"prefill_s_per_token", [](Config& c, double v) { c.prefill_s_per_token = v; }},
                      Field<double>{"reuse_weight", [](Config& c, double v) { c.reuse_weight = v; }},
                      Field<double>{"age_weight", [](Config& c, double v) { c.age_weight = v; }},
                      Field<double>{"redo_weight", [](Config& c, double v) { c.redo_weight = v; }}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

class Rates : public ::testing::TestWithParam<Field<double>> {};

TEST_P(Rates, MustBeFiniteAndPositive) {
  for (const double bad : {0.0, -0.0, -1.0, kInfinite, kNotANumber}) {
    expect_refused(GetParam(), bad);
  }
  expect_legal(GetParam(), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Config, Rates,
    ::testing::Values(Field<double>{"swap_bytes_per_s", [](Config& c, double v) { c.swap_bytes_per_s = v; }},
                      Field<double>{"age_scale_s", [](Config& c, double v) { c.age_scale_s = v; }}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

struct Bounds {
  Field<std::int64_t> field;
  std::int64_t least;
  std::int64_t most;
};

class Counts : public ::testing::TestWithParam<Bounds> {};

TEST_P(Counts, StayWithinTheirBounds) {
  const auto& [field, least, most] = GetParam();
  expect_legal(field, least);
  expect_legal(field, most);
  expect_refused(field, least - 1);
  expect_refused(field, most + 1);
  expect_refused(field, std::numeric_limits<std::int64_t>::min());
  expect_refused(field, std::numeric_limits<std::int64_t>::max());
}

constexpr std::int64_t kLarge = std::int64_t{1} << 31U;

INSTANTIATE_TEST_SUITE_P(
    Config, Counts,
    ::testing::Values(
        Bounds{{"kv_capacity_tokens", [](Config& c, std::int64_t v) { c.kv_capacity_tokens = v; }}, 0, kLarge << 17U},
        Bounds{{"enumerate_max_agents", [](Config& c, std::int64_t v) { c.enumerate_max_agents = v; }}, 0, 20},
        Bounds{{"action_cap", [](Config& c, std::int64_t v) { c.action_cap = v; }}, 0, kLarge},
        Bounds{{"max_running_requests", [](Config& c, std::int64_t v) { c.max_running_requests = v; }}, 0, kLarge},
        Bounds{{"exact_limit", [](Config& c, std::int64_t v) { c.exact_limit = v; }}, 1, 1 << 20},
        Bounds{{"samples", [](Config& c, std::int64_t v) { c.samples = v; }}, 0, 1 << 20}),
    [](const auto& parameter) { return std::string(parameter.param.field.name); });

TEST(Config, AnEmptyAgeScaleIsEstimated) {
  Config config = plain_config(100);
  config.age_scale_s.reset();
  EXPECT_NO_THROW(config.validate());
}

TEST(Config, ARateTooSmallForTheBytesOfATokenIsRefused) {
  Config config = plain_config(100);
  config.kv_bytes_per_token = 1e300;
  config.swap_bytes_per_s = 1e-300;
  EXPECT_THROW(config.validate(), ConfigError);
}

TEST(Config, ThePresetsDifferInTheGuardOnly) {
  const Config paper = Config::paper();
  const Config standard;
  EXPECT_FALSE(paper.count_running || paper.age_credit);
  EXPECT_TRUE(standard.count_running && standard.age_credit);
  EXPECT_EQ(paper.redo_weight, 1.0);
  EXPECT_EQ(standard.redo_weight, 3.0);
  EXPECT_EQ(paper.exact_limit, standard.exact_limit);
  EXPECT_EQ(paper.samples, standard.samples);
}

TEST(Config, PrefillTime) {
  Config config = plain_config(100);
  config.prefill_fixed_s = 0.5;
  config.prefill_s_per_token = 0.25;
  EXPECT_DOUBLE_EQ(config.prefill_s(6), 2.0);
}

}  // namespace
}  // namespace topas::testing
