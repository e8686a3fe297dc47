// Every inconsistency of a snapshot is refused with the path of the field.
#include "snapshot_check.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/refusal.hpp"
#include "support/world.hpp"
#include "topas/decision.hpp"
#include "topas/error.hpp"

namespace topas::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kTooMany = (std::int64_t{1} << 48U) + 1;

/// Two agents, a task of two stages, a running request of the first.
Snapshot sound_snapshot() {
  Snapshot out;
  out.now = 10.0;
  out.age_scale_s = 5.0;
  out.agents = {{"plan", 10}, {"code", 20}};
  out.profiles = {{"p", {1.0, 2.0}, 1.0}, {"q", {3.0}, 3.0}};
  out.tasks = {{"t", 1.0, {{"plan", {}, "p", false, 0.0}, {"code", {0}, "q", false, 0.0}}}};
  RequestState request = make_request("r", "t", 0, "plan", 5);
  request.running = true;
  request.age_factor_at_admission = 1.0;
  out.requests = {request, make_request("w", "t", 0, "plan", 5)};
  out.resident = {"plan"};
  return out;
}

struct Wrong {
  const char* name;
  void (*spoil)(Snapshot&);
  const char* message;  // how it begins
};

class Inconsistent : public ::testing::TestWithParam<Wrong> {};

TEST_P(Inconsistent, IsRefusedWithItsPath) {
  Snapshot snapshot = sound_snapshot();
  GetParam().spoil(snapshot);
  const std::string expected = GetParam().message;
  const auto message = refusal<SnapshotError>([&] { return decide(snapshot, plain_config(100)); });
  EXPECT_EQ(message.substr(0, expected.size()), expected);
  refusal<SnapshotError>([&] { return explain(snapshot, plain_config(100), 1); });
  refusal<SnapshotError>([&] { return expected_longest_path(snapshot, plain_config(100), "t", {}); });
}

std::string name_of(const ::testing::TestParamInfo<Wrong>& parameter) { return parameter.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Scalars, Inconsistent,
    ::testing::Values(Wrong{"now", [](Snapshot& s) { s.now = kNotANumber; }, "now: must be finite"},
                      Wrong{"scale", [](Snapshot& s) { s.age_scale_s = -1.0; },
                            "age_scale_s: must be finite and at least 0"},
                      Wrong{"scale_infinite", [](Snapshot& s) { s.age_scale_s = kInfinite; }, "age_scale_s: "}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Agents, Inconsistent,
    ::testing::Values(
        Wrong{"duplicate", [](Snapshot& s) { s.agents[1].id = "plan"; }, "agents[1].id: duplicate 'plan'"},
        Wrong{"prefix", [](Snapshot& s) { s.agents[1].prefix_tokens = -1; },
              "agents[1].prefix_tokens: must be at least 0"},
        Wrong{"prefix_large", [](Snapshot& s) { s.agents[0].prefix_tokens = kTooMany; }, "agents[0].prefix_tokens: "},
        Wrong{"resident", [](Snapshot& s) { s.resident = {"plan", "test"}; }, "resident[1]: unknown 'test'"},
        Wrong{"resident_twice", [](Snapshot& s) { s.resident = {"plan", "plan"}; }, "resident[1]: duplicate 'plan'"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Profiles, Inconsistent,
    ::testing::Values(
        Wrong{"duplicate", [](Snapshot& s) { s.profiles[1].id = "p"; }, "profiles[1].id: duplicate 'p'"},
        Wrong{"empty", [](Snapshot& s) { s.profiles[0].totals_s.clear(); }, "profiles[0].totals_s: must not be empty"},
        Wrong{"total", [](Snapshot& s) { s.profiles[0].totals_s[1] = -2.0; }, "profiles[0].totals_s: must be finite"},
        Wrong{"request", [](Snapshot& s) { s.profiles[1].request_s = kNotANumber; }, "profiles[1].request_s: "}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Tasks, Inconsistent,
    ::testing::Values(
        Wrong{"duplicate", [](Snapshot& s) { s.tasks.push_back(s.tasks[0]); }, "tasks[1].id: duplicate 't'"},
        Wrong{"arrival", [](Snapshot& s) { s.tasks[0].arrival = kInfinite; }, "tasks[0].arrival: must be finite"},
        Wrong{"empty", [](Snapshot& s) { s.tasks[0].stages.clear(); }, "tasks[0].stages: must not be empty"},
        Wrong{"agent", [](Snapshot& s) { s.tasks[0].stages[1].agent = "x"; }, "tasks[0].stages[1].agent: unknown 'x'"},
        Wrong{"profile", [](Snapshot& s) { s.tasks[0].stages[1].profile = 1; },
              "tasks[0].stages[1].profile: unknown 1"},
        Wrong{"service", [](Snapshot& s) { s.tasks[0].stages[0].service_s = -1.0; }, "tasks[0].stages[0].service_s: "},
        Wrong{"after", [](Snapshot& s) { s.tasks[0].stages[1].after = {2}; },
              "tasks[0].stages[1].after: the task has no stage 2"},
        Wrong{"cycle", [](Snapshot& s) { s.tasks[0].stages[0].after = {1}; }, "task 't': stages form a cycle: "}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Requests, Inconsistent,
    ::testing::Values(
        Wrong{"duplicate", [](Snapshot& s) { s.requests[1].id = "r"; }, "requests[1].id: duplicate 'r'"},
        Wrong{"task", [](Snapshot& s) { s.requests[1].task = "x"; }, "requests[1].task: unknown 'x'"},
        Wrong{"stage", [](Snapshot& s) { s.requests[0].stage = 2; }, "requests[0].stage: task 't' has no stage 2"},
        Wrong{"agent", [](Snapshot& s) { s.requests[0].agent = "code"; },
              "requests[0].agent: is 'code', but its stage belongs to agent 'plan'"},
        Wrong{"kv", [](Snapshot& s) { s.requests[0].kv_tokens = 0; }, "requests[0].kv_tokens: must be at least 1"},
        Wrong{"kv_large", [](Snapshot& s) { s.requests[0].kv_tokens = kTooMany; }, "requests[0].kv_tokens: "},
        Wrong{"input", [](Snapshot& s) { s.requests[0].input_tokens = -1; }, "requests[0].input_tokens: "},
        Wrong{"generated", [](Snapshot& s) { s.requests[0].generated_tokens = -1; }, "requests[0].generated_tokens: "},
        Wrong{"service", [](Snapshot& s) { s.requests[0].expected_service_s = kInfinite; },
              "requests[0].expected_service_s: "},
        Wrong{"credit", [](Snapshot& s) { s.requests[0].credit = kNotANumber; }, "requests[0].credit: must be finite"},
        Wrong{"factor", [](Snapshot& s) { s.requests[0].age_factor_at_admission = 0.5; },
              "requests[0].age_factor_at_admission: must be finite and at least 1"}),
    name_of);

TEST(SnapshotCheck, ASoundSnapshotPasses) { EXPECT_NO_THROW(detail::check(sound_snapshot())); }

TEST(SnapshotCheck, AnEmptySnapshotPasses) {
  Snapshot nothing;
  EXPECT_NO_THROW(detail::check(nothing));
  Decision expected;
  expected.evaluated_sets = 1;
  EXPECT_EQ(decide(nothing, plain_config(0)), expected);
}

TEST(SnapshotCheck, TheLargestTokenCountsPass) {
  Snapshot snapshot = sound_snapshot();
  snapshot.agents[0].prefix_tokens = kTooMany - 1;
  snapshot.requests[1].kv_tokens = kTooMany - 1;
  EXPECT_EQ(decide(snapshot, plain_config(kTooMany - 1)).unschedulable, std::vector<Id>{"w"});
}

TEST(SnapshotCheck, UnknownIdsOfExpectedLongestPathAreNamed) {
  const Snapshot snapshot = sound_snapshot();
  const auto path = [&](const Id& task, const Id& request) {
    return refusal<UnknownId>([&] { return expected_longest_path(snapshot, plain_config(9), task, {request}); });
  };
  EXPECT_EQ(path("x", "r"), "task 'x' is not in the snapshot");
  EXPECT_EQ(path("t", "x"), "task 't' has no request 'x'");
}

}  // namespace
}  // namespace topas::testing
