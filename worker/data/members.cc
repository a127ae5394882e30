#include "worker/data/members.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace phalanx::data {
namespace {

enum class Role : uint8_t { kNone, kText, kTarget, kItem };
struct Suffix {
  Role role = Role::kNone;
  ItemKind kind = ItemKind::kImage;
  int32_t number = 0;  // of an item
};

// Splits "dir/face.0.png" into key "dir/face" and suffix "0.png", in lower case.
void SplitName(absl::string_view name, absl::string_view& key, std::string& suffix) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == absl::string_view::npos ? 0 : slash + 1);
  key = name.substr(0, dot);
  suffix = dot == absl::string_view::npos ? "" : absl::AsciiStrToLower(name.substr(dot + 1));
}

// "png" is image 0, "3.wav" sound 3.
Suffix ReadSuffix(absl::string_view suffix) {
  if (suffix == "txt") return {Role::kText};
  if (suffix == "target.npy") return {Role::kTarget};
  const size_t dot = suffix.find('.');
  const absl::string_view type = dot == absl::string_view::npos ? suffix : suffix.substr(dot + 1);
  Suffix item{Role::kItem};
  if (type == "wav" || type == "flac") {
    item.kind = ItemKind::kSound;
  } else if (type != "png" && type != "jpg" && type != "jpeg") {
    return {};
  }
  if (dot == absl::string_view::npos) return item;
  const absl::string_view digits = suffix.substr(0, dot);
  const bool plain = !digits.empty() && digits.size() <= 6 &&
                     std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  return plain && absl::SimpleAtoi(digits, &item.number) ? item : Suffix{};
}

std::string ItemFault(const Entry& entry, const DataSetSpec& spec) {
  for (size_t i = 1; i < entry.items.size(); ++i) {
    if (entry.items[i].number == entry.items[i - 1].number) {
      return absl::StrCat("has a member twice: item ", entry.items[i].number);
    }
  }
  for (size_t i = 0; i < entry.items.size(); ++i) {
    const Item& item = entry.items[i];
    if (item.number != static_cast<int32_t>(i)) return absl::StrCat("lacks its item ", i);
    if (ReadsKind(spec, item.kind) && item.extent.bytes > kItemBytesMax) {
      return absl::StrCat("has an item ", i, " of ", item.extent.bytes,
                          " bytes; must have at most ", kItemBytesMax);
    }
  }
  return "";
}

}  // namespace

std::vector<Entry> GroupMembers(const std::vector<TarMember>& members) {
  std::vector<Entry> entries;
  absl::flat_hash_map<std::string, size_t> by_key;
  for (const TarMember& member : members) {
    absl::string_view key;
    std::string text;
    SplitName(member.name, key, text);
    const Suffix suffix = ReadSuffix(text);
    if (suffix.role == Role::kNone) continue;
    const auto [place, added] = by_key.try_emplace(key, entries.size());
    if (added) entries.push_back({.key = std::string(key)});
    Entry& entry = entries[place->second];
    const Extent extent{member.offset, member.bytes};
    if (suffix.role == Role::kItem) {
      entry.items.push_back({extent, suffix.number, suffix.kind});
      continue;
    }
    const bool is_text = suffix.role == Role::kText;
    std::optional<Extent>& slot = is_text ? entry.text : entry.target;
    bool& repeated = is_text ? entry.text_repeated : entry.target_repeated;
    repeated = repeated || slot.has_value();
    slot = extent;
  }
  for (Entry& entry : entries) {
    std::stable_sort(entry.items.begin(), entry.items.end(),
                     [](const Item& a, const Item& b) { return a.number < b.number; });
  }
  return entries;
}

std::string MemberFault(const Entry& entry, const DataSetSpec& spec) {
  if (!entry.text.has_value()) return "lacks its text member";
  if (entry.text_repeated) return "has a member twice: its text";
  if (entry.text->bytes > kTextBytesMax) {
    return absl::StrCat("has a text of ", entry.text->bytes, " bytes; must have at most ",
                        kTextBytesMax);
  }
  if (!spec.encoders.empty()) {
    const std::string fault = ItemFault(entry, spec);
    if (!fault.empty()) return fault;
  }
  if (!spec.targets) return "";
  if (!entry.target.has_value()) return "lacks its target member (target.npy)";
  if (entry.target_repeated) return "has a member twice: its target";
  return "";
}

std::vector<Item> ItemsUsed(const Entry& entry, const DataSetSpec& spec) {
  std::vector<Item> used;
  for (const Item& item : entry.items) {
    if (ReadsKind(spec, item.kind)) used.push_back(item);
  }
  return used;
}

}  // namespace phalanx::data
