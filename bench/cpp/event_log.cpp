#include "event_log.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace topas::bench {

namespace {

using Words = std::vector<std::string_view>;

constexpr Verb kVerbs[] = {
    {"register_agent", "in",
     [](Scheduler& to, const Event& e, Decision&) { to.register_agent(e.ids[0], e.numbers[0]); }},
    {"register_workflow", "", [](Scheduler& to, const Event& e, Decision&) { to.register_workflow(*e.workflow); }},
    {"task_arrived", "iis",
     [](Scheduler& to, const Event& e, Decision&) { to.task_arrived(e.now, e.ids[0], e.ids[1], e.seconds); }},
    {"task_cancelled", "i", [](Scheduler& to, const Event& e, Decision&) { to.task_cancelled(e.now, e.ids[0]); }},
    {"request_ready", "iiinn",
     [](Scheduler& to, const Event& e, Decision&) {
       to.request_ready(e.now, e.ids[0], e.ids[1], e.ids[2], e.numbers[0], e.numbers[1]);
     }},
    {"request_progress", "in",
     [](Scheduler& to, const Event& e, Decision&) { to.request_progress(e.now, e.ids[0], e.numbers[0]); }},
    {"request_completed", "is",
     [](Scheduler& to, const Event& e, Decision&) { to.request_completed(e.now, e.ids[0], e.seconds.value()); }},
    {"request_started", "i", [](Scheduler& to, const Event& e, Decision&) { to.request_started(e.now, e.ids[0]); }},
    {"stage_completed", "ii",
     [](Scheduler& to, const Event& e, Decision&) { to.stage_completed(e.now, e.ids[0], e.ids[1]); }},
    {"prefix_evicted", "i", [](Scheduler& to, const Event& e, Decision&) { to.prefix_evicted(e.now, e.ids[0]); }},
    {"decide", "", [](Scheduler& to, const Event& e, Decision& decision) { decision = to.decide(e.now); }},
    {"commit", "", [](Scheduler& to, const Event&, Decision& decision) { to.commit(decision); }},
};

Words split(std::string_view line) {
  Words words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

template <class Number>
Number number(std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) {
    throw std::runtime_error("not a number: " + std::string(word));
  }
  return value;
}

/// 7 or 'planner, percent-encoded.
Id make_id(std::string_view word) {
  if (!word.starts_with('\'')) {
    return number<std::int64_t>(word);
  }
  std::string plain;
  for (std::size_t at = 1; at < word.size(); ++at) {
    if (word[at] != '%') {
      plain += word[at];
      continue;
    }
    int code = 0;
    const std::string_view digits = word.substr(at + 1, 2);
    std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    plain += static_cast<char>(code);
    at += 2;
  }
  return plain;
}

/// A setting by the name of its field.
struct Setting {
  std::string_view name;
  std::function<void(Config&, std::string_view)> set;
};

template <class Field>
Setting setting(std::string_view name, Field Config::* field) {
  return {name, [field](Config& config, std::string_view word) {
            if constexpr (std::is_same_v<Field, bool>) {
              config.*field = number<int>(word) != 0;
            } else if constexpr (std::is_same_v<Field, std::optional<double>>) {
              config.*field = number<double>(word);
            } else {
              config.*field = number<Field>(word);
            }
          }};
}

/// One whose values go by names.
template <class Field>
Setting setting(std::string_view name, Field Config::* field, std::vector<std::pair<std::string_view, Field>> known) {
  return {name, [name, field, known = std::move(known)](Config& config, std::string_view word) {
            const auto text = std::get<std::string>(make_id(word).value());
            const auto found =
                std::find_if(known.begin(), known.end(), [&text](const auto& value) { return value.first == text; });
            if (found == known.end()) {
              throw std::runtime_error("unknown " + std::string(name) + " " + text);
            }
            config.*field = found->second;
          }};
}

void set(Config& config, std::string_view name, std::string_view value) {
  static const std::vector<Setting> settings = {
      setting("kv_capacity_tokens", &Config::kv_capacity_tokens),
      setting("kv_bytes_per_token", &Config::kv_bytes_per_token),
      setting("swap_bytes_per_s", &Config::swap_bytes_per_s),
      setting("decode_s_per_token", &Config::decode_s_per_token),
      setting("prefill_fixed_s", &Config::prefill_fixed_s),
      setting("prefill_s_per_token", &Config::prefill_s_per_token),
      setting("enumerate_max_agents", &Config::enumerate_max_agents),
      setting("max_evaluations", &Config::max_evaluations),
      setting("action_cap", &Config::action_cap),
      setting("max_running_requests", &Config::max_running_requests),
      setting("reuse_weight", &Config::reuse_weight),
      setting("age_weight", &Config::age_weight),
      setting("age_scale_s", &Config::age_scale_s),
      setting("exact_limit", &Config::exact_limit),
      setting("samples", &Config::samples),
      setting("seed", &Config::seed),
      setting("count_running", &Config::count_running),
      setting("age_credit", &Config::age_credit),
      setting("redo_weight", &Config::redo_weight),
      setting<RedoModel>("redo_model", &Config::redo_model,
                         {{"decode", RedoModel::decode}, {"prefill", RedoModel::prefill}, {"kept", RedoModel::kept}}),
      setting<MoveModel>("move_model", &Config::move_model, {{"tasks", MoveModel::tasks}, {"once", MoveModel::once}}),
      setting("move_weight", &Config::move_weight),
      setting("work_conserving", &Config::work_conserving),
      setting<GainModel>("gain_model", &Config::gain_model,
                         {{"path", GainModel::path}, {"service", GainModel::service}}),
      setting("urgency", &Config::urgency),
      setting<AdmitOrder>("admit_order", &Config::admit_order,
                          {{"density", AdmitOrder::density}, {"arrival", AdmitOrder::arrival}}),
      setting("preempt_limit", &Config::preempt_limit),
      setting("overtake_limit", &Config::overtake_limit),
      setting("backlog_weight", &Config::backlog_weight),
      setting("reserve_limit", &Config::reserve_limit),
      setting("rollout_scenarios", &Config::rollout_scenarios),
      setting("rollout_steps", &Config::rollout_steps),
      setting("rollout_margin", &Config::rollout_margin),
      setting("rollout_power", &Config::rollout_power),
  };
  const auto found = std::find_if(settings.begin(), settings.end(), [name](const auto& s) { return s.name == name; });
  if (found == settings.end()) {
    throw std::runtime_error("unknown setting " + std::string(name));
  }
  found->set(config, value);
}

StageSpec make_stage(const Words& words) {
  StageSpec stage{
      make_id(words.at(1)), make_id(words.at(2)), {}, number<double>(words.at(3)), number<double>(words.at(4))};
  std::transform(words.begin() + 5, words.end(), std::back_inserter(stage.after), make_id);
  return stage;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  EventLog read() {
    if (next() != Words{"topas-log", "1"}) {
      throw std::runtime_error(path_ + ": not a log");
    }
    while (!next().empty()) {
      try {
        take();
      } catch (const std::exception& error) {
        throw std::runtime_error(path_ + ": line " + std::to_string(line_number_) + ": " + error.what());
      }
    }
    return std::move(log_);
  }

 private:
  const Words& next() {
    ++line_number_;
    line_.clear();
    std::getline(file_, line_);
    words_ = split(line_);
    return words_;
  }

  void take() {
    if (words_[0] == "config") {
      set(log_.config, words_.at(1), words_.at(2));
    } else if (words_[0] == "at") {
      now_ = number<double>(words_.at(1));
    } else if (words_[0] == "measure") {
      measuring_ = true;
    } else {
      log_.events.push_back(make_event());
    }
  }

  Event make_event() {
    Event event;
    event.verb = std::find_if(std::begin(kVerbs), std::end(kVerbs), [this](const Verb& verb) {
      return verb.name == words_[0] || verb.name == "request_" + std::string(words_[0]);
    });
    if (event.verb == std::end(kVerbs)) {
      throw std::runtime_error("unknown event " + std::string(words_[0]));
    }
    event.now = now_;
    event.measured = measuring_ && !words_[0].starts_with("register_");
    if (event.verb->name == "register_workflow") {
      event.workflow = make_workflow();
      return event;
    }
    std::size_t ids = 0;
    std::size_t numbers = 0;
    for (std::size_t at = 0; at < event.verb->arguments.size() && at + 1 < words_.size(); ++at) {
      const std::string_view word = words_[at + 1];
      switch (event.verb->arguments[at]) {
        case 'i':
          event.ids.at(ids++) = make_id(word);
          break;
        case 'n':
          event.numbers.at(numbers++) = number<std::int64_t>(word);
          break;
        default:
          event.seconds = number<double>(word);
      }
    }
    return event;
  }

  Workflow make_workflow() {
    Id name = make_id(words_.at(1));
    std::vector<StageSpec> stages;
    for (auto left = number<std::size_t>(words_.at(2)); left > 0; --left) {
      stages.push_back(make_stage(next()));
    }
    return {std::move(name), std::move(stages)};
  }

  std::string path_;
  std::ifstream file_;
  std::string line_;
  Words words_;
  std::size_t line_number_ = 0;
  double now_ = 0.0;
  bool measuring_ = false;
  EventLog log_;
};

}  // namespace

EventLog read_log(const std::string& path) { return Reader(path).read(); }

}  // namespace topas::bench
