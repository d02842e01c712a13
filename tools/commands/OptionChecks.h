// Checks of single option values, with messages that say what was expected.
#pragma once

#include "tilewright/Error.h"
#include "tilewright/tensor/ElementType.h"
#include <CLI/CLI.hpp>

namespace tilewright::tool {

/// A whole number from 0 that fits 64 bits, signed.
CLI::Validator wholeNumber();

/// A finite number from `low` to `high`.
CLI::Validator numberFrom(double low, double high);

/// A file that ends, if it exists: a pipe or a device might never.
CLI::Validator regularFile();

/// A number of bytes, which may be written as 512K or 25M (of 1024); to be used as a transform.
CLI::Validator byteSize();

/// "fp32" or "bf16". `option` is for the error.
Expected<ElementType> parseTrainingType(const char *option, const std::string &text);

/// Any text but the empty one: an unset shell variable must not silently mean "none".
CLI::Validator notEmpty();

} // namespace tilewright::tool
