// Samples as the loader hands them out: tables, pixels, order, threads, faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/base/violation.h"
#include "core/job/failure.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "worker/data/data_set.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodePng;
using ::phalanx::support::ImageEncoder;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::ShardFiles;
using ::phalanx::support::TarBuilder;
using ::phalanx::support::TokenizerModel;
using ::phalanx::support::WriteFile;
using ::phalanx::support::WriteShards;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LoaderTest : public ::testing::Test {
 protected:
  void UseShards(const phalanx::support::ShardOptions& options) {
    const ShardFiles files = WriteShards(folder_, options);
    spec_ = {.shards = files.shards,
             .tokenizer = files.tokenizer,
             .encoders = {ImageEncoder(4)},
             .context = 32,
             .vocabulary = files.vocabulary};
  }
  void UseShard(absl::string_view bytes) {
    spec_ = {.shards = {folder_ + "/one.tar"},
             .tokenizer = folder_ + "/t.model",
             .encoders = {ImageEncoder(4)},
             .context = 32,
             .vocabulary = 64};
    WriteFile(spec_.shards[0], bytes);
    WriteFile(spec_.tokenizer, TokenizerModel());
  }

  std::unique_ptr<Loader> Make(const LoaderOptions& options = {.threads = 1, .modules = {0}}) {
    absl::StatusOr<Index> index = Index::Build(spec_);
    EXPECT_TRUE(index.ok()) << index.status();
    absl::StatusOr<std::unique_ptr<Loader>> loader =
        Loader::Create(*std::move(index), spec_, options);
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }

  std::shared_ptr<const Sample> TakeOrDie(Loader& loader, int64_t sample) {
    absl::StatusOr<std::shared_ptr<const Sample>> taken = loader.Take(sample);
    EXPECT_TRUE(taken.ok()) << taken.status();
    return taken.ok() ? *taken : nullptr;
  }

  const std::string folder_ = MakeFolder("loader");
  const std::string png_ = EncodePng({}, {255, 255, 255});
  DataSetSpec spec_;
};

TEST_F(LoaderTest, Sample_HasTheTablesOfItsSequence) {
  UseShard(TarBuilder().File("a.0.png", png_).File("a.txt", "red <image> blue sky").Finish());
  const auto sample = TakeOrDie(*Make(), 0);
  EXPECT_THAT(sample->tokens, ElementsAre(3, 0, 0, 0, 0, 5, 13));
  EXPECT_THAT(sample->labels, ElementsAre(0, 0, 0, 0, 5, 13, 1));
  EXPECT_THAT(sample->label_counts, ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(sample->encoders.at(0).positions, ElementsAre(1, 2, 3, 4));
  ASSERT_THAT(sample->encoders.at(0).values, SizeIs(1));
  EXPECT_THAT(sample->encoders.at(0).values[0], SizeIs(3 * 8 * 8));
  EXPECT_NEAR(sample->encoders.at(0).values[0][0], (1.0 - 0.48145466) / 0.26862954, 1e-4);
  EXPECT_FALSE(sample->corrupt);
}

TEST_F(LoaderTest, TextOnly_CountsEveryPosition) {
  UseShard(TarBuilder().File("a.txt", "red sky").Finish());
  const auto sample = TakeOrDie(*Make(), 0);
  EXPECT_THAT(sample->tokens, ElementsAre(3, 13));
  EXPECT_THAT(sample->labels, ElementsAre(13, 1));
  EXPECT_THAT(sample->label_counts, ElementsAre(1, 1));
  EXPECT_THAT(sample->encoders.at(0).values, IsEmpty());
}

TEST_F(LoaderTest, Sample_AgreesWithTheIndex) {
  UseShards({.samples = 40, .images_min = 0, .images_max = 3});
  const absl::StatusOr<Index> index = Index::Build(spec_);
  const auto loader = Make();
  for (int64_t i = 0; i < index->size(); ++i) {
    const auto sample = TakeOrDie(*loader, i);
    const SampleShape& shape = index->shape(i);
    EXPECT_THAT(sample->tokens, SizeIs(shape.positions));
    EXPECT_THAT(sample->labels, SizeIs(shape.positions));
    EXPECT_EQ(std::accumulate(sample->label_counts.begin(), sample->label_counts.end(), 0),
              shape.counted);
    EXPECT_THAT(sample->encoders.at(0).positions, SizeIs(4 * shape.images));
    EXPECT_THAT(sample->encoders.at(0).values, SizeIs(shape.images));
  }
}

TEST_F(LoaderTest, AnyNumberOfThreads_GivesTheSameSamples) {
  UseShards({.samples = 60, .shards = 3, .images_min = 0, .images_max = 3});
  std::vector<int64_t> order(60);
  std::iota(order.begin(), order.end(), 0);
  Prng prng(5);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.Below(i)]);
  const auto reference = Make({.threads = 0, .modules = {0}});
  for (const int32_t threads : {1, 2, 5}) {
    const auto loader = Make({.threads = threads, .ready_max = 7, .modules = {0}});
    loader->Announce(order);
    for (const int64_t i : order) {
      const auto expected = TakeOrDie(*reference, i);
      const auto sample = TakeOrDie(*loader, i);
      ASSERT_EQ(sample->tokens, expected->tokens);
      ASSERT_EQ(sample->labels, expected->labels);
      ASSERT_EQ(sample->label_counts, expected->label_counts);
      ASSERT_EQ(sample->encoders.at(0).positions, expected->encoders.at(0).positions);
      ASSERT_EQ(sample->encoders.at(0).values, expected->encoders.at(0).values);
    }
  }
}

TEST_F(LoaderTest, Memory_TakesItemsInItsType_AsLongAsThereIsSome) {
  UseShards({.samples = 6, .images_min = 1, .images_max = 3});
  const auto reference = Make();
  for (const ValueType type : {ValueType::kFp32, ValueType::kBf16}) {
    for (const bool none : {false, true}) {
      LoaderOptions options{.threads = 2, .modules = {0}};
      options.memory =
          std::make_shared<ItemMemory>(type, [none](size_t bytes) -> std::shared_ptr<std::byte> {
            if (none) return nullptr;
            return {static_cast<std::byte*>(std::aligned_alloc(256, bytes)), std::free};
          });
      const auto loader = Make(options);
      for (int64_t i = 0; i < 6; ++i) {
        const auto expected = TakeOrDie(*reference, i), sample = TakeOrDie(*loader, i);
        const Sample::Items& items = sample->encoders.at(0);
        ASSERT_THAT(items.values, SizeIs(expected->encoders.at(0).values.size()));
        ASSERT_THAT(items.stored, SizeIs(items.values.size()));
        EXPECT_EQ(items.stored_type, type);
        for (size_t item = 0; item < items.values.size(); ++item) {
          const std::vector<float>& values = expected->encoders.at(0).values[item];
          EXPECT_EQ(items.stored[item] == nullptr, none);
          EXPECT_EQ(items.values[item], none ? values : std::vector<float>());
          if (none) continue;
          std::vector<uint16_t> rounded(values.size());
          std::transform(values.begin(), values.end(), rounded.begin(), RoundToBf16);
          const void* const wanted = type == ValueType::kBf16
                                         ? static_cast<const void*>(rounded.data())
                                         : static_cast<const void*>(values.data());
          EXPECT_EQ(
              std::memcmp(items.stored[item].get(), wanted, values.size() * BytesOfValue(type)), 0);
        }
      }
    }
  }
}

TEST_F(LoaderTest, IsReady_AsLongAsADecodedSampleIsStillToBeTaken) {
  UseShards({.samples = 4});
  const auto loader = Make();
  EXPECT_FALSE(loader->IsReady(1)) << "nobody wants it";
  loader->Announce({1, 1});
  TakeOrDie(*loader, 1);
  EXPECT_TRUE(loader->IsReady(1));
  TakeOrDie(*loader, 1);
  EXPECT_FALSE(loader->IsReady(1));
}

TEST_F(LoaderTest, Take_InAnyOrderMakesProgress) {
  UseShards({.samples = 20});
  const auto loader = Make({.threads = 1, .ready_max = 2, .modules = {0}});
  std::vector<int64_t> order(20);
  std::iota(order.begin(), order.end(), 0);
  loader->Announce(order);
  for (int64_t i = 19; i >= 0; --i) EXPECT_NE(TakeOrDie(*loader, i), nullptr);
}

TEST_F(LoaderTest, Take_OfWhatWasNotAnnouncedDecodesIt) {
  UseShards({.samples = 4});
  const auto loader = Make();
  loader->Announce({0, 1});
  EXPECT_NE(TakeOrDie(*loader, 3), nullptr);
  EXPECT_NE(TakeOrDie(*loader, 0), nullptr);
  EXPECT_NE(TakeOrDie(*loader, 0), nullptr);  // announced once, taken twice
}

TEST_F(LoaderTest, RepeatedSample_IsDecodedOnceAndTakenTwice) {
  UseShards({.samples = 4});
  const auto loader = Make();
  loader->Announce({2, 1, 2});
  const auto first = TakeOrDie(*loader, 2);
  TakeOrDie(*loader, 1);
  EXPECT_EQ(TakeOrDie(*loader, 2), first);
}

TEST_F(LoaderTest, NewAnnouncement_ReplacesTheOldAndKeepsWhatIsDecoded) {
  UseShards({.samples = 12});
  const auto loader = Make({.threads = 2, .ready_max = 4, .modules = {0}});
  for (int64_t first = 0; first + 4 <= 12; ++first) {
    loader->Announce({first, first + 1, first + 2, first + 3});
    EXPECT_NE(TakeOrDie(*loader, first), nullptr);
  }
  loader->Announce({});
  EXPECT_NE(TakeOrDie(*loader, 7), nullptr);
}

TEST_F(LoaderTest, BytesReady_AreBounded) {
  UseShards({.samples = 40, .images_max = 3, .image_side = 8});
  const int64_t image_bytes = 3 * 64 * 64 * 4;
  for (const int64_t bytes_max : {int64_t{1}, 7 * image_bytes}) {
    const auto loader = Make({.threads = 3, .ready_bytes_max = bytes_max, .modules = {0}});
    std::vector<int64_t> order(40);
    std::iota(order.begin(), order.end(), 0);
    loader->Announce(order);
    for (const int64_t sample : order) {
      ASSERT_LT(loader->ready_bytes(), std::max(bytes_max, 4 * image_bytes));
      ASSERT_NE(TakeOrDie(*loader, sample), nullptr);
    }
    EXPECT_EQ(loader->ready_bytes(), 0);
  }
}

TEST_F(LoaderTest, BytesReady_AreThoseOfFp32WhereNoMemoryWasLeft) {
  UseShards({.samples = 2, .images_min = 2, .images_max = 2});
  const auto ready = [this](std::shared_ptr<ItemMemory> memory) {
    LoaderOptions options{.threads = 1, .modules = {0}};
    options.memory = std::move(memory);
    const auto loader = Make(options);
    loader->Announce({0, 0});
    TakeOrDie(*loader, 0);
    const int64_t bytes = loader->ready_bytes();
    TakeOrDie(*loader, 0);
    EXPECT_EQ(loader->ready_bytes(), 0);
    return bytes;
  };
  const auto in_bf16 = [](bool none) {
    return std::make_shared<ItemMemory>(
        ValueType::kBf16, [none](size_t bytes) -> std::shared_ptr<std::byte> {
          if (none) return nullptr;
          return {static_cast<std::byte*>(std::aligned_alloc(256, bytes)), std::free};
        });
  };
  EXPECT_EQ(ready(in_bf16(true)), ready(nullptr));
  EXPECT_EQ(ready(nullptr) - ready(in_bf16(false)), 2 * spec_.encoders[0].values() * 2);
}

TEST_F(LoaderTest, RandomCalls_NeverStall) {
  UseShards({.samples = 30, .images_max = 2});
  const auto loader = Make({.threads = 3, .ready_max = 3, .modules = {0}});
  Prng prng(9);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> announced;
    for (uint64_t n = prng.Below(8); n > 0; --n)
      announced.push_back(static_cast<int64_t>(prng.Below(30)));
    loader->Announce(announced);
    for (uint64_t n = prng.Below(5); n > 0; --n) {
      const int64_t sample = announced.empty() || prng.Below(3) == 0
                                 ? static_cast<int64_t>(prng.Below(30))
                                 : announced[prng.Below(announced.size())];
      ASSERT_NE(TakeOrDie(*loader, sample), nullptr);
    }
  }
}

TEST_F(LoaderTest, DestructionWhileDecoding_Ends) {
  UseShards({.samples = 50, .image_side = 64});
  std::vector<int64_t> order(50);
  std::iota(order.begin(), order.end(), 0);
  for (int i = 0; i < 5; ++i) Make({.threads = 3, .modules = {0}})->Announce(order);
}

TEST_F(LoaderTest, ImageThatDoesNotDecode_KeepsItsShapeWithZeros) {
  UseShard(TarBuilder()
               .File("a.0.png", png_)
               .File("a.1.png", png_.substr(0, png_.size() / 2))
               .File("a.txt", "<image><image>red")
               .Finish());
  const auto sample = TakeOrDie(*Make(), 0);
  EXPECT_TRUE(sample->corrupt);
  EXPECT_THAT(sample->corrupt_reason, HasSubstr("one.tar: a: item 1 is a damaged PNG"));
  ASSERT_THAT(sample->encoders.at(0).values, SizeIs(2));
  EXPECT_NE(sample->encoders.at(0).values[0][0], 0.0f);
  EXPECT_THAT(sample->encoders.at(0).values[1], SizeIs(3 * 8 * 8));
  EXPECT_THAT(sample->encoders.at(0).values[1], Each(0.0f));
  // What counts is the index's business, so that a rank that does not decode agrees.
  EXPECT_EQ(std::accumulate(sample->label_counts.begin(), sample->label_counts.end(), 0), 2);
}

TEST_F(LoaderTest, WithoutImages_NoneIsOpened) {
  UseShard(TarBuilder().File("a.png", "no picture at all").File("a.txt", "<image>red").Finish());
  const auto sample = TakeOrDie(*Make({.threads = 1}), 0);
  EXPECT_FALSE(sample->corrupt);
  EXPECT_THAT(sample->encoders.at(0).values, IsEmpty());
  EXPECT_THAT(sample->encoders.at(0).positions, SizeIs(4));
}

TEST_F(LoaderTest, SampleFoundCorruptWhileIndexing_IsItsTextAndCountsNothing) {
  UseShard(TarBuilder().File("a.txt", "red <image> sky").File("b.png", png_).Finish());
  const auto loader = Make();
  const auto marks = TakeOrDie(*loader, 0);
  EXPECT_TRUE(marks->corrupt);
  EXPECT_EQ(marks->corrupt_reason, "one.tar: a: has 1 <image> mark and 0 images");
  EXPECT_THAT(marks->tokens, ElementsAre(3, 13));
  EXPECT_THAT(marks->label_counts, Each(0));
  const auto textless = TakeOrDie(*loader, 1);
  EXPECT_TRUE(textless->corrupt);
  EXPECT_THAT(textless->tokens, ElementsAre(1));
  EXPECT_THAT(textless->label_counts, ElementsAre(0));
}

TEST_F(LoaderTest, ShardThatIsGoneOrChanged_IsUnavailable) {
  UseShards({.samples = 4, .shards = 2});
  const auto loader = Make();
  std::filesystem::remove(spec_.shards[0]);
  const absl::Status gone = loader->Take(0).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr(spec_.shards[0] + " is gone since it was indexed"));
  WriteFile(spec_.shards[1], "something else");
  const absl::Status changed = loader->Take(3).status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(changed.message(), HasSubstr("has changed since it was indexed"));
  EXPECT_EQ(job::KindOf(changed), job::FailureKind::kDataUnavailable);
}

TEST_F(LoaderTest, LinkThatLeadsOutOfTheFoldersByNow_IsNotFollowed) {
  namespace fs = std::filesystem;
  UseShards({.samples = 4, .shards = 2});
  const std::string real = fs::canonical(folder_), outside = fs::canonical(MakeFolder("outside"));
  spec_.folders = {real};
  for (std::string* path : {&spec_.shards[0], &spec_.tokenizer}) {
    fs::rename(*path, *path + ".real");
    fs::create_symlink(*path + ".real", *path);
  }
  const absl::StatusOr<Index> index = Index::Build(spec_);
  ASSERT_TRUE(index.ok()) << index.status();
  const auto loader = Make();
  // What the links lead to now is the same to the byte, and its times are, too.
  const auto lead_out = [&](const std::string& path) {
    const std::string twin = absl::StrCat(outside, "/", fs::path(path).filename().string());
    fs::copy_file(path, twin);
    fs::last_write_time(twin, fs::last_write_time(path + ".real"));
    fs::remove(path);
    fs::create_symlink(twin, path);
  };
  lead_out(spec_.shards[0]);
  const absl::Status shard = loader->Take(0).status();
  EXPECT_EQ(shard.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(shard.message(), HasSubstr("leads to " + outside));
  const std::vector<Violation> built = ViolationsOf(Index::Build(spec_).status());
  ASSERT_THAT(built, SizeIs(1));
  EXPECT_THAT(built[0].rule, HasSubstr("leads to " + outside));
  lead_out(spec_.tokenizer);
  const std::vector<Violation> read =
      ViolationsOf(Loader::Create(*index, spec_, {.modules = {0}}).status());
  ASSERT_THAT(read, SizeIs(1));
  EXPECT_EQ(read[0].field, "spec.data.tokenizer");
  EXPECT_THAT(read[0].rule, HasSubstr("leads to " + outside));
}

TEST_F(LoaderTest, TokenizerThatIsGone_IsAViolation) {
  UseShards({.samples = 4});
  absl::StatusOr<Index> index = Index::Build(spec_);
  std::filesystem::remove(spec_.tokenizer);
  const absl::Status status = Loader::Create(*index, spec_, {.modules = {0}}).status();
  EXPECT_THAT(ViolationsOf(status), SizeIs(1));
}

}  // namespace
}  // namespace phalanx::data
