#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "tilewright/tensor/Tensor.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <string>

using namespace tilewright;

TEST_CASE("elements lie where the layout says") {
  const TensorShape shape{2, 3, 5, 4};
  for (Layout layout : {Layout::BSHD, Layout::BHSD}) {
    auto tensor = Tensor::zeros(ElementType::F32, shape, layout);
    REQUIRE(tensor);
    CHECK(tensor->bytes() == 2 * 3 * 5 * 4 * 4);
    tensor->set(1, 2, 3, 1, 7);
    const int64_t index = layout == Layout::BSHD ? ((1 * 5 + 3) * 3 + 2) * 4 + 1 : ((1 * 3 + 2) * 5 + 3) * 4 + 1;
    CHECK(static_cast<const float *>(tensor->data())[index] == 7);
    CHECK(tensor->at(1, 2, 3, 1) == 7);
    const TensorRef ref = tensor->ref();
    CHECK(1 * ref.batchStride + 2 * ref.headStride + 3 * ref.rowStride + 1 == index);
  }
}

TEST_CASE("memory is aligned, zeroed and followed by readable NaN") {
  for (int64_t dim : {1, 3, 16, 100}) {
    auto tensor = Tensor::zeros(ElementType::BF16, {1, 1, 7, dim}, Layout::BHSD);
    REQUIRE(tensor);
    CHECK(reinterpret_cast<uintptr_t>(tensor->data()) % 64 == 0);
    CHECK(tensor->at(0, 0, 6, dim - 1) == 0);
    const auto *end = static_cast<const unsigned char *>(tensor->data()) + tensor->bytes();
    for (int i = 0; i < AlignedBuffer::kSlack; ++i)
      CHECK(end[i] == 0xff);
  }
}

TEST_CASE("element types round as they store") {
  struct Case {
    ElementType type;
    double value, stored;
  };
  const Case cases[] = {{ElementType::F64, 0.1, 0.1},       {ElementType::F32, 0.1, 0.1f},
                        {ElementType::F16, 1 + 0x1p-11, 1}, {ElementType::F16, 1 + 3 * 0x1p-11, 1 + 0x1p-9},
                        {ElementType::BF16, 1 + 0x1p-8, 1}, {ElementType::I32, -7, -7}};
  for (const Case &c : cases) {
    auto tensor = Tensor::zeros(c.type, {1, 1, 1, 1}, Layout::BSHD);
    REQUIRE(tensor);
    tensor->set(0, 0, 0, 0, c.value);
    CHECK(tensor->at(0, 0, 0, 0) == c.stored);
  }
}

TEST_CASE("a view reads memory by its own strides") {
  float memory[2 * 100];
  for (int i = 0; i < 200; ++i)
    memory[i] = static_cast<float>(i);
  TensorRef ref;
  ref.data = memory;
  ref.batchStride = 0;
  ref.headStride = 8;
  ref.rowStride = 100;
  const TensorView view(ref, ElementType::F32, {1, 2, 2, 3});
  CHECK(view.at(0, 1, 1, 2) == 110);
  double row[3];
  view.copyRow(0, 1, 0, row);
  CHECK(row[0] == 8);
  CHECK(row[2] == 10);
  CHECK_FALSE(TensorView().valid());
  CHECK(view.valid());
}

TEST_CASE("empty tensors are tensors") {
  auto tensor = Tensor::zeros(ElementType::F16, {1, 2, 0, 8}, Layout::BSHD);
  REQUIRE(tensor);
  CHECK(tensor->valid());
  CHECK(tensor->bytes() == 0);
  CHECK_FALSE(hasNonFinite(tensor->view()));
}

TEST_CASE("sizes that cannot be had are errors that name tensor and size") {
  auto negative = Tensor::zeros(ElementType::F32, {1, -1, 2, 3}, Layout::BSHD, "q");
  REQUIRE_FALSE(negative);
  CHECK(negative.error().message.find("negative") != std::string::npos);
  const int64_t huge = int64_t{1} << 28;
  auto overflow = Tensor::zeros(ElementType::F32, {huge, huge, huge, 0}, Layout::BSHD, "q");
  REQUIRE_FALSE(overflow);
  CHECK(overflow.error().message.find("64-bit") != std::string::npos);
  auto bytes = Tensor::zeros(ElementType::F64, {huge, huge, 64, 1}, Layout::BSHD, "q");
  REQUIRE_FALSE(bytes);
  auto memory = Tensor::zeros(ElementType::F32, {1 << 20, 1 << 10, 1 << 12, 128}, Layout::BSHD, "k");
  REQUIRE_FALSE(memory);
  CHECK(memory.error().message.find("k (batch 1048576, seq 4096, heads 1024, dim 128)") != std::string::npos);
  CHECK(memory.error().message.find("2251799813685248 bytes (2.0 PiB) needed") != std::string::npos);
}

TEST_CASE("adopted memory must have the shape's size") {
  auto memory = AlignedBuffer::zeros(24, "test");
  REQUIRE(memory);
  CHECK_FALSE(Tensor::adopt(std::move(*memory), ElementType::F32, {1, 1, 1, 5}, Layout::BSHD));
}

TEST_CASE("NaN and infinities are found") {
  auto tensor = Tensor::zeros(ElementType::BF16, {1, 2, 3, 4}, Layout::BHSD);
  REQUIRE(tensor);
  CHECK_FALSE(hasNonFinite(tensor->view()));
  tensor->set(0, 1, 2, 3, std::numeric_limits<double>::infinity());
  CHECK(hasNonFinite(tensor->view()));
  tensor->set(0, 1, 2, 3, std::nan(""));
  CHECK(hasNonFinite(tensor->view()));
}

TEST_CASE("ulp and the largest value of each type") {
  CHECK(ulp(ElementType::F32, 1) == 0x1p-23);
  CHECK(ulp(ElementType::F16, 1.5) == 0x1p-10);
  CHECK(ulp(ElementType::BF16, 3) == 0x1p-6);
  CHECK(ulp(ElementType::F16, 0) == 0x1p-24);
  CHECK(ulp(ElementType::F32, -1e-45) == 0x1p-149);
  CHECK(maxFinite(ElementType::F16) == 65504);
  CHECK(maxFinite(ElementType::F32) == std::numeric_limits<float>::max());
  CHECK(maxFinite(ElementType::F64) == std::numeric_limits<double>::max());
}
