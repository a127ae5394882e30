// worker/comm/gloo_store.h: our rendezvous as Gloo wants to see it.
//
// Gloo's interface has no room for errors but exceptions; StatusException carries ours through its
// code, to be caught where Gloo was called.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/comm/communicator.h"

namespace phalanx::comm {

// Carries a Status through Gloo's code.
struct StatusException final : std::exception {
  explicit StatusException(absl::Status status) : status(std::move(status)) {}
  const char* what() const noexcept override { return "rendezvous failed"; }
  absl::Status status;
};

class RendezvousStore final : public ::gloo::rendezvous::Store {
 public:
  RendezvousStore(Rendezvous& rendezvous, absl::Time deadline)
      : rendezvous_(rendezvous), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status put =
        rendezvous_.Put(absl::StrCat("gloo/", key), std::string(data.begin(), data.end()));
    if (!put.ok()) throw StatusException(put);
  }
  std::vector<char> get(const std::string& key) override {
    absl::StatusOr<std::string> value = rendezvous_.Get(absl::StrCat("gloo/", key), deadline_);
    if (!value.ok()) throw StatusException(value.status());
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  Rendezvous& rendezvous_;
  const absl::Time deadline_;
};

}  // namespace phalanx::comm
