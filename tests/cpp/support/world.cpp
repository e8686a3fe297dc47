#include "support/world.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace topas::testing {

Config plain_config(std::int64_t capacity) {
  Config config = Config::paper();
  config.kv_capacity_tokens = capacity;
  config.kv_bytes_per_token = 1.0;
  config.swap_bytes_per_s = 100.0;
  config.decode_s_per_token = 0.5;
  config.age_weight = 0.0;
  return config;
}

std::uint32_t World::agent(std::int64_t prefix_tokens, bool resident, std::int64_t next_stages) {
  const auto number = static_cast<std::uint32_t>(agents_.size());
  ids_.emplace_back(static_cast<std::int64_t>(number));
  agents_.push_back({&ids_.back(), prefix_tokens, resident, next_stages});
  return number;
}

std::uint32_t World::task(std::vector<double> totals, Adjacency after, double arrival, double age_factor) {
  Totals lists;
  for (const double total : totals) {
    lists.push_back({total});
  }
  after.resize(totals.size());
  Task& added = tasks_.emplace_back();
  added.stages.emplace_back(std::move(lists));
  added.after = std::move(after);
  added.arrival = arrival;
  added.age_factor = age_factor;
  return static_cast<std::uint32_t>(tasks_.size() - 1);
}

void World::waiting(Id id, std::uint32_t agent, std::uint32_t task, std::int64_t kv_tokens, double service_s,
                    std::uint32_t stage) {
  requests_.push_back({std::move(id), agent, task, stage, kv_tokens, service_s, 0.0, 0.0, false});
}

void World::running(Id id, std::uint32_t agent, std::uint32_t task, std::int64_t kv_tokens, double redo, double revoke,
                    double service_s, std::uint32_t stage) {
  requests_.push_back({std::move(id), agent, task, stage, kv_tokens, service_s, redo, revoke, true});
}

void World::build_task(std::uint32_t number) {
  const Task& task = tasks_[number];
  std::vector<detail::RequestOutlook> outlooks;
  for (const auto& request : requests_) {
    if (request.task == number) {
      outlooks.push_back({request.stage, request.service_s});
    }
  }
  const Id& id = ids_.emplace_back(static_cast<std::int64_t>(number));
  const auto& model = models_.emplace_back(config_, id, graph_of(task.after), task.stages.front().outlooks(), outlooks,
                                           detail::TaskModel::Scope::whole_path);
  instance_.tasks.push_back({&id, task.arrival, task.age_factor});
  instance_.tasks.back().overdue = task.overdue && config_.overtake_limit > 0.0;
  instance_.tasks.back().take(model);
}

void World::build_requests() {
  std::vector<std::uint32_t> bits(tasks_.size(), 0);
  for (const auto& request : requests_) {
    auto& list = request.running ? instance_.running : instance_.waiting;
    list.push_back({&request.id, request.agent, request.task, bits[request.task]++, request.kv_tokens, request.redo,
                    request.revoke, request.service_s, request.firm});
  }
  const auto by_agent_and_id = [](const auto& a, const auto& b) {
    return a.agent != b.agent ? a.agent < b.agent : *a.id < *b.id;
  };
  std::sort(instance_.waiting.begin(), instance_.waiting.end(), by_agent_and_id);
  std::sort(instance_.running.begin(), instance_.running.end(), by_agent_and_id);
}

const detail::Instance& World::build() {
  std::sort(requests_.begin(), requests_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  models_.clear();
  instance_ = {};
  instance_.config = &config_;
  instance_.agents = agents_;
  instance_.idle_resident_tokens = idle_tokens_;
  for (std::uint32_t number = 0; number < tasks_.size(); ++number) {
    build_task(number);
  }
  build_requests();
  instance_.index();
  return instance_;
}

std::uint32_t World::waiting_index(const Id& id) const {
  const auto& list = instance_.waiting;
  const auto found = std::find_if(list.begin(), list.end(), [&id](const auto& view) { return *view.id == id; });
  return static_cast<std::uint32_t>(found - list.begin());
}

void fill_randomly(World& world, Random& random) {
  const auto agents = static_cast<std::uint32_t>(random.between(1, 5));
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    world.agent(random.between(0, 30), random.chance(0.4), random.between(0, 2));
  }
  if (random.chance(0.2)) {
    world.idle_resident(random.between(0, 20));
  }
  const auto tasks = static_cast<std::uint32_t>(random.between(1, 4));
  std::vector<std::uint32_t> sizes;
  for (std::uint32_t task = 0; task < tasks; ++task) {
    sizes.push_back(static_cast<std::uint32_t>(random.between(1, 4)));
    std::vector<double> totals(sizes.back());
    std::generate(totals.begin(), totals.end(), [&random] { return random.quarters(6); });
    world.task(std::move(totals), random_dag(random, sizes.back(), 0.4), static_cast<double>(random.between(0, 2)),
               1.0 + random.quarters(1));
  }
  const std::int64_t requests = random.between(1, 10);
  for (std::int64_t at = 0; at < requests; ++at) {
    const auto agent = static_cast<std::uint32_t>(random.below(agents));
    const auto task = static_cast<std::uint32_t>(random.below(tasks));
    const Id id((at * 37) % 100);
    if (random.chance(0.25)) {
      world.running(id, agent, task, random.between(1, 30), random.quarters(2), random.quarters(2), random.quarters(3));
    } else {
      world.waiting(id, agent, task, random.between(1, 30), random.quarters(4),
                    static_cast<std::uint32_t>(random.below(sizes[task])));
    }
  }
}

void fill_with_a_queue(World& world, Random& random) {
  const auto agents = static_cast<std::uint32_t>(random.between(3, 7));
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    world.agent(random.between(0, 15), random.chance(0.4), random.between(0, 2));
  }
  const auto requests = static_cast<std::uint32_t>(random.between(10, 150));
  for (std::uint32_t number = 0; number < requests; ++number) {
    const auto arrival = static_cast<double>(random.between(0, 9));
    const auto task = world.task({1.0}, {}, arrival, 1.0 + random.quarters(1));
    if (random.chance(0.02)) {
      world.overdue(task);
    }
    const Id id((number * 37) % 1000);
    const auto agent = static_cast<std::uint32_t>(random.below(agents));
    if (random.chance(0.04)) {
      world.running(id, agent, task, random.between(1, 30), random.quarters(2), random.quarters(2), random.quarters(3));
      if (random.chance(0.1)) {
        world.firm();
      }
    } else {
      world.waiting(id, agent, task, random.between(1, 30), random.quarters(4));
    }
  }
}

void fill_with_many(World& world, Random& random) {
  const auto agents = static_cast<std::uint32_t>(random.between(4, 8));
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    world.agent(random.between(0, 10), random.chance(0.5), random.between(0, 2));
  }
  std::int64_t number = 0;
  const std::int64_t enough = random.between(65, 190);
  for (std::int64_t waiting = 0; waiting < enough;) {
    std::vector<double> totals(static_cast<std::size_t>(random.between(1, 5)));
    std::generate(totals.begin(), totals.end(), [&random] { return random.quarters(6); });
    const auto stages = static_cast<std::uint32_t>(totals.size());
    const auto task = world.task(std::move(totals), random_dag(random, stages, 0.3),
                                 static_cast<double>(random.between(0, 9)), 1.0 + random.quarters(1));
    const bool large = waiting + 80 < enough && random.chance(0.02);
    for (auto left = large ? std::int64_t{80} : random.between(1, 4); left > 0; --left) {
      const Id id((number++ * 37) % 1000);
      const auto agent = static_cast<std::uint32_t>(random.below(agents));
      const auto stage = static_cast<std::uint32_t>(random.below(stages));
      const std::int64_t tokens = random.between(1, 30);
      if (random.chance(0.04)) {
        world.running(id, agent, task, tokens, random.quarters(2), random.quarters(2), random.quarters(3), stage);
      } else {
        world.waiting(id, agent, task, tokens, random.quarters(4), stage);
        ++waiting;
      }
    }
  }
}

void fill_with_siblings(World& world, Random& random) {
  const auto agents = static_cast<std::uint32_t>(random.between(3, 6));
  for (std::uint32_t agent = 0; agent < agents; ++agent) {
    world.agent(random.between(0, 10), random.chance(0.4), random.between(0, 2));
  }
  std::int64_t next = 0;
  for (std::uint32_t task = 0; task < 4; ++task) {
    std::vector<double> totals(static_cast<std::size_t>(random.between(1, 5)));
    std::generate(totals.begin(), totals.end(), [&random] { return random.quarters(6); });
    const auto stages = static_cast<std::uint32_t>(totals.size());
    world.task(std::move(totals), Adjacency(stages), static_cast<double>(random.between(0, 2)), 1.0 + random.unit());
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const auto agent = static_cast<std::uint32_t>(random.below(agents));
      const std::int64_t tokens = random.between(1, 15);
      if (random.chance(0.2)) {
        world.running(Id(next++), agent, task, tokens, random.quarters(2), random.quarters(2), random.quarters(3),
                      stage);
      } else {
        world.waiting(Id(next++), agent, task, tokens, random.quarters(4), stage);
      }
    }
  }
}

std::vector<std::uint32_t> random_set(Random& random, const detail::Instance& instance, double chance) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t agent = 0; agent < instance.agents.size(); ++agent) {
    if (random.chance(chance)) {
      out.push_back(agent);
    }
  }
  return out;
}

std::vector<std::uint32_t> toggled(const std::vector<std::uint32_t>& set, const std::vector<std::uint32_t>& agents) {
  std::vector<std::uint32_t> out;
  std::set_symmetric_difference(set.begin(), set.end(), agents.begin(), agents.end(), std::back_inserter(out));
  return out;
}

}  // namespace topas::testing
