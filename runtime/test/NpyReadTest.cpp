#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "TemporaryFolder.h"
#include "tilewright/tensor/Npy.h"
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

using namespace tilewright;
namespace fs = std::filesystem;

namespace {

std::string preamble(int major, size_t headerLength, int minor = 0) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += static_cast<char>(minor);
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    bytes += static_cast<char>(headerLength >> (8 * i) & 0xff);
  return bytes;
}

std::string npy(const std::string &dict, const std::string &data, int major = 1) {
  return preamble(major, dict.size()) + dict + data;
}

std::string dict(const std::string &descr, const std::string &shape, const std::string &fortran = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}          \n", descr, fortran, shape);
}

template <class T> std::string raw(std::initializer_list<T> values) {
  return {reinterpret_cast<const char *>(values.begin()), values.size() * sizeof(T)};
}

std::string errorOf(const std::string &bytes) {
  auto array = readNpy(std::span(bytes.data(), bytes.size()), "x.npy");
  REQUIRE_FALSE(array);
  CHECK((array.error().stage == Stage::Input));
  CHECK(array.error().message.starts_with("x.npy: "));
  return array.error().message;
}

void checkError(const std::string &bytes, std::string_view expected) {
  const std::string message = errorOf(bytes);
  INFO(message);
  CHECK(message.find(expected) != std::string::npos);
}

NpyArray parse(const std::string &bytes) {
  auto array = readNpy(std::span(bytes.data(), bytes.size()), "x.npy");
  if (!array) FAIL(array.error().text());
  return std::move(*array);
}

} // namespace

TEST_CASE("every version, type and spelling that NumPy writes") {
  const std::string data = raw<float>({1, 2, 3, 4, 5, 6});
  for (int major : {1, 2, 3}) {
    const NpyArray array = parse(npy(dict("<f4", "(2, 3)"), data, major));
    CHECK((array.type == NpyType::F32));
    CHECK(array.shape == std::vector<int64_t>{2, 3});
    CHECK(array.data.as<float>()[5] == 6);
  }
  CHECK(parse(npy("{\"shape\":(6,),\"descr\":\"=f4\",\"fortran_order\":False}", data)).shape ==
        std::vector<int64_t>{6});
  CHECK(parse(npy(dict("<f4", "()"), raw<float>({1}))).shape.empty());
  CHECK(parse(npy(dict("<f4", "(0, 5)"), "")).data.size() == 0);
  CHECK((parse(npy(dict("<f2", "(1,)"), "ab")).type == NpyType::F16));
  CHECK((parse(npy(dict("<u2", "(1,)"), "ab")).type == NpyType::U16));
  CHECK((parse(npy(dict("|V2", "(1,)"), "ab")).type == NpyType::Raw16));
  CHECK((parse(npy(dict("<i4", "(1,)"), "abcd")).type == NpyType::I32));
  CHECK((parse(npy(dict("<i8", "(1,)"), "abcdefgh")).type == NpyType::I64));
  CHECK((parse(npy(dict("<f8", "(1,)"), "abcdefgh")).type == NpyType::F64));
}

TEST_CASE("Fortran order is transposed") {
  // a[i, j, k] = 100 i + 10 j + k of shape (2, 3, 2); the first index runs fastest in the file.
  const std::string data = raw<int32_t>({0, 100, 10, 110, 20, 120, 1, 101, 11, 111, 21, 121});
  const NpyArray array = parse(npy(dict("<i4", "(2, 3, 2)", "True"), data));
  int index = 0;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 2; ++k)
        CHECK(array.data.as<int32_t>()[index++] == 100 * i + 10 * j + k);
  const NpyArray halves = parse(npy(dict("<f2", "(2, 2)", "True"), "aabbccdd"));
  CHECK(std::memcmp(halves.data.data(), "aaccbbdd", 8) == 0);
  const NpyArray doubles = parse(npy(dict("<i8", "(2, 2)", "True"), raw<int64_t>({1, 2, 3, 4})));
  CHECK(doubles.data.as<int64_t>()[1] == 3);
  CHECK(parse(npy(dict("<f4", "(0, 4)", "True"), "")).data.size() == 0);
}

TEST_CASE("big-endian data is swapped") {
  CHECK(parse(npy(dict(">i4", "(2,)"), std::string("\0\0\1\2\xff\xff\xff\xfe", 8))).data.as<int32_t>()[0] == 258);
  CHECK(parse(npy(dict(">i4", "(2,)"), std::string("\0\0\1\2\xff\xff\xff\xfe", 8))).data.as<int32_t>()[1] == -2);
  CHECK(parse(npy(dict(">u2", "(1,)"), std::string("\1\2", 2))).data.as<uint16_t>()[0] == 258);
  CHECK(parse(npy(dict(">i8", "(1,)"), std::string("\0\0\0\0\0\0\1\0", 8))).data.as<int64_t>()[0] == 256);
}

TEST_CASE("malformed preambles") {
  checkError("", "x.npy: empty; expected a .npy file");
  checkError("hello world", "expected it to start with 93 4e 55 4d 50 59, found 68 65 6c 6c 6f 20");
  checkError("\x93NUM", "truncated in its preamble: expected at least 10 bytes, found 4");
  checkError("\x93NUMPX", "not a .npy file");
  checkError(preamble(1, 10).substr(0, 9), "truncated in its preamble");
  checkError(preamble(2, 10).substr(0, 11), "truncated in its preamble: expected at least 12 bytes, found 11");
  checkError(preamble(4, 10) + "0123456789", ".npy format 4.0; expected 1.0, 2.0 or 3.0");
  checkError(preamble(0, 10) + "0123456789", ".npy format 0.0");
  checkError(preamble(1, 10, 1) + "0123456789", ".npy format 1.1");
  checkError(preamble(1, 100) + "{'descr'", "truncated in its header: expected at least 110 bytes, found 18");
  checkError(preamble(2, 0xffffffffu) + "{}", "a .npy header of 4294967295 bytes; expected at most 1048576");
  auto zip = readNpy(std::span("PK\3\4abcdef", 10), "x.npz");
  REQUIRE_FALSE(zip);
  CHECK(zip.error().hint.find(".npz") != std::string::npos);
}

TEST_CASE("malformed headers") {
  const std::string rest = "'fortran_order': False, 'shape': (1,)";
  checkError(npy("", ""), "expected a dict, '{'; found the header's end");
  checkError(npy("[1, 2]", ""), "at column 0: expected a dict, '{'; found '[1, 2]'");
  checkError(npy("{'descr': '<f4', ", ""), "expected a key in quotes; found the header's end");
  checkError(npy("{'descr': '<f4' " + rest + "}", ""), "expected ',' or '}'");
  checkError(npy("{'descr' '<f4'}", ""), "expected ':'");
  checkError(npy("{descr: '<f4'}", ""), "expected a key in quotes; found 'descr: '<f4''");
  checkError(npy("{'descr': '<f4, }", ""), "a string without end");
  checkError(npy("{'descr': '<f\\x34', " + rest + "}", ""), "a backslash in a string");
  checkError(npy("{'descr': '<f4', " + rest + "} x", ""), "expected nothing after the dict; found 'x'");
  checkError(npy("{" + rest + "}", ""), "the key 'descr' is missing");
  checkError(npy("{'descr': '<f4', 'shape': (1,)}", ""), "the key 'fortran_order' is missing");
  checkError(npy("{'descr': '<f4', 'fortran_order': False}", ""), "the key 'shape' is missing");
  checkError(npy("{'descr': '<f4', 'descr': '<f4', " + rest + "}", ""), "the key 'descr' stands twice");
  checkError(npy("{'descr': '<f4', 'shape': (1,), " + rest + "}", ""), "the key 'shape' stands twice");
  checkError(npy("{'descr': '<f4', 'fortran_order': True, " + rest + "}", ""), "the key 'fortran_order' stands twice");
  checkError(npy("{'descr': '<f4', 'strides': (4,), " + rest + "}", ""), "unknown key 'strides'");
  checkError(npy(dict("<f4", "(1,)", "Maybe"), ""), "fortran_order: expected True or False");
  checkError(npy(dict("<f4", "(1,)", "0"), ""), "fortran_order: expected True or False");
}

TEST_CASE("malformed shapes") {
  checkError(npy(dict("<f4", "5"), ""), "shape: expected a tuple");
  checkError(npy(dict("<f4", "(5)"), ""), "shape: expected a tuple, found a number in parentheses");
  checkError(npy(dict("<f4", "[5]"), ""), "shape: expected a tuple");
  checkError(npy(dict("<f4", "(-1, 4)"), ""), "shape: a dimension is negative; found '-1, 4)");
  checkError(npy(dict("<f4", "(1.5, 4)"), ""), "shape: expected ',' or ')'");
  checkError(npy(dict("<f4", "(a,)"), ""), "shape: expected a dimension");
  checkError(npy(dict("<f4", "(,)"), ""), "shape: expected a dimension");
  checkError(npy(dict("<f4", "(1, 2"), ""), "shape: expected");
  checkError(npy(dict("<f4", "(99999999999999999999,)"), ""), "shape: a dimension beyond 64 bits");
  checkError(npy(dict("<f4", "(4611686018427387904, 4611686018427387904)"), ""), "more bytes than a file can hold");
  checkError(npy(dict("<f4", "(4611686018427387904, 4, 0)"), ""), "more bytes than a file can hold");
  checkError(npy(dict("<f4", "(2305843009213693952, 1)"), ""), "more bytes than a file can hold");
  std::string many = "(";
  for (int i = 0; i < 65; ++i)
    many += "1,";
  checkError(npy(dict("<f4", many + ")"), "abcd"), "more than 64 dimensions");
}

TEST_CASE("element types that are not read") {
  for (const char *code : {"<f16", "<c8", "|u1", "|b1", "<i2", "<U3", "|S4", "<M8[ns]", "<V2x", "", "<", "f", "<f4 "})
    checkError(npy(dict(code, "(1,)"), ""),
               fmt::format("element type '{}'; expected float16, float32, float64, uint16, int32 or int64", code));
  checkError(npy(dict("|O", "(1,)"), ""), "holds pickled Python objects");
  checkError(npy("{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (3,), }", ""),
             "a structured element type");
}

TEST_CASE("data of the wrong length says both lengths") {
  checkError(npy(dict("<f4", "(2, 3)"), std::string(23, 'x')), "truncated: expected 24 bytes of data, found 23");
  checkError(npy(dict("<f4", "(2, 3)"), ""), "truncated: expected 24 bytes of data, found 0");
  checkError(npy(dict("<f4", "(2, 3)"), std::string(30, 'x')), "expected 24 bytes of data, found 6 more after them");
  // The header's word alone must not decide how much is allocated.
  checkError(npy(dict("<f4", "(1000000000000,)"), "abcd"), "truncated: expected 4000000000000 bytes of data, found 4");
}

TEST_CASE("every truncation and every flipped header bit of a good file is handled") {
  const std::string good = npy(dict("<f4", "(2, 3)"), raw<float>({1, 2, 3, 4, 5, 6}));
  for (size_t length = 0; length < good.size(); ++length)
    errorOf(good.substr(0, length));
  for (size_t bit = 0; bit < 8 * (good.size() - 24); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << (bit % 8));
    auto array = readNpy(std::span(bytes.data(), bytes.size()), "x.npy");
    if (array) CHECK(array->data.size() == 24);
  }
}

TEST_CASE("files that are not there, or not files") {
  TemporaryFolder folder;
  auto message = [](const std::filesystem::path &path) {
    auto array = readNpy(path);
    REQUIRE_FALSE(array);
    CHECK(array.error().message.starts_with(path.string() + ": "));
    return array.error().message;
  };
  CHECK(message(fs::path(folder.path) / "no.npy").find("No such file") != std::string::npos);
  CHECK(message(folder.path).find("expected a .npy file, found a folder") != std::string::npos);
  const auto pipe = fs::path(folder.path) / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(message(pipe).find("found a device, socket or pipe") != std::string::npos);
  CHECK(message("/dev/null").find("found a device, socket or pipe") != std::string::npos);
  const auto good = fs::path(folder.path) / "good.npy";
  writeFile(good, npy(dict("<f4", "(1, 1, 1, 2)"), raw<float>({1, 2})));
  auto tensor = readTensor(good, {});
  REQUIRE(tensor);
  CHECK(tensor->at(0, 0, 0, 1) == 2);
}

TEST_CASE("tensors: 4 dimensions in the layout's order, of a type that attention stores") {
  auto make = [](const std::string &descr, const std::string &shape, const std::string &data,
                 const NpyTensorOptions &options) {
    return tensorFromNpy(parse(npy(dict(descr, shape), data)), options, "q.npy");
  };
  const std::string data(2 * 3 * 4 * 5 * 2, '\0');
  auto bshd = make("<f2", "(2, 3, 4, 5)", data, {Layout::BSHD, false});
  REQUIRE(bshd);
  CHECK((bshd->shape() == TensorShape{2, 4, 3, 5}));
  auto bhsd = make("<f2", "(2, 3, 4, 5)", data, {Layout::BHSD, false});
  REQUIRE(bhsd);
  CHECK((bhsd->shape() == TensorShape{2, 3, 4, 5}));

  auto rank = make("<f2", "(2, 3, 20)", data, {Layout::BSHD, false});
  REQUIRE_FALSE(rank);
  CHECK(rank.error().message ==
        "q.npy: expected 4 dimensions (batch, seq, heads, dim for layout bshd), found 3: (2, 3, 20)");
  auto wide = make("<f8", "(1, 1, 1, 30)", data, {Layout::BSHD, false});
  REQUIRE_FALSE(wide);
  CHECK(wide.error().message == "q.npy: expected float32 or float16, found float64");
  auto bits = make("<u2", "(2, 3, 4, 5)", data, {Layout::BSHD, false});
  REQUIRE_FALSE(bits);
  CHECK(bits.error().message == "q.npy: expected float32 or float16, found uint16");
  CHECK(bits.error().hint.find("bf16") != std::string::npos);
  for (const char *descr : {"<u2", "|V2", "<V2"}) {
    auto brain = make(descr, "(1, 1, 1, 1)", std::string("\x80\x3f", 2), {Layout::BSHD, true});
    REQUIRE(brain);
    CHECK((brain->type() == ElementType::BF16));
    CHECK(brain->at(0, 0, 0, 0) == 1);
  }
  auto integers = make("<i4", "(1, 1, 1, 60)", data, {Layout::BSHD, true});
  REQUIRE_FALSE(integers);
  CHECK(integers.error().message == "q.npy: expected float32, float16 or uint16 (bfloat16), found int32");
}

TEST_CASE("tables: integers in int32's range, floats rounded to float32") {
  auto make = [](const std::string &descr, const std::string &shape, const std::string &data) {
    return tableFromNpy(parse(npy(dict(descr, shape), data)), "doc.npy");
  };
  auto wide = make("<i8", "(2, 2)", raw<int64_t>({-2147483648, 2147483647, 0, -5}));
  REQUIRE(wide);
  CHECK(wide->data().ints[1] == 2147483647);
  CHECK(wide->data().ints[3] == -5);
  auto over = make("<i8", "(2, 2)", raw<int64_t>({1, 2, 3, 2147483648}));
  REQUIRE_FALSE(over);
  CHECK(over.error().message ==
        "doc.npy: element [1, 1] is 2147483648; expected int32's range, -2147483648 to 2147483647");
  auto words = make("<u2", "(2,)", raw<uint16_t>({65535, 1}));
  REQUIRE(words);
  CHECK(words->data().ints[0] == 65535);
  auto doubles = make("<f8", "(2,)", raw<double>({0.1, 2}));
  REQUIRE(doubles);
  CHECK(doubles->data().floats[0] == 0.1f);
  auto huge = make("<f8", "(3,)", raw<double>({0, 1e39, 2}));
  REQUIRE_FALSE(huge);
  CHECK(huge.error().message.find("element [1] is 1e+39") != std::string::npos);
  auto halves = make("<f2", "(1,)", raw<uint16_t>({0x3c00}));
  REQUIRE(halves);
  CHECK(halves->data().floats[0] == 1);
  CHECK_FALSE(make("<f4", "()", raw<float>({1})));
  CHECK_FALSE(make("<f4", "(1, 1, 1)", raw<float>({1})));
  CHECK_FALSE(make("|V2", "(1,)", "ab"));
}
