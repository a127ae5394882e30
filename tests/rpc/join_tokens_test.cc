// What join tokens are good for, and what is kept of them.
#include "coordinator/rpc/join_tokens.h"

#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class JoinTokensTest : public ::testing::Test {
 protected:
  JoinTokensTest() { Reopen(); }
  void Reopen() {
    auto tokens = JoinTokens::Open(file_);
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

  const std::string file_ = support::MakeFolder("tokens") + "/join-tokens";
  std::unique_ptr<JoinTokens> tokens_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
};

TEST_F(JoinTokensTest, Token_IsUsedOnce_AlsoAfterARestart) {
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

TEST_F(JoinTokensTest, TokenThatHasExpired_IsRefused) {
  const std::string token = Create().token();
  now_ += absl::Hours(1);
  EXPECT_THAT(Use(token, "a", "key").message(), HasSubstr("has expired"));
  EXPECT_EQ(tokens_->List(now_)[0].state(), "expired");
  EXPECT_THAT(tokens_->List(now_)[0].uses(), IsEmpty());
}

TEST_F(JoinTokensTest, TokenOfANode_IsForThatNode_AsOftenAsItSays) {
  const std::string token = Create("a", 2).token();
  EXPECT_THAT(Use(token, "b", "key").message(), HasSubstr("is for node a"));
  EXPECT_TRUE(Use(token, "a", "1").ok());
  EXPECT_TRUE(Use(token, "a", "2").ok());
  EXPECT_THAT(Use(token, "a", "3").message(), HasSubstr("is used up"));
}

TEST_F(JoinTokensTest, TokenForAnyNode_TakesNobodysName) {
  const v1::CreateTokenResponse first = Create();
  ASSERT_TRUE(Use(first.token(), "a", "key").ok());
  const absl::Status taken = Use(Create().token(), "a", "another key");
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(taken.message(), HasSubstr(absl::StrCat("joined with token ", first.about().id())));
  EXPECT_TRUE(Use(Create("a").token(), "a", "another key").ok()) << "an operator says so";
}

TEST_F(JoinTokensTest, TokenThatIsRevoked_TakesItsCertificatesWithIt) {
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

TEST_F(JoinTokensTest, WhatIsNoTokenOfOurs_LearnsNothing) {
  const std::string token = Create().token();
  std::string other = token;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& text : {other, std::string("phx_"), std::string(), token + "0",
                                  token.substr(0, 20), "phx_0123456789abcdef" + token.substr(20)}) {
    const absl::Status refused = Use(text, "a", "key");
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << text;
    EXPECT_EQ(refused.message(), "the join token is none of this coordinator's") << text;
  }
  EXPECT_EQ(tokens_->List(now_)[0].state(), "valid");
  EXPECT_TRUE(absl::IsUnauthenticated(tokens_->MayServe("0123456789abcdef")));
}

TEST_F(JoinTokensTest, File_HasNoSecret_AndIsTheOwnersAlone) {
  const std::string token = Create().token();
  EXPECT_THAT(support::ReadFile(file_), Not(HasSubstr(token.substr(21))));
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(JoinTokensTest, FileThatIsDamaged_IsFound) {
  Create();
  std::string bytes = support::ReadFile(file_);
  bytes[bytes.size() / 2] ^= 1;
  support::WriteFile(file_, bytes);
  const absl::Status damaged = JoinTokens::Open(file_).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(damaged.message(), HasSubstr(file_));
}

TEST_F(JoinTokensTest, DiskThatTakesNothing_ChangesNothing) {
  const v1::CreateTokenResponse made = Create();
  const auto nowhere = JoinTokens::Open("/nowhere/join-tokens");
  ASSERT_TRUE(nowhere.ok());
  EXPECT_TRUE(absl::IsUnavailable((*nowhere)->Create({}, "", now_).status()));
  EXPECT_THAT((*nowhere)->List(now_), IsEmpty());
}

TEST_F(JoinTokensTest, FieldBeyondItsBounds_IsNamed) {
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

TEST_F(JoinTokensTest, TokenThatIsOver_IsForgottenAWeekLater) {
  ASSERT_TRUE(Use(Create("a").token(), "a", "key").ok());  // its certificate holds for a day
  Create();
  now_ += absl::Hours(24 * 7 + 2);
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(2)) << "the one without a certificate is gone";
  now_ += absl::Hours(24);
  Create();
  EXPECT_THAT(tokens_->List(now_), SizeIs(2));
}

}  // namespace
}  // namespace phalanx::coordinator
