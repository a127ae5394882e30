// worker/data/members.h: the members of a shard, sample by sample.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/data_set.h"
#include "worker/data/index_impl.h"
#include "worker/data/tar_reader.h"

namespace phalanx::data {

// Members of one key of one shard.
struct Entry {
  std::string key;
  std::optional<Extent> text, target;
  std::vector<Item> items;  // images and sounds by number
  bool text_repeated = false, target_repeated = false;
};

// Samples in the order in which their first member of a kind that we read stands in the shard.
std::vector<Entry> GroupMembers(const std::vector<TarMember>& members);

// What is wrong with the members of a sample, as far as their names and sizes tell; empty: nothing.
std::string MemberFault(const Entry& entry, const DataSetSpec& spec);

// The items that the job has an encoder for, by number.
std::vector<Item> ItemsUsed(const Entry& entry, const DataSetSpec& spec);

}  // namespace phalanx::data
