#include "coordinator/runtime/plan_products.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/plan/digest_text.h"
#include "core/schedule/product_table.h"

namespace phalanx::coordinator {

bool TakesProducts(const job::JobSpec& spec) {
  return spec.resources.device == job::DeviceKind::kGpu && spec.compute == job::Precision::kBf16;
}

void KeepProducts(const ComputePlan& order, plan::Plan& plan) {
  const std::string& products = plan.layout.products;
  if (products.empty() || order.products.value_or(products) == products) return;
  plan.notes.push_back(
      absl::StrCat("algorithms of products are the libraries' own from now on: "
                   "not all nodes have the table ",
                   products));
  plan::TakeProducts("", plan);
}

void LeaveRoomForProducts(const job::JobSpec& spec, ComputePlan& order) {
  const std::string products =
      order.layout.has_value() ? (**order.layout).products : order.products.value_or("");
  if (products.empty() || !TakesProducts(spec)) return;
  order.limits.LeaveRoom(schedule::kProductWorkspaceBytes);
}

}  // namespace phalanx::coordinator
