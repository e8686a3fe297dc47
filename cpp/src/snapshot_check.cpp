#include "snapshot_check.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "limits.hpp"
#include "text.hpp"
#include "topas/error.hpp"

namespace topas::detail {

namespace {

/// A place in the snapshot, written out only when something is wrong with it.
struct Path {
  const char* list;
  std::size_t index;
  const char* field;
};

std::string spell(const Path& path) { return text(path.list, "[", path.index, "].", path.field); }

template <class Value>
[[noreturn]] void refuse(const Path& path, const char* rule, const Value& value) {
  throw SnapshotError(text(spell(path), ": must be ", rule, ", got ", value));
}

void check_seconds(double value, const Path& path) {
  if (!std::isfinite(value) || value < 0.0) {
    refuse(path, "finite and at least 0", value);
  }
}

void check_tokens(std::int64_t value, std::int64_t least, const Path& path) {
  if (value < least || value > kTokensLimit) {
    refuse(path, least == 0 ? "at least 0 and at most 2**48" : "at least 1 and at most 2**48", value);
  }
}

using Known = std::unordered_map<Id, std::size_t, IdHash>;

template <class Entry>
Known index_ids(const std::vector<Entry>& entries, const char* list) {
  Known known;
  for (std::size_t at = 0; at < entries.size(); ++at) {
    if (!known.emplace(entries[at].id, at).second) {
      throw SnapshotError(text(spell({list, at, "id"}), ": duplicate ", to_string(entries[at].id)));
    }
  }
  return known;
}

std::size_t find(const Known& known, const Id& id, const Path& path) {
  const auto found = known.find(id);
  if (found == known.end()) {
    throw SnapshotError(text(spell(path), ": unknown ", to_string(id)));
  }
  return found->second;
}

void check_profiles(const Snapshot& snapshot) {
  for (std::size_t at = 0; at < snapshot.profiles.size(); ++at) {
    const auto& profile = snapshot.profiles[at];
    if (profile.totals_s.empty()) {
      throw SnapshotError(text(spell({"profiles", at, "totals_s"}), ": must not be empty"));
    }
    for (const double total : profile.totals_s) {
      check_seconds(total, {"profiles", at, "totals_s"});
    }
    check_seconds(profile.request_s, {"profiles", at, "request_s"});
  }
}

void check_stage(const StageState& stage, std::size_t count, const Known& agents, const Known& profiles,
                 std::size_t task, std::size_t index) {
  const std::string list = text("tasks[", task, "].stages");
  find(agents, stage.agent, {list.c_str(), index, "agent"});
  find(profiles, stage.profile, {list.c_str(), index, "profile"});
  check_seconds(stage.service_s, {list.c_str(), index, "service_s"});
  for (const auto predecessor : stage.after) {
    if (predecessor >= count) {
      throw SnapshotError(text(spell({list.c_str(), index, "after"}), ": the task has no stage ", predecessor));
    }
  }
}

void check_tasks(const Snapshot& snapshot, const Known& agents, const Known& profiles) {
  for (std::size_t at = 0; at < snapshot.tasks.size(); ++at) {
    const auto& task = snapshot.tasks[at];
    if (!std::isfinite(task.arrival)) {
      refuse({"tasks", at, "arrival"}, "finite", task.arrival);
    }
    if (task.stages.empty()) {
      throw SnapshotError(text(spell({"tasks", at, "stages"}), ": must not be empty"));
    }
    for (std::size_t stage = 0; stage < task.stages.size(); ++stage) {
      check_stage(task.stages[stage], task.stages.size(), agents, profiles, at, stage);
    }
  }
}

void check_request(const Snapshot& snapshot, const RequestState& request, const Known& tasks, std::size_t at) {
  const auto& task = snapshot.tasks[find(tasks, request.task, {"requests", at, "task"})];
  if (request.stage >= task.stages.size()) {
    throw SnapshotError(
        text(spell({"requests", at, "stage"}), ": task ", to_string(task.id), " has no stage ", request.stage));
  }
  if (task.stages[request.stage].agent != request.agent) {
    throw SnapshotError(text(spell({"requests", at, "agent"}), ": is ", to_string(request.agent),
                             ", but its stage belongs to agent ", to_string(task.stages[request.stage].agent)));
  }
  check_tokens(request.kv_tokens, 1, {"requests", at, "kv_tokens"});
  check_tokens(request.input_tokens, 0, {"requests", at, "input_tokens"});
  check_tokens(request.generated_tokens, 0, {"requests", at, "generated_tokens"});
  check_seconds(request.expected_service_s, {"requests", at, "expected_service_s"});
  if (!std::isfinite(request.credit)) {
    refuse({"requests", at, "credit"}, "finite", request.credit);
  }
  const auto& factor = request.age_factor_at_admission;
  if (factor.has_value() && !(std::isfinite(*factor) && *factor >= 1.0)) {
    refuse({"requests", at, "age_factor_at_admission"}, "finite and at least 1", *factor);
  }
}

void check_scalars(const Snapshot& snapshot) {
  if (!std::isfinite(snapshot.now)) {
    throw SnapshotError(text("now: must be finite, got ", snapshot.now));
  }
  const auto& scale = snapshot.age_scale_s;
  if (scale.has_value() && !(std::isfinite(*scale) && *scale >= 0.0)) {
    throw SnapshotError(text("age_scale_s: must be finite and at least 0, got ", *scale));
  }
}

}  // namespace

void check(const Snapshot& snapshot) {
  check_scalars(snapshot);
  const Known agents = index_ids(snapshot.agents, "agents");
  for (std::size_t at = 0; at < snapshot.agents.size(); ++at) {
    check_tokens(snapshot.agents[at].prefix_tokens, 0, {"agents", at, "prefix_tokens"});
  }
  const Known profiles = index_ids(snapshot.profiles, "profiles");
  check_profiles(snapshot);
  const Known tasks = index_ids(snapshot.tasks, "tasks");
  check_tasks(snapshot, agents, profiles);
  index_ids(snapshot.requests, "requests");
  for (std::size_t at = 0; at < snapshot.requests.size(); ++at) {
    check_request(snapshot, snapshot.requests[at], tasks, at);
  }
  std::unordered_set<Id, IdHash> resident;
  for (std::size_t at = 0; at < snapshot.resident.size(); ++at) {
    const Id& id = snapshot.resident[at];
    if (!agents.contains(id)) {
      throw SnapshotError(text("resident[", at, "]: unknown ", to_string(id)));
    }
    if (!resident.insert(id).second) {
      throw SnapshotError(text("resident[", at, "]: duplicate ", to_string(id)));
    }
  }
}

}  // namespace topas::detail
