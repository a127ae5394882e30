// What join tokens are good for, and what is kept of them.
#include "coordinator/rpc/join_tokens.h"

#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd_tokens.h"
#include "coordinator/store/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/etcd.h"
#include "tests/support/files.h"
#include "tests/support/tools.h"
#include "tests/unit/coordinator/store/etcd_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A place for tokens; to open it again is what a restart does.
struct TokenPlace {
  virtual ~TokenPlace() = default;
  virtual std::shared_ptr<TokenStore> Open() = 0;
};

struct FilePlace final : TokenPlace {
  std::shared_ptr<TokenStore> Open() override { return std::make_shared<TokenFile>(file); }
  const std::string file = support::MakeFolder("tokens") + "/join-tokens";
};

// Each time another coordinator leads.
struct EtcdPlaceOfTokens final : TokenPlace {
  std::shared_ptr<TokenStore> Open() override {
    leadership.reset();
    leadership = disk.LeadBlindly();
    return std::make_shared<EtcdTokens>(disk.NewClient(), disk.place.prefix, leadership);
  }
  EtcdDisk disk;
  std::shared_ptr<Leadership> leadership;
};

// Null where what they lie on is not installed.
using MakePlace = std::unique_ptr<TokenPlace> (*)();
class JoinTokensTest : public ::testing::TestWithParam<MakePlace> {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(place_ == nullptr ? support::EtcdMissing() : "");
    Reopen();
  }
  void Reopen() {
    auto tokens = JoinTokens::Open(place_->Open());
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    tokens_ = *std::move(tokens);
  }
  v1::CreateTokenResponse Create(const std::string& node = "", int32_t uses = 0) {
    v1::CreateTokenRequest request;
    request.set_node(node);
    request.set_uses(uses);
    auto made = tokens_->Create(request, "olga", now_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  absl::Status Use(const std::string& token, const std::string& node, const std::string& key) {
    return tokens_
        ->Use({.token = token, .node = node, .key_sha256 = key}, now_ + absl::Hours(24), now_)
        .status();
  }

  const std::unique_ptr<TokenPlace> place_ = GetParam()();
  std::unique_ptr<JoinTokens> tokens_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
};

TEST_P(JoinTokensTest, Token_IsUsedOnce_AlsoAfterARestart) {
  const std::string token = Create().token();
  EXPECT_TRUE(Use(token, "a", "key").ok());
  Reopen();
  const absl::Status again = Use(token, "a", "another key");
  EXPECT_TRUE(absl::IsUnauthenticated(again));
  EXPECT_THAT(again.message(), HasSubstr("is used up: node a has joined with it"));
  EXPECT_TRUE(Use(token, "a", "key").ok()) << "whoever lost the answer asks again";
  ASSERT_THAT(tokens_->List(now_), SizeIs(1));
  EXPECT_THAT(tokens_->List(now_)[0].uses(), SizeIs(1));
  EXPECT_EQ(tokens_->List(now_)[0].state(), "used");
}

TEST_P(JoinTokensTest, TokenThatHasExpired_IsRefused) {
  const std::string token = Create().token();
  now_ += absl::Hours(1);
  EXPECT_THAT(Use(token, "a", "key").message(), HasSubstr("has expired"));
  EXPECT_EQ(tokens_->List(now_)[0].state(), "expired");
  EXPECT_THAT(tokens_->List(now_)[0].uses(), IsEmpty());
}

TEST_P(JoinTokensTest, TokenOfANode_IsForThatNode_AsOftenAsItSays) {
  const std::string token = Create("a", 2).token();
  EXPECT_THAT(Use(token, "b", "key").message(), HasSubstr("is for node a"));
  EXPECT_TRUE(Use(token, "a", "1").ok());
  EXPECT_TRUE(Use(token, "a", "2").ok());
  EXPECT_THAT(Use(token, "a", "3").message(), HasSubstr("is used up"));
}

TEST_P(JoinTokensTest, TokenForAnyNode_TakesNobodysName) {
  const v1::CreateTokenResponse first = Create();
  ASSERT_TRUE(Use(first.token(), "a", "key").ok());
  const absl::Status taken = Use(Create().token(), "a", "another key");
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(taken.message(), HasSubstr(absl::StrCat("joined with token ", first.about().id())));
  EXPECT_TRUE(Use(Create("a").token(), "a", "another key").ok()) << "an operator says so";
}

TEST_P(JoinTokensTest, TokenThatIsRevoked_TakesItsCertificatesWithIt) {
  const v1::CreateTokenResponse made = Create();
  const std::string& id = made.about().id();
  ASSERT_TRUE(Use(made.token(), "a", "key").ok());
  EXPECT_TRUE(tokens_->MayServe(id).ok());
  ASSERT_TRUE(tokens_->Revoke(id, "olga", now_).ok());
  Reopen();
  EXPECT_THAT(Use(made.token(), "a", "key").message(), HasSubstr("is revoked"));
  EXPECT_THAT(tokens_->MayServe(id).message(), HasSubstr("is revoked"));
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->Renew(id, now_ + absl::Hours(1))));
  EXPECT_TRUE(tokens_->Revoke(id, "sam", now_).ok()) << "is idempotent";
  EXPECT_EQ(tokens_->List(now_)[0].revoked_by(), "olga");
}

TEST_P(JoinTokensTest, WhatIsNoTokenOfOurs_LearnsNothing) {
  const std::string token = Create().token();
  std::string other = token;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& text : {other, std::string("phx_"), std::string(), token + "0",
                                  token.substr(0, 20), "phx_0123456789abcdef" + token.substr(20)}) {
    const absl::Status refused = Use(text, "a", "key");
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << text;
    EXPECT_EQ(refused.message(),
              "the join token is none of this coordinator's; ask an operator "
              "for one: phalanx token create")
        << text;
  }
  EXPECT_EQ(tokens_->List(now_)[0].state(), "valid");
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->MayServe("0123456789abcdef")));
}

TEST_P(JoinTokensTest, FieldBeyondItsBounds_IsNamed) {
  const auto fault = [&](const std::string& node, absl::Duration ttl, int32_t uses) {
    v1::CreateTokenRequest request;
    request.set_node(node);
    request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(ttl));
    request.set_uses(uses);
    return std::string(tokens_->Create(request, "", now_).status().message());
  };
  EXPECT_EQ(fault("a", absl::Seconds(59), 1), "ttl is 59s; it must be 1m to 720h");
  EXPECT_EQ(fault("a", absl::Hours(721), 1), "ttl is 721h; it must be 1m to 720h");
  EXPECT_EQ(fault("a", absl::Hours(1), 1001), "uses is 1001; it must be 1 to 1000");
  EXPECT_EQ(fault("a", absl::Hours(1), -1), "uses is -1; it must be 1 to 1000");
  EXPECT_EQ(fault("", absl::Hours(1), 2),
            "uses is 2; a token for more than one use must name its node");
  EXPECT_THAT(fault("../a\n", absl::Hours(1), 1), HasSubstr("node is \"../a\\n\""));
  EXPECT_THAT(fault(std::string(254, 'a'), absl::Hours(1), 1), HasSubstr("it must be 1 to 253"));
}

TEST_P(JoinTokensTest, TokenThatIsOver_IsForgottenAWeekLater) {
  ASSERT_TRUE(Use(Create("a").token(), "a", "key").ok());  // its certificate holds for a day
  Create();
  now_ += absl::Hours(24 * 7 + 2);
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(2)) << "the one without a certificate is gone";
  now_ += absl::Hours(24);
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(2));
}

// More than a store forgets at once.
TEST_P(JoinTokensTest, ManyTokensThatAreOver_DoNotComeBackAfterARestart) {
  constexpr size_t kMany = TokenStore::kForgottenMax + 50;
  for (size_t i = 0; i < kMany; ++i) Create();
  now_ += absl::Hours(24 * 8);
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(51));
  Reopen();
  EXPECT_THAT(tokens_->List(now_), SizeIs(51));
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(2));
}

INSTANTIATE_TEST_SUITE_P(File, JoinTokensTest,
                         ::testing::Values([]() -> std::unique_ptr<TokenPlace> {
                           return std::make_unique<FilePlace>();
                         }));
INSTANTIATE_TEST_SUITE_P(Etcd, JoinTokensTest,
                         ::testing::Values([]() -> std::unique_ptr<TokenPlace> {
                           if (!support::EtcdMissing().empty()) return nullptr;
                           return std::make_unique<EtcdPlaceOfTokens>();
                         }));

TEST(TokenFileTest, File_HasNoSecret_AndIsTheOwnersAlone) {
  FilePlace place;
  const std::string token =
      (*JoinTokens::Open(place.Open()))->Create({}, "olga", absl::Now())->token();
  EXPECT_THAT(support::ReadFile(place.file), Not(HasSubstr(token.substr(21))));
  struct stat status {};
  ASSERT_EQ(stat(place.file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(TokenFileTest, FileThatIsDamaged_IsFound) {
  FilePlace place;
  ASSERT_TRUE((*JoinTokens::Open(place.Open()))->Create({}, "olga", absl::Now()).ok());
  std::string bytes = support::ReadFile(place.file);
  bytes[bytes.size() / 2] ^= 1;
  support::WriteFile(place.file, bytes);
  const absl::Status damaged = JoinTokens::Open(place.Open()).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr(place.file));
}

TEST(TokenFileTest, DiskThatTakesNothing_ChangesNothing) {
  const auto nowhere = JoinTokens::Open(std::make_shared<TokenFile>("/nowhere/join-tokens"));
  ASSERT_TRUE(nowhere.ok());
  EXPECT_TRUE(absl::IsUnavailable((*nowhere)->Create({}, "", absl::Now()).status()));
  EXPECT_THAT((*nowhere)->List(absl::Now()), IsEmpty());
}

// By its own clock it still leads: nobody joins with a token at two coordinators.
TEST(EtcdTokensTest, DeposedLeader_ExchangesNoToken) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const EtcdDisk disk;
  const absl::Time now = absl::Now();
  const std::shared_ptr<Leadership> old = disk.LeadBlindly();
  auto deposed =
      *JoinTokens::Open(std::make_shared<EtcdTokens>(disk.NewClient(), disk.place.prefix, old));
  const std::string token = deposed->Create({}, "olga", now)->token();
  disk.Forget();
  const auto client = disk.NewClient();
  const std::shared_ptr<Leadership> leads = *disk.Lead(client);
  auto tokens = *JoinTokens::Open(std::make_shared<EtcdTokens>(client, disk.place.prefix, leads));
  const auto use = [&](JoinTokens& by, const std::string& node) {
    return by
        .Use({.token = token, .node = node, .key_sha256 = "key of " + node}, now + absl::Hours(24),
             now)
        .status();
  };
  EXPECT_TRUE(absl::IsUnavailable(use(*deposed, "a")));
  EXPECT_TRUE(use(*tokens, "b").ok());
  EXPECT_TRUE(absl::IsUnavailable(use(*deposed, "a")));
  EXPECT_THAT(use(*tokens, "a").message(), HasSubstr("node b has joined with it"));
}

// It does not even ask etcd, which may be what has failed it.
TEST(EtcdTokensTest, LeaderThatLeadsNoMore_LoadsNothing) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const EtcdDisk disk;
  const auto silent = std::make_shared<EtcdClient>(EtcdOptions{.members = {"127.0.0.1:1"}});
  std::shared_ptr<Leadership> leadership = disk.LeadBlindly();
  EtcdTokens tokens(silent, disk.place.prefix, leadership);
  leadership->Lose("in a test");
  EXPECT_THAT(std::string(tokens.Load().status().message()), HasSubstr("leads no more"));
  leadership.reset();
  EXPECT_THAT(std::string(tokens.Load().status().message()), HasSubstr("leads no more"));
}

// The change was made though nobody was told so: it is found before the next one.
TEST(EtcdTokensTest, ChangeWhoseAnswerIsLost_IsFoundByTheNext) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const EtcdDisk disk;
  const absl::Time now = absl::Now();
  int calls = 0;
  bool lose = false;
  const auto client = disk.NewClient([&]() -> absl::Status {
    if (!lose || ++calls != 2) return absl::OkStatus();
    return absl::InternalError("the answer is lost");
  });
  const std::shared_ptr<Leadership> leads = *disk.Lead(client);
  auto tokens = *JoinTokens::Open(std::make_shared<EtcdTokens>(client, disk.place.prefix, leads));
  const v1::CreateTokenResponse made = *tokens->Create({}, "olga", now);
  lose = true;
  EXPECT_FALSE(tokens->Revoke(made.about().id(), "olga", now).ok());
  lose = false;
  EXPECT_THAT(tokens
                  ->Use({.token = made.token(), .node = "a", .key_sha256 = "key"},
                        now + absl::Hours(1), now)
                  .status()
                  .message(),
              HasSubstr("is revoked"));
}

}  // namespace
}  // namespace phalanx::coordinator
