// What a refused call says.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <typeinfo>

namespace topas::testing {

/// The message of the error that the call throws; a failure when it throws none or one of another type.
template <class Expected, class Call>
std::string refusal(Call&& call) {
  try {
    static_cast<void>(call());
    ADD_FAILURE() << "nothing was refused";
  } catch (const std::exception& error) {
    EXPECT_TRUE(typeid(error) == typeid(Expected)) << "refused with another error: " << error.what();
    return error.what();
  }
  return "";
}

}  // namespace topas::testing
