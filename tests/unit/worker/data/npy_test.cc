// Headers of NumPy's array files, right and wrong.
#include "worker/data/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/support/sounds.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeNpy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<NpyShape> Read(const std::string& file) {
  return ReadNpyHeader(file, static_cast<int64_t>(file.size()));
}

std::string Dictionary(const std::string& type, const std::string& order,
                       const std::string& shape) {
  return absl::StrCat("{'descr': '", type, "', 'fortran_order': ", order, ", 'shape': ", shape,
                      ", }");
}

std::string HeaderFault(const std::string& dictionary, size_t bytes = 24) {
  const auto shape = Read(EncodeNpy(dictionary, std::string(bytes, '\0')));
  return shape.ok() ? "" : std::string(shape.status().message());
}

TEST(NpyTest, SinglePrecision_IsRead) {
  const std::string file = EncodeNpy(2, 3, {1, 2, 3, 4, 5, 6});
  const auto shape = Read(file);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->rows, 2);
  EXPECT_EQ(shape->columns, 3);
  std::vector<float> values;
  EXPECT_TRUE(ReadNpyValues(file.substr(static_cast<size_t>(shape->header_bytes)),
                            shape->value_bytes, values));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(NpyTest, DoublePrecision_IsRounded) {
  const double numbers[2] = {0.1, -2.5};
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), numbers, 16);
  const auto shape = Read(EncodeNpy(Dictionary("<f8", "False", "(2, 1)"), bytes));
  ASSERT_TRUE(shape.ok()) << shape.status();
  std::vector<float> values;
  EXPECT_TRUE(ReadNpyValues(bytes, shape->value_bytes, values));
  EXPECT_THAT(values, ElementsAre(0.1f, -2.5f));
}

TEST(NpyTest, LaterVersions_HaveALongerLength) {
  std::string file = EncodeNpy(1, 1, {1});
  for (const char version : {'\2', '\3'}) {
    std::string later = file.substr(0, 6) + version + '\0' + file.substr(8, 2) +
                        std::string(2, '\0') + file.substr(10);
    EXPECT_TRUE(Read(later).ok());
  }
  file[6] = 4;
  EXPECT_FALSE(Read(file).ok());
}

TEST(NpyTest, NoRows_AreAShape) {
  EXPECT_EQ(HeaderFault(Dictionary("<f4", "False", "(0, 5)"), 0), "");
}

TEST(NpyTest, OtherArrays_AreRefused) {
  EXPECT_EQ(HeaderFault(Dictionary(">f4", "False", "(2, 3)")),
            "has values of type '>f4'; must be '<f4' or '<f8'");
  EXPECT_EQ(HeaderFault(Dictionary("<i4", "False", "(2, 3)")),
            "has values of type '<i4'; must be '<f4' or '<f8'");
  EXPECT_EQ(HeaderFault(Dictionary("<f4", "True", "(2, 3)")),
            "is in Fortran order; must be in C order");
  for (const char* shape :
       {"(6,)", "(1, 2, 3)", "()", "6", "(2, -3)", "(2, 3", "(4294967296, 0)"}) {
    EXPECT_THAT(HeaderFault(Dictionary("<f4", "False", shape)), HasSubstr("must be (rows, hidden)"))
        << shape;
  }
}

TEST(NpyTest, AnotherLength_IsRefused) {
  EXPECT_EQ(HeaderFault(Dictionary("<f4", "False", "(2, 4)")),
            "has 24 bytes of values; its shape (2, 4) has another number");
  EXPECT_EQ(HeaderFault(Dictionary("<f4", "False", "(2, 2)")),
            "has 24 bytes of values; its shape (2, 2) has another number");
  EXPECT_EQ(HeaderFault(Dictionary("<f8", "False", "(2147483647, 2147483647)")),
            "has 24 bytes of values; its shape (2147483647, 2147483647) has another number");
}

TEST(NpyTest, WhatIsNoArray_IsRefused) {
  for (const char* dictionary : {"", "{", "{}", "{'descr': '<f4'}", "{'descr", "not a dictionary",
                                 "{'descr': '<f4', 'shape': (2, 3), fortran_order: False}"}) {
    EXPECT_EQ(HeaderFault(dictionary), "is no NPY file") << dictionary;
  }
  const std::string whole = EncodeNpy(2, 3, std::vector<float>(6));
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_FALSE(Read(whole.substr(0, i)).ok()) << i;
}

TEST(NpyTest, ValuesThatAreNotFinite_AreTold) {
  const float numbers[2] = {1, NAN};
  std::vector<float> values;
  EXPECT_FALSE(
      ReadNpyValues(absl::string_view(reinterpret_cast<const char*>(numbers), 8), 4, values));
}

}  // namespace
}  // namespace phalanx::data
