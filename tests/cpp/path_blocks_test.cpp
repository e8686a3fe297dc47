// Separators: by hand, and against their definition on random DAGs.
#include "path_blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/naive.hpp"

namespace topas::testing {
namespace {

std::vector<StageSet> blocks_of(const Adjacency& after, const std::vector<std::uint32_t>& finished = {}) {
  Stages stages(Totals(after.size(), {1.0}));
  for (const auto stage : finished) {
    stages.finish(stage);
  }
  std::vector<StageSet> out;
  for (const auto& block : detail::path_blocks(graph_of(after), stages.outlooks())) {
    out.emplace_back(block.begin(), block.end());
  }
  return out;
}

using Blocks = std::vector<StageSet>;

TEST(PathBlocks, EveryStageOfAChainIsASeparator) {
  EXPECT_EQ(blocks_of({{}, {0}, {1}, {2}}), (Blocks{{0}, {1}, {2}, {3}}));
}

TEST(PathBlocks, AChainNumberedBackwards) { EXPECT_EQ(blocks_of({{1}, {2}, {}}), (Blocks{{2}, {1}, {0}})); }

TEST(PathBlocks, ADiamondHasARunBetweenItsEnds) {
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1, 2}}), (Blocks{{0}, {1, 2}, {3}}));
}

TEST(PathBlocks, TwoDiamondsInARow) {
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1, 2}, {3}, {3}, {4, 5}}), (Blocks{{0}, {1, 2}, {3}, {4, 5}, {6}}));
}

TEST(PathBlocks, ATransitiveEdgeAroundAStageDoesNotHideIt) {
  // main0 -> sub0 -> main1 and main0 -> main1: sub0 lies before or after every other stage.
  EXPECT_EQ(blocks_of({{}, {0}, {0, 1}}), (Blocks{{0}, {1}, {2}}));
}

TEST(PathBlocks, TransitiveEdgesAroundTwoParallelStages) {
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {0, 1, 2}}), (Blocks{{0}, {1, 2}, {3}}));
}

TEST(PathBlocks, AnEdgeAcrossARunKeepsItTogether) {
  // 0 -> 1 -> 2 -> 4, 0 -> 3 -> 4: 1 and 2 are before or after each other, but neither is comparable with 3.
  EXPECT_EQ(blocks_of({{}, {0}, {1}, {0}, {2, 3}}), (Blocks{{0}, {1, 2, 3}, {4}}));
}

TEST(PathBlocks, TwoUnconnectedPartsAreOneBlock) { EXPECT_EQ(blocks_of({{}, {0}, {}, {2}}), (Blocks{{0, 1, 2, 3}})); }

TEST(PathBlocks, SourcesWithoutACommonStart) { EXPECT_EQ(blocks_of({{}, {}, {0, 1}}), (Blocks{{0, 1}, {2}})); }

TEST(PathBlocks, SinksWithoutACommonEnd) { EXPECT_EQ(blocks_of({{}, {0}, {0}}), (Blocks{{0}, {1, 2}})); }

TEST(PathBlocks, FinishedStagesAtTheFrontAreGone) {
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1, 2}}, {0}), (Blocks{{1, 2}, {3}}));
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1, 2}}, {0, 1}), (Blocks{{2}, {3}}));
}

TEST(PathBlocks, FinishedStagesAtTheEndAreGone) {
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1, 2}}, {3}), (Blocks{{0}, {1, 2}}));
}

TEST(PathBlocks, AFinishedStageBetweenUnfinishedOnesStays) {
  EXPECT_EQ(blocks_of({{}, {0}, {1}}, {1}), (Blocks{{0}, {1}, {2}}));
}

TEST(PathBlocks, EdgesThroughFinishedStagesConnect) {
  // Without the finished 1, stage 0 would not be before 3.
  EXPECT_EQ(blocks_of({{}, {0}, {0}, {1}}, {1}), (Blocks{{0}, {1, 2, 3}}));
}

TEST(PathBlocks, NothingIsLeftOfAFinishedTask) { EXPECT_TRUE(blocks_of({{}, {0}}, {0, 1}).empty()); }

TEST(PathBlocks, OneStage) { EXPECT_EQ(blocks_of({{}}), (Blocks{{0}})); }

TEST(PathBlocks, StagesOfABlockAreInTopologicalOrder) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const Adjacency after = random_dag(random, 9, 0.3);
    const Stages stages(Totals(after.size(), {1.0}));
    std::vector<std::uint32_t> all;
    for (const auto& block : detail::path_blocks(graph_of(after), stages.outlooks())) {
      all.insert(all.end(), block.begin(), block.end());
    }
    for (std::size_t at = 0; at < all.size(); ++at) {
      for (const auto before : after[all[at]]) {
        EXPECT_LT(std::find(all.begin(), all.end(), before) - all.begin(), static_cast<std::ptrdiff_t>(at));
      }
    }
  }
}

TEST(PathBlocks, AgreeWithTheDefinitionOnRandomDags) {
  Random random(4);
  std::size_t separators = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto size = static_cast<std::uint32_t>(random.between(1, 10));
    const Adjacency after = random_dag(random, size, random.pick(std::vector{0.1, 0.3, 0.6, 0.9}));
    std::vector<bool> finished(size);
    std::vector<std::uint32_t> list;
    const double share = random.pick(std::vector{0.0, 0.2, 0.5});
    for (std::uint32_t stage = 0; stage < size; ++stage) {
      finished[stage] = random.chance(share);
      if (finished[stage]) {
        list.push_back(stage);
      }
    }
    const auto expected = naive_blocks(after, finished);
    ASSERT_EQ(blocks_of(after, list), expected) << "round " << round;
    separators += expected.size() > 1 ? 1U : 0U;
  }
  EXPECT_GT(separators, 1000U) << "the cases have something to cut";
}

}  // namespace
}  // namespace topas::testing
