// Checks of single option values, with messages that say what was expected.
#pragma once

#include <CLI/CLI.hpp>

namespace tilewright::tool {

/// A whole number from 0 that fits 64 bits, signed.
CLI::Validator wholeNumber();

/// Any text but the empty one: an unset shell variable must not silently mean "none".
CLI::Validator notEmpty();

} // namespace tilewright::tool
