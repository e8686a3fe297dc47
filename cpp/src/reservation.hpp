// Room for the request that has waited much longer than the others (SPEC section 7).
#pragma once

#include "instance.hpp"

namespace topas::detail {

/// Holds requests back, out of `waiting` and into `held_back`, so that the earliest one gets room, where it has waited
/// for longer than `reserve_limit` allows. Called before index(); agents that are left without a request are none
/// of the instance any more.
void reserve_for_earliest(Instance& instance, double now, double age_scale_s);

}  // namespace topas::detail
