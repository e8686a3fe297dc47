// Workflows are checked when they are made.
#include "topas/workflow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "support/refusal.hpp"
#include "topas/error.hpp"

namespace topas::testing {
namespace {

StageSpec stage(Id name, std::vector<Id> after = {}, double service_s = 1.0) {
  return {std::move(name), Id("agent"), std::move(after), service_s, service_s};
}

std::string refusal_of(std::vector<StageSpec> stages) {
  return refusal<WorkflowError>([&stages] { return Workflow(Id("flow"), std::move(stages)); });
}

TEST(Workflow, KeepsItsStagesAndFindsThem) {
  const Workflow flow(Id("flow"), {stage("plan"), stage("code", {"plan"}), stage(Id(3), {"code"})});
  EXPECT_EQ(flow.name(), Id("flow"));
  EXPECT_EQ(flow.stages().size(), 3U);
  EXPECT_EQ(flow.index_of(Id("code")), 1U);
  EXPECT_EQ(flow.index_of(Id(3)), 2U);
}

TEST(Workflow, AnUnknownStageIsNamed) {
  const Workflow flow(Id("flow"), {stage("plan")});
  const auto message = refusal<UnknownId>([&flow] { return flow.index_of(Id("code")); });
  EXPECT_EQ(message, "workflow 'flow' has no stage 'code'");
}

TEST(Workflow, ItsCriticalPathIsTheLongest) {
  const Workflow flow(Id("flow"), {stage("a", {}, 1.0), stage("b", {"a"}, 5.0), stage("c", {"a"}, 2.0),
                                   stage("d", {"b", "c"}, 1.5), stage("alone", {}, 7.0)});
  EXPECT_DOUBLE_EQ(flow.critical_path_s(), 7.5);
}

TEST(Workflow, StagesMayBeGivenInAnyOrder) {
  const Workflow flow(Id("flow"), {stage("last", {"first"}), stage("first")});
  EXPECT_EQ(std::vector<std::uint32_t>(flow.graph().order().begin(), flow.graph().order().end()),
            (std::vector<std::uint32_t>{1, 0}));
  EXPECT_DOUBLE_EQ(flow.critical_path_s(), 2.0);
}

TEST(Workflow, ADoubleEdgeCountsOnce) {
  const Workflow flow(Id("flow"), {stage("a"), stage("b", {"a", "a", "a"})});
  EXPECT_EQ(flow.graph().predecessors(1).size(), 1U);
  EXPECT_EQ(flow.graph().successors(0).size(), 1U);
}

TEST(Workflow, NeedsAStage) { EXPECT_EQ(refusal_of({}), "workflow 'flow' has no stage"); }

TEST(Workflow, ADuplicateStageIsNamed) {
  EXPECT_EQ(refusal_of({stage("a"), stage("b"), stage("a")}), "workflow 'flow': duplicate stage 'a'");
}

TEST(Workflow, AnUnknownPredecessorIsNamed) {
  EXPECT_EQ(refusal_of({stage("a", {"b"})}), "workflow 'flow': stage 'a' comes after unknown stage 'b'");
}

TEST(Workflow, IdsOfBothKindsAreNotMixedUp) {
  EXPECT_EQ(refusal_of({stage("7"), stage("b", {Id(7)})}), "workflow 'flow': stage 'b' comes after unknown stage 7");
}

TEST(Workflow, ACycleIsNamedWithItsPath) {
  const auto message =
      refusal_of({stage("in"), stage("a", {"in", "c"}), stage("b", {"a"}), stage("c", {"b"}), stage("out", {"c"})});
  const std::vector<std::string> turns{"'a' -> 'b' -> 'c' -> 'a'", "'b' -> 'c' -> 'a' -> 'b'",
                                       "'c' -> 'a' -> 'b' -> 'c'"};
  EXPECT_TRUE(std::any_of(turns.begin(), turns.end(), [&](const auto& turn) {
    return message == "stages form a cycle: " + turn;
  })) << message;
}

TEST(Workflow, AStageAfterItselfIsACycle) {
  EXPECT_EQ(refusal_of({stage("in"), stage("a", {"in", "a"})}), "stages form a cycle: 'a' -> 'a'");
}

TEST(Workflow, ServicesMustBeFiniteAndNotNegative) {
  for (const double bad : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    StageSpec total = stage("a");
    total.service_s = bad;
    EXPECT_NE(refusal_of({total}).find("stage 'a': service_s must be finite"), std::string::npos);
    StageSpec request = stage("a");
    request.request_s = bad;
    EXPECT_NE(refusal_of({request}).find("stage 'a': request_s must be finite"), std::string::npos);
  }
}

TEST(Workflow, AServiceOfZeroIsLegal) { EXPECT_EQ(Workflow(Id("flow"), {stage("a", {}, 0.0)}).critical_path_s(), 0.0); }

/// Linear in the size and without recursion: milliseconds here, with room for a sanitizer and a busy machine.
constexpr std::chrono::seconds kPatience{5};

double timed_critical_path(std::vector<StageSpec> stages) {
  const auto start = std::chrono::steady_clock::now();
  const Workflow flow(Id("flow"), std::move(stages));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  return flow.critical_path_s();
}

TEST(Workflow, AChainOfTenThousandStages) {
  std::vector<StageSpec> stages;
  for (std::int64_t at = 0; at < 10'000; ++at) {
    stages.push_back(stage(Id(at), at == 0 ? std::vector<Id>{} : std::vector<Id>{Id(at - 1)}));
  }
  EXPECT_DOUBLE_EQ(timed_critical_path(std::move(stages)), 10'000.0);
}

TEST(Workflow, AFanOutToTenThousandStagesAndBack) {
  std::vector<StageSpec> stages{stage("in")};
  std::vector<Id> middle;
  for (std::int64_t at = 0; at < 10'000; ++at) {
    stages.push_back(stage(Id(at), {"in"}));
    middle.emplace_back(at);
  }
  stages.push_back(stage("out", middle));
  EXPECT_DOUBLE_EQ(timed_critical_path(std::move(stages)), 3.0);
}

TEST(Workflow, ACycleOfTenThousandStagesIsFound) {
  std::vector<StageSpec> stages;
  for (std::int64_t at = 0; at < 10'000; ++at) {
    stages.push_back(stage(Id(at), {Id((at + 9'999) % 10'000)}));
  }
  const auto message = refusal_of(std::move(stages));
  EXPECT_EQ(message.rfind("stages form a cycle: ", 0), 0U);
  EXPECT_EQ(std::count(message.begin(), message.end(), '>'), 10'000);
}

}  // namespace
}  // namespace topas::testing
