// What decisions and events of recorded runs cost in C++ (docs/performance.md).
//
//     topas_bench [--replays K] LOG...    microseconds, each call with the lowest of K replays
//     topas_bench --count LOG...          one replay, for an instruction count (bench/instructions.py)
//     topas_bench --check LOG...          each decision beside those of the other doors, the same bits
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "replay.hpp"

namespace topas::bench {

namespace {

struct Options {
  bool count = false;
  bool check = false;
  int replays = 5;
  std::vector<std::string> logs;
};

Options read_options(std::span<char*> arguments) {
  Options options;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    const std::string word = arguments[at];
    if (word == "--count") {
      options.count = true;
    } else if (word == "--check") {
      options.check = true;
    } else if (word == "--replays" && at + 1 < arguments.size()) {
      options.replays = std::max(1, std::stoi(arguments[++at]));
    } else {
      options.logs.push_back(word);
    }
  }
  if (options.logs.empty()) {
    throw std::runtime_error("usage: topas_bench [--count | --check | --replays K] LOG...");
  }
  return options;
}

/// The smallest cost that so large a share of the calls stays within; `costs` ascending.
double quantile(const std::vector<double>& costs, double share) {
  const double rank = std::ceil(share * static_cast<double>(costs.size()));
  return costs[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

void print_costs(std::string_view name, std::vector<double> costs) {
  std::sort(costs.begin(), costs.end());
  double sum = 0.0;
  for (const double cost : costs) {
    sum += cost;
  }
  std::printf("  %-18.*s %7zu  mean %.3f  p50 %.3f  p99 %.3f  max %.3f\n", static_cast<int>(name.size()), name.data(),
              costs.size(), sum / static_cast<double>(costs.size()), quantile(costs, 0.5), quantile(costs, 0.99),
              costs.back());
}

void time_log(const EventLog& log, int replays) {
  std::vector<double> lowest = replay(log, true).took_us;
  for (int more = 1; more < replays; ++more) {
    const std::vector<double> took = replay(log, true).took_us;
    std::transform(took.begin(), took.end(), lowest.begin(), lowest.begin(),
                   [](double left, double right) { return std::min(left, right); });
  }
  std::map<std::string_view, std::vector<double>> by_name;
  std::size_t at = 0;
  for (const auto& event : log.events) {
    if (event.measured) {
      by_name[event.verb->name].push_back(lowest[at++]);
    }
  }
  for (const auto& [name, costs] : by_name) {
    print_costs(name, costs);
  }
}

void run(const Options& options) {
  for (const auto& path : options.logs) {
    const EventLog log = read_log(path);
    if (options.check) {
      std::printf("%s\n  %zu decisions are those of the other doors\n", path.c_str(), check(log));
      continue;
    }
    const Replay once = replay(log, false);
    std::printf("%s\n  checksum %08x\n", path.c_str(), static_cast<unsigned>(once.checksum));
    if (!options.count) {
      time_log(log, options.replays);
    }
  }
}

}  // namespace

}  // namespace topas::bench

int main(int count, char** arguments) {
  try {
    topas::bench::run(topas::bench::read_options({arguments + 1, static_cast<std::size_t>(count - 1)}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
