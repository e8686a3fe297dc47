// What siblings are worth together: never less than any admissions, and the same however it is asked.
#include "joint_worth.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "prefix_search.hpp"
#include "support/world.hpp"

namespace topas::testing {
namespace {

using detail::GreedyPack;
using detail::Instance;
using detail::JointWorth;
using detail::kPrices;
using detail::PathScratch;
using detail::PrefixSet;
using detail::Prices;
using detail::TaskView;
using detail::Worth;

/// A task like an earlier one: a waiting request of each agent that has one in that, so that they share a group.
void add_twin(World& world, Random& random, std::vector<std::uint32_t> agents, std::int64_t& next) {
  std::vector<double> totals(agents.size());
  std::generate(totals.begin(), totals.end(), [&random] { return random.quarters(6); });
  const auto stages = static_cast<std::uint32_t>(agents.size());
  const auto task = world.task(std::move(totals), Adjacency(stages), 0.0, 1.0 + random.unit());
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    world.waiting(Id(next++), agents[stage], task, random.between(1, 15), random.quarters(4), stage);
  }
}

/// Siblings; every agent has a request, as those of a decision have, and the last one only one that runs alone.
void fill(World& world, Random& random) {
  fill_with_siblings(world, random);
  const Instance& siblings = world.build();
  const auto agents = static_cast<std::uint32_t>(siblings.agents.size());
  std::set<std::uint32_t> idle;
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    if (siblings.agents[agent].waiting.size() + siblings.agents[agent].running.size() == 0) {
      idle.insert(agent);
    }
  }
  std::vector<std::uint32_t> of_first;
  for (const auto& request : siblings.waiting) {
    if (request.task == siblings.waiting.front().task) {
      of_first.push_back(request.agent);
    }
  }
  std::int64_t next = 100;
  for (const auto agent : idle) {
    world.waiting(Id(next++), agent, world.task({random.quarters(6)}), random.between(1, 15), random.quarters(4));
  }
  if (!of_first.empty() && random.chance(0.7)) {
    add_twin(world, random, of_first, next);
  }
  world.running(Id(next++), world.agent(1), world.task({1.0}), 1, 0.0, 0.0, 1.0);
}

Config random_sibling_config(Random& random) {
  Config config = random_config(random);
  config.count_running = random.chance(0.5);
  return config;
}

Prices random_prices(Random& random) {
  Prices prices;
  for (std::size_t price = 0; price < kPrices; ++price) {
    prices.token[price] = random.chance(0.2) ? 0.0 : 0.4 * random.unit();
    prices.slot[price] = random.chance(0.5) ? 0.0 : random.unit();
  }
  return prices;
}

/// A world with the joint worth of its sets at random prices.
class Siblings {
 public:
  explicit Siblings(Random& random)
      : world_(random_sibling_config(random)),
        instance_(filled(world_, random)),
        pack_(instance_),
        prices_(random_prices(random)) {
    for (const auto task : instance_.waiting_tasks) {
      if (JointWorth::counts(pack_, instance_.tasks[task])) {
        jointly_.push_back(task);
      }
    }
  }

  [[nodiscard]] const Instance& instance() const noexcept { return instance_; }
  [[nodiscard]] const Prices& prices() const noexcept { return prices_; }
  [[nodiscard]] std::size_t joint_tasks() const noexcept { return jointly_.size(); }
  [[nodiscard]] std::size_t other_tasks() const noexcept { return instance_.waiting_tasks.size() - jointly_.size(); }
  /// An agent that changes nothing, inside or outside.
  [[nodiscard]] std::uint32_t nothing() const noexcept {
    return static_cast<std::uint32_t>(instance_.agents.size() - 1);
  }
  [[nodiscard]] JointWorth joint_worth() { return {instance_, pack_, prices_, jointly_, worth_apart(), scratch_}; }

 private:
  static const Instance& filled(World& world, Random& random) {
    fill(world, random);
    return world.build();
  }
  /// Of each agent, what its requests of tasks that do not count jointly are worth.
  [[nodiscard]] std::vector<Worth> worth_apart() const {
    std::vector<Worth> out(instance_.agents.size(), Worth{});
    for (std::uint32_t request = 0; request < instance_.waiting.size(); ++request) {
      const auto& view = instance_.waiting[request];
      if (std::find(jointly_.begin(), jointly_.end(), view.task) != jointly_.end()) {
        continue;
      }
      for (std::size_t price = 0; price < kPrices; ++price) {
        const double cost = prices_.token[price] * static_cast<double>(view.kv_tokens) + prices_.slot[price];
        out[view.agent][price] += std::max(pack_.most_gain(request) - cost, 0.0);
      }
    }
    return out;
  }

  World world_;
  const Instance& instance_;
  GreedyPack pack_;
  Prices prices_;
  std::vector<std::uint32_t> jointly_;
  PathScratch scratch_;
};

/// The most that admissions from a set are worth, by trying all of them. Tasks share no gains, so that after each task
/// the best of each set of agents served is enough.
class AllAdmissions {
 public:
  AllAdmissions(const Instance& instance, const Prices& prices) : instance_(instance), prices_(prices) {}

  struct Most {
    Worth covering;  ///< where each agent without a running request gets one admitted
    Worth free;      ///< whichever agents get one
  };
  [[nodiscard]] Most most_worth(const PrefixSet& members) {
    members_ = members;
    std::size_t uncovered = 0;
    for (const auto agent : members) {
      uncovered |= instance_.agents[agent].running.size() == 0 ? std::size_t{1} << agent : 0;
    }
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    Worth none{};
    none.fill(kNone);
    best_.assign(std::size_t{1} << instance_.agents.size(), none);
    best_[0] = Worth{};
    for (const TaskView& task : instance_.tasks) {
      admit_of(task);
    }
    Most out{none, none};
    for (std::size_t served = 0; served < best_.size(); ++served) {
      raise(out.free, best_[served]);
      if ((uncovered & ~served) == 0) {
        raise(out.covering, best_[served]);
      }
    }
    return out;
  }

 private:
  /// Some requests of one task.
  struct Choice {
    std::size_t served = 0;  // agents
    Worth worth{};
  };

  static void raise(Worth& most, const Worth& worth) {
    std::transform(most.begin(), most.end(), worth.begin(), most.begin(),
                   [](double a, double b) { return std::max(a, b); });
  }
  [[nodiscard]] bool inside(std::uint32_t agent) const {
    return std::binary_search(members_.begin(), members_.end(), agent);
  }

  /// Takes all choices among the waiting requests of the task, those of the set's agents.
  void admit_of(const TaskView& task) {
    std::uint64_t kept = 0;
    for (auto at = task.running.begin; instance_.config->count_running && at < task.running.end; ++at) {
      const auto& request = instance_.running[instance_.running_of_tasks[at]];
      kept |= inside(request.agent) ? std::uint64_t{1} << request.bit : 0;
    }
    std::vector<std::uint32_t> free;
    for (auto at = task.waiting.begin; at < task.waiting.end; ++at) {
      if (inside(instance_.waiting[instance_.waiting_of_tasks[at]].agent)) {
        free.push_back(instance_.waiting_of_tasks[at]);
      }
    }
    const std::vector<Worth> before = best_;
    for (std::size_t set = 1; set < std::size_t{1} << free.size(); ++set) {
      const Choice choice = choose(task, kept, free, set);
      for (std::size_t served = 0; served < before.size(); ++served) {
        Worth worth = before[served];
        std::transform(worth.begin(), worth.end(), choice.worth.begin(), worth.begin(), std::plus<>());
        raise(best_[served | choice.served], worth);
      }
    }
  }

  /// Admits those of the free requests that the set names.
  [[nodiscard]] Choice choose(const TaskView& task, std::uint64_t kept, const std::vector<std::uint32_t>& free,
                              std::size_t set) {
    Choice out;
    std::uint64_t completed = kept;
    double tokens = 0.0;
    double slots = 0.0;
    for (std::size_t at = 0; at < free.size(); ++at) {
      if ((set >> at & 1U) != 0) {
        const auto& request = instance_.waiting[free[at]];
        completed |= std::uint64_t{1} << request.bit;
        out.served |= std::size_t{1} << request.agent;
        tokens += static_cast<double>(request.kv_tokens);
        slots += 1.0;
      }
    }
    const double gain = task.scale() * (task.model->expected_path({&kept, 1}, scratch_) -
                                        task.model->expected_path({&completed, 1}, scratch_));
    for (std::size_t price = 0; price < kPrices; ++price) {
      out.worth[price] = gain - (prices_.token[price] * tokens + prices_.slot[price] * slots);
    }
    return out;
  }

  const Instance& instance_;
  const Prices& prices_;
  PathScratch scratch_;
  PrefixSet members_;
  std::vector<Worth> best_;  // of each set of agents served so far
};

/// How often which case occurred.
struct Compared {
  std::size_t positive = 0;
  std::size_t negative = 0;  // agents must be served that are not worth it
  std::size_t reached = 0;   // nothing is lost by serving all of them
  std::size_t charged = 0;   // something is, and some of it is told
};

/// The bound lies between what may be admitted and the best choice of all, and where they are one it is that.
void expect_between(const Worth& bound, const AllAdmissions::Most& most, double rounding, Compared& compared) {
  for (std::size_t price = 0; price < kPrices; ++price) {
    ASSERT_GE(bound[price], most.covering[price] - rounding) << "price " << price;
    ASSERT_LE(bound[price], most.free[price] + rounding) << "price " << price;
    compared.positive += most.covering[price] > 0.0 ? 1U : 0U;
    compared.negative += most.covering[price] < 0.0 ? 1U : 0U;
    compared.reached += most.free[price] > 0.0 && most.free[price] <= most.covering[price] ? 1U : 0U;
    compared.charged += bound[price] < most.free[price] - rounding ? 1U : 0U;
  }
}

TEST(JointWorth, IsNeverBelowAnyAdmissionsNorAboveTheBestChoice) {
  Random random(221);
  Compared compared;
  std::array<std::size_t, 4> by_size{};  // toggled agents: none, one, two or more
  for (int round = 0; round < 1000; ++round) {
    Siblings siblings(random);
    const Instance& instance = siblings.instance();
    JointWorth joint = siblings.joint_worth();
    AllAdmissions admissions(instance, siblings.prices());
    const PrefixSet base = random_set(random, instance, 0.4);
    joint.start_from(base);
    for (int set = 0; set < 8; ++set) {
      const PrefixSet changes = random_set(random, instance, 0.1 * static_cast<double>(set));
      ++by_size[std::min<std::size_t>(changes.size(), 3)];
      const AllAdmissions::Most most = admissions.most_worth(toggled(base, changes));
      const double rounding = 1e-9 * (1.0 + joint.size());
      ASSERT_NO_FATAL_FAILURE(expect_between(joint.with_toggled(changes), most, rounding, compared))
          << "round " << round << ", set " << set;
    }
  }
  EXPECT_GT(compared.positive, 10000U);
  EXPECT_GT(compared.negative, 1000U);
  EXPECT_GT(compared.reached, 5000U);
  EXPECT_GT(compared.charged, 1000U);
  for (const auto count : by_size) {
    EXPECT_GT(count, 400U);
  }
}

void expect_near(const Worth& got, const Worth& expected) {
  for (std::size_t price = 0; price < kPrices; ++price) {
    ASSERT_NEAR(got[price], expected[price], 1e-9 * (1.0 + std::abs(expected[price]))) << "price " << price;
  }
}

using Pair = std::array<std::uint32_t, 2>;

/// One or two agents, for the most part with one of those asked before.
class Pairs {
 public:
  Pairs(Random& random, const Instance& instance) : random_(random), agents_(instance.agents.size()) {}

  [[nodiscard]] Pair next() {
    Pair pair{any(), any()};
    if (random_.chance(0.7)) {
      pair[random_.below(2)] = latest_[random_.below(2)];
    }
    latest_ = pair;
    return pair;
  }

 private:
  [[nodiscard]] std::uint32_t any() { return static_cast<std::uint32_t>(random_.below(agents_)); }

  Random& random_;
  std::uint64_t agents_;
  Pair latest_{};
};

/// What a set is worth, told by nothing but that set.
Worth worth_anew(JointWorth& other, const PrefixSet& members) {
  other.start_from(members);
  return other.with_toggled({});
}

/// How often what may matter to a pair occurred.
class PairTally {
 public:
  void count(const PrefixSet& base, const Pair& pair) {
    const auto has = [&base](std::uint32_t agent) { return std::binary_search(base.begin(), base.end(), agent); };
    ++inside_[(has(pair[0]) ? 1U : 0U) + (has(pair[1]) ? 2U : 0U)];
    for (std::size_t at = 0; at < 2; ++at) {
      as_last_[at] += pair[at] == last_[at] ? 1U : 0U;
      crossed_[at] += pair[at] == last_[1 - at] ? 1U : 0U;
    }
    last_ = pair;
  }
  void expect_above(std::size_t least) const {
    for (const auto count : inside_) {
      EXPECT_GT(count, least);
    }
    for (std::size_t at = 0; at < 2; ++at) {
      EXPECT_GT(as_last_[at], least);
      EXPECT_GT(crossed_[at], least);
    }
  }

 private:
  Pair last_{};
  std::array<std::size_t, 4> inside_{};   // none of them, the first, the second, both
  std::array<std::size_t, 2> as_last_{};  // the first, or the second, is that of the pair before
  std::array<std::size_t, 2> crossed_{};  // it is the other one of the pair before
};

/// Whether two agents change more or less together than one by one.
bool differs_jointly(JointWorth& other, const PrefixSet& base, const Pair& pair) {
  const PrefixSet both{std::min(pair[0], pair[1]), std::max(pair[0], pair[1])};
  const double together = worth_anew(other, toggled(base, both))[0] - worth_anew(other, toggled(base, {pair[0]}))[0] -
                          worth_anew(other, toggled(base, {pair[1]}))[0] + worth_anew(other, base)[0];
  return std::abs(together) > 1e-6;
}

TEST(JointWorth, TellsOneAgentOrTwoAsItTellsAny) {
  Random random(222);
  std::size_t jointly = 0;
  std::size_t singles = 0;
  PairTally tally;
  for (int round = 0; round < 300; ++round) {
    Siblings siblings(random);
    const Instance& instance = siblings.instance();
    JointWorth joint = siblings.joint_worth();
    JointWorth other = siblings.joint_worth();
    Pairs pairs(random, instance);
    for (int call = 0; call < 80;) {
      const PrefixSet base = random_set(random, instance, 0.5);
      joint.start_from(base);
      for (const int end = call + 20; call < end; ++call) {
        const Pair pair = pairs.next();
        PrefixSet changes(pair.begin(), pair[0] == pair[1] ? pair.begin() + 1 : pair.end());
        const Worth got = random.chance(0.5) ? joint.with_toggled(pair[0], pair[1]) : joint.with_toggled(changes);
        std::sort(changes.begin(), changes.end());
        ASSERT_NO_FATAL_FAILURE(expect_near(got, worth_anew(other, toggled(base, changes))))
            << "round " << round << ", call " << call;
        if (changes.size() == 1) {
          ++singles;
          continue;
        }
        tally.count(base, pair);
        jointly += differs_jointly(other, base, pair) ? 1U : 0U;
      }
    }
  }
  EXPECT_GT(jointly, 1000U);
  EXPECT_GT(singles, 1000U);
  tally.expect_above(2000);
}

TEST(JointWorth, TellsThreeAgentsOrMoreAsItTellsTheirSet) {
  Random random(223);
  std::size_t pairs = 0;
  std::size_t larger = 0;
  for (int round = 0; round < 400; ++round) {
    Siblings siblings(random);
    const Instance& instance = siblings.instance();
    JointWorth joint = siblings.joint_worth();
    JointWorth other = siblings.joint_worth();
    const PrefixSet base = random_set(random, instance, 0.5);
    joint.start_from(base);
    for (int call = 0; call < 15; ++call) {
      PrefixSet changes = random_set(random, instance, 0.4);
      if (changes.size() < 2) {
        continue;
      }
      if (changes.size() == 2 && changes.back() != siblings.nothing()) {
        const Worth of_two = joint.with_toggled(changes.front(), changes.back());
        changes.push_back(siblings.nothing());
        ASSERT_NO_FATAL_FAILURE(expect_near(of_two, joint.with_toggled(changes))) << "round " << round;
        ++pairs;
      }
      larger += changes.size() > 2 ? 1U : 0U;
      ASSERT_NO_FATAL_FAILURE(expect_near(joint.with_toggled(changes), worth_anew(other, toggled(base, changes))))
          << "round " << round << ", call " << call;
    }
  }
  EXPECT_GT(pairs, 600U);
  EXPECT_GT(larger, 2000U);
}

TEST(JointWorth, CountsSomeTasksJointlyAndOthersApart) {
  Random random(224);
  std::size_t jointly = 0;
  std::size_t apart = 0;
  std::size_t with_running = 0;
  for (int round = 0; round < 100; ++round) {
    const Siblings siblings(random);
    jointly += siblings.joint_tasks();
    apart += siblings.other_tasks();
    for (const TaskView& task : siblings.instance().tasks) {
      const bool counted = siblings.instance().config->count_running && task.running.size() > 0;
      with_running += counted && task.waiting.size() > 0 ? 1U : 0U;
    }
  }
  EXPECT_GT(jointly, 150U) << "or the tests above test little";
  EXPECT_GT(apart, 50U);
  EXPECT_GT(with_running, 30U);
}

}  // namespace
}  // namespace topas::testing
