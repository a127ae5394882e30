#include "worker/model/token_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace phalanx::model {

TokenLists ListTokens(absl::Span<const int64_t> tokens, absl::Span<const int64_t> positions) {
  TokenLists lists;
  lists.source.resize(tokens.size());
  std::vector<int64_t> last(tokens.size(), -1);  // of the items' rows at each row
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto item = static_cast<int64_t>(i);
    int64_t& before = last[static_cast<size_t>(positions[i])];
    if (before < 0) {
      lists.source[static_cast<size_t>(positions[i])] = -1 - item;
    } else {
      if (lists.next.empty()) lists.next.assign(positions.size(), -1);
      lists.next[static_cast<size_t>(before)] = item;
    }
    before = item;
  }
  std::vector<uint64_t> text;  // token, then row
  text.reserve(tokens.size());
  for (size_t row = 0; row < tokens.size(); ++row) {
    if (last[row] >= 0) continue;
    lists.source[row] = std::max<int64_t>(0, tokens[row]);
    if (tokens[row] != kPadding) text.push_back((static_cast<uint64_t>(tokens[row]) << 32) | row);
  }
  std::sort(text.begin(), text.end());
  lists.tokens.reserve(text.size());
  lists.order.reserve(text.size());
  for (const uint64_t entry : text) {
    lists.tokens.push_back(static_cast<int32_t>(entry >> 32));
    lists.order.push_back(static_cast<int64_t>(entry & 0xffffffffu));
  }
  return lists;
}

TokenRows MakeTokenRows(const at::Tensor& tokens, const at::Tensor& positions, at::Device device) {
  const auto span = [](const at::Tensor& tensor) {
    return absl::MakeConstSpan(tensor.const_data_ptr<int64_t>(),
                               static_cast<size_t>(tensor.numel()));
  };
  const at::Tensor all = tokens.contiguous();
  const at::Tensor items = positions.defined() ? positions.contiguous() : at::Tensor();
  const TokenLists lists =
      ListTokens(span(all), items.defined() ? span(items) : absl::Span<const int64_t>());
  TokenRows rows;
  rows.source = at::tensor(lists.source, at::kLong).to(device);
  if (!lists.next.empty()) rows.next = at::tensor(lists.next, at::kLong).to(device);
  rows.tokens = at::tensor(lists.tokens, at::kInt).to(device);
  rows.order = at::tensor(lists.order, at::kLong).to(device);
  return rows;
}

}  // namespace phalanx::model
