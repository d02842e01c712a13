#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tensor/Half.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

using namespace tilewright;

namespace {

/// A 16-bit format described by its fields alone: the oracle for both conversions.
struct Format {
  const char *name;
  int exponentBits, fractionBits;
  uint16_t (*fromFloat)(float);
  float (*toFloat)(uint16_t);

  int bias() const { return (1 << (exponentBits - 1)) - 1; }
  uint32_t infinity() const { return ((1u << exponentBits) - 1) << fractionBits; }
  bool isNaN(uint32_t bits) const { return (bits & 0x7fff) > infinity(); }
  /// Value of a pattern; infinity's is taken as the next power of two, which is where rounding to it starts.
  double value(uint32_t bits) const {
    const uint32_t magnitude = bits & 0x7fff;
    const int exponent = static_cast<int>(magnitude >> fractionBits);
    const double fraction = magnitude & ((1u << fractionBits) - 1);
    const double absolute =
        exponent == 0 ? std::ldexp(fraction, 1 - bias() - fractionBits)
                      : std::ldexp(fraction + std::ldexp(1.0, fractionBits), exponent - bias() - fractionBits);
    return bits & 0x8000 ? -absolute : absolute;
  }
};

uint16_t fromHalf(float x) { return halfFromFloat(x); }
float toHalf(uint16_t x) { return floatFromHalf(x); }
uint16_t fromBFloat(float x) { return bfloat16FromFloat(x); }
float toBFloat(uint16_t x) { return floatFromBFloat16(x); }

const Format kFormats[] = {{"fp16", 5, 10, fromHalf, toHalf}, {"bf16", 8, 7, fromBFloat, toBFloat}};

} // namespace

TEST_CASE("every 16-bit pattern widens to its value and comes back") {
  for (const Format &format : kFormats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float wide = format.toFloat(static_cast<uint16_t>(bits));
      if (format.isNaN(bits)) {
        const uint16_t back = format.fromFloat(wide);
        wrong += !std::isnan(wide) || !format.isNaN(back) || (back & 0x8000) != (bits & 0x8000);
        continue;
      }
      const bool infinite = (bits & 0x7fff) == format.infinity();
      wrong += infinite ? !(std::isinf(wide) && std::signbit(wide) == (bits >> 15 != 0)) : wide != format.value(bits);
      wrong += std::signbit(wide) != (bits >> 15 != 0);
      wrong += format.fromFloat(wide) != bits;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("float rounds to the nearest value, ties to even, between every two neighbours") {
  for (const Format &format : kFormats) {
    CAPTURE(format.name);
    int wrong = 0;
    for (uint32_t sign : {0u, 0x8000u})
      for (uint32_t low = 0; low < format.infinity(); ++low) {
        const uint32_t below = sign | low, above = sign | (low + 1);
        const auto middle = static_cast<float>((format.value(below) + format.value(above)) / 2);
        REQUIRE(middle == (format.value(below) + format.value(above)) / 2);
        wrong += format.fromFloat(middle) != (low % 2 == 0 ? below : above);
        wrong += format.fromFloat(std::nextafter(middle, 0.0f)) != below;
        const float away = std::copysign(std::numeric_limits<float>::infinity(), middle);
        wrong += format.fromFloat(std::nextafter(middle, away)) != above;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the ends of float's range") {
  for (const Format &format : kFormats) {
    CAPTURE(format.name);
    CHECK(format.fromFloat(std::numeric_limits<float>::infinity()) == format.infinity());
    CHECK(format.fromFloat(-std::numeric_limits<float>::infinity()) == (0x8000u | format.infinity()));
    CHECK(format.fromFloat(std::numeric_limits<float>::max()) == format.infinity());
    CHECK(format.fromFloat(std::numeric_limits<float>::denorm_min()) == 0);
    CHECK(format.fromFloat(-0.0f) == 0x8000u);
    // A NaN whose payload lies in the bits that are cut off must not become infinity.
    for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u})
      CHECK(format.isNaN(format.fromFloat(std::bit_cast<float>(bits))));
  }
}

TEST_CASE("bulk conversions do what the scalar ones do") {
  std::vector<float> floats;
  for (uint32_t i = 0; i < 100003; ++i)
    floats.push_back(std::bit_cast<float>(i * 42949u));
  std::vector<uint16_t> halves(floats.size()), brains(floats.size());
  halfFromFloat(floats, halves);
  bfloat16FromFloat(floats, brains);
  std::vector<float> fromHalves(floats.size()), fromBrains(floats.size());
  floatFromHalf(halves, fromHalves);
  floatFromBFloat16(brains, fromBrains);
  int wrong = 0;
  for (size_t i = 0; i < floats.size(); ++i) {
    wrong += halves[i] != halfFromFloat(floats[i]) || brains[i] != bfloat16FromFloat(floats[i]);
    wrong += std::bit_cast<uint32_t>(fromHalves[i]) != std::bit_cast<uint32_t>(floatFromHalf(halves[i]));
    wrong += std::bit_cast<uint32_t>(fromBrains[i]) != std::bit_cast<uint32_t>(floatFromBFloat16(brains[i]));
  }
  CHECK(wrong == 0);
}
