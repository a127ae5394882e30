// Tar shards in all their variants, read through ListTar.
#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "worker/data/tar_reader.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::MakeFolder;
using ::phalanx::support::TarBuilder;
using ::phalanx::support::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class TarTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<TarMember>> List(absl::string_view bytes) {
    WriteFile(path_, bytes);
    absl::StatusOr<File> file = File::Open(path_);
    if (!file.ok()) return file.status();
    return ListTar(*file);
  }

  // Names and contents, read at the offsets.
  std::vector<std::pair<std::string, std::string>> Contents(absl::string_view bytes) {
    const auto members = List(bytes);
    EXPECT_TRUE(members.ok()) << members.status();
    std::vector<std::pair<std::string, std::string>> contents;
    if (!members.ok()) return contents;
    const absl::StatusOr<File> file = File::Open(path_);
    for (const TarMember& member : *members) {
      std::string content;
      EXPECT_TRUE(file->Read(member.offset, member.bytes, content).ok());
      contents.emplace_back(member.name, content);
    }
    return contents;
  }

  std::string Fault(absl::string_view bytes) { return std::string(List(bytes).status().message()); }

  const std::string path_ = MakeFolder("tar") + "/shard.tar";
};

// The same two members as libarchive writes them in one of its formats.
std::string WriteWithLibarchive(int (*set_format)(archive*), const std::string& name) {
  std::string bytes(1 << 20, '\0');
  size_t used = 0;
  archive* writer = archive_write_new();
  set_format(writer);
  archive_write_open_memory(writer, bytes.data(), bytes.size(), &used);
  for (const std::string& content : {std::string("first"), std::string(700, 'x')}) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname_utf8(entry, absl::StrCat(name, content.size()).c_str());
    archive_entry_set_size(entry, static_cast<int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(writer, entry);
    archive_write_data(writer, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(writer);
  archive_write_free(writer);
  bytes.resize(used);
  return bytes;
}

TEST_F(TarTest, Ustar_ListsMembersWithTheirOffsets) {
  const std::string long_content(1500, 'z');
  EXPECT_THAT(Contents(TarBuilder()
                           .File("a.txt", "alpha")
                           .File("b.png", "")
                           .File("c.txt", long_content)
                           .Finish()),
              ElementsAre(Pair("a.txt", "alpha"), Pair("b.png", ""), Pair("c.txt", long_content)));
}

TEST_F(TarTest, Pax_LongNamesAreKept) {
  const std::string name = std::string(300, 'n') + ".txt";
  EXPECT_THAT(Contents(TarBuilder().LongFile(name, "far").File("b.txt", "near").Finish()),
              ElementsAre(Pair(name, "far"), Pair("b.txt", "near")));
}

TEST_F(TarTest, Pax_NamesOutsideAsciiAreKept) {
  EXPECT_THAT(Contents(TarBuilder().LongFile("ünï\xF0\x9F\x98\x80.txt", "x").Finish()),
              ElementsAre(Pair("ünï\xF0\x9F\x98\x80.txt", "x")));
}

TEST_F(TarTest, FormatsOfLibarchive_AreAllRead) {
  for (const auto set_format :
       {&archive_write_set_format_ustar, &archive_write_set_format_pax,
        &archive_write_set_format_gnutar, &archive_write_set_format_v7tar}) {
    EXPECT_THAT(Contents(WriteWithLibarchive(set_format, "name")),
                ElementsAre(Pair("name5", "first"), Pair("name700", std::string(700, 'x'))));
  }
}

TEST_F(TarTest, DirectoriesAndLinks_AreNoMembers) {
  EXPECT_THAT(Contents(TarBuilder()
                           .Directory("d/")
                           .File("./d/a.txt", "in")
                           .SymbolicLink("d/b.txt", "a.txt")
                           .Header("d/c.txt", '1', 0, "d/a.txt")
                           .Directory("e/")
                           .Finish()),
              ElementsAre(Pair("d/a.txt", "in")));
}

TEST_F(TarTest, EmptyArchive_HasNoMembers) {
  EXPECT_THAT(Contents(TarBuilder().Finish()), ElementsAre());
}

TEST_F(TarTest, ZeroBytes_AreNoArchive) { EXPECT_EQ(Fault(""), "is empty"); }

TEST_F(TarTest, OtherFiles_AreNoArchive) {
  EXPECT_THAT(Fault(std::string(4096, 'q')), HasSubstr("is not a tar file"));
  EXPECT_THAT(Fault("short"), HasSubstr("is not a tar file"));
}

TEST_F(TarTest, Compressed_IsNamed) {
  EXPECT_EQ(Fault("\x1F\x8B\x08 something"), "is compressed (gzip); must be a plain tar file");
}

TEST_F(TarTest, Truncated_AtAnyByteIsAnError) {
  const TarBuilder tar = TarBuilder().File("a.txt", "alpha").File("b.txt", std::string(600, 'b'));
  const std::string whole = tar.Finish();
  // One whole record of zeros ends an archive; what comes after it is padding.
  for (size_t bytes = 0; bytes < tar.bytes().size() + 512; bytes += 37) {
    EXPECT_FALSE(List(whole.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_FALSE(List(tar.bytes()).ok());
  EXPECT_TRUE(List(whole.substr(0, tar.bytes().size() + 512)).ok());
}

TEST_F(TarTest, TruncatedInContent_NamesTheMember) {
  const std::string whole =
      TarBuilder().File("a.txt", "alpha").File("b.txt", std::string(5000, 'b')).Finish();
  EXPECT_EQ(Fault(whole.substr(0, 3000)),
            "is truncated: member b.txt has 5000 bytes at 1536 of 3000");
}

TEST_F(TarTest, DeclaredSizeBeyondTheFile_IsAnError) {
  EXPECT_THAT(Fault(TarBuilder().Header("a.txt", '0', (uint64_t{1} << 33) - 1).Finish()),
              HasSubstr("is truncated"));
}

TEST_F(TarTest, DamagedHeader_NamesTheMemberBefore) {
  std::string bytes = TarBuilder().File("a.txt", "alpha").File("b.txt", "beta").Finish();
  bytes[1024 + 20] ^= 0x55;
  EXPECT_THAT(Fault(bytes), HasSubstr("is damaged after member a.txt"));
}

TEST_F(TarTest, FolderOrMissingFile_CannotBeOpened) {
  EXPECT_THAT(File::Open(MakeFolder("tar")).status().message(), HasSubstr("not a regular file"));
  EXPECT_THAT(File::Open("/nonexistent/x.tar").status().message(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace phalanx::data
