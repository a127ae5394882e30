// coordinator/runtime/planning.h: job documents and plans for the coordinator.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/machine/actions.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/records.h"
#include "coordinator/runtime/board.h"
#include "core/job/data_shape.h"
#include "core/job/job_reader.h"
#include "phalanx/v1/plan.pb.h"

namespace phalanx::coordinator {

// Nobody asks for the nodes but searches: thousands are not to be copied for each submit.
using NodesSource = absl::FunctionRef<std::vector<NodeView>()>;
// What an index has said of the training set that the key stands for; nullopt: nothing.
using DataShapeSource =
    absl::FunctionRef<std::optional<job::DataShape>(const std::string& data_key)>;
// Asked for a job of products in FP8 on GPUs alone.
using Fp8Source = absl::FunctionRef<Fp8Nodes()>;
// Asked by a search before all that takes long; what is not OK ends it with that.
using GoOn = std::function<absl::Status()>;

// A document that was read, and all of what it says that needs no plan was found right.
struct ReadSubmit {
  Document document;
  plan::RankList lost;
  job::ReadJob job;

  // Whether layouts are left to the planner: a search of up to some seconds.
  bool NeedsSearch() const { return job.spec.HasOpenLayout(); }
};
// A document must be complete, within what this release trains, and of a form that can be laid on
// devices, whichever they are. `lost`: ranks that the job begins without. Errors: InvalidArgument
// with every violation, also of a job of products in FP8 on GPUs where there are nodes of GPUs and
// all of them say that theirs have none.
absl::StatusOr<ReadSubmit> ReadDocument(
    Document document, plan::RankList lost = {}, Fp8Source fp8 = [] { return Fp8Nodes(); });

// What the coordinator needs to know of such a document. Paths are resolved against its directory.
// Where modules' layouts are left to the planner, it chooses here, for what those of `nodes` have
// that the job may use, under the profile of their devices where these are of one known kind, and
// with what is known of its data where it does not say itself. The request's document says what was
// chosen, its note what with.
// Errors: InvalidArgument with every violation, of a search; for `lost` those of plan::LayoutAfter;
// what `go_on` says.
absl::StatusOr<JobRequestPtr> RequestOf(
    ReadSubmit read, NodesSource nodes = [] { return std::vector<NodeView>(); },
    DataShapeSource data = [](const std::string&) { return std::optional<job::DataShape>(); },
    GoOn go_on = nullptr);
// Both in one.
absl::StatusOr<JobRequestPtr> ReadRequest(
    Document document, plan::RankList lost = {},
    NodesSource nodes = [] { return std::vector<NodeView>(); },
    DataShapeSource data = [](const std::string&) { return std::optional<job::DataShape>(); },
    Fp8Source fp8 = [] { return Fp8Nodes(); });
// What a repetition of a submit is known by where there is no request of it: not yet, or refused.
JobRequestPtr RequestAsSubmitted(Document document, plan::RankList lost);
// The same, and what is known of the job before its layout is.
JobRequestPtr RequestBeforeSearch(const ReadSubmit& read);

// Plans the order's job on exactly its devices: under the layout where there is one, as it is or
// without the ranks `lost` that it counts on and with those of `returned`, back on the devices that
// they had or those of `lent`, where devices that idle take over unless they are of `unfit`; else
// without the ranks that the job begins without. `any_rung`: as if its ladder had all rungs.
// Pure: the same order gets the same answer. Errors: InvalidArgument with every violation; a
// device that has less than its rank needs is one of spec.modules, and others are those of
// plan::CheckHostMemory. Those of plan::LayoutAfter. What `stateless`, `standby` and
// `kept` say.
absl::StatusOr<PlanSummary> PlanJobOf(const ComputePlan& order);

// Gives records of epochs from before there were layouts the layout that this version would choose
// on their devices, where their jobs have not ended. One that cannot be planned stays as it is.
void FillLayouts(std::vector<JournalRecord>& records);

// The plan that the document's job would get on these nodes if all their devices were free. Errors:
// InvalidArgument with every violation, as above; those of plan::LayoutAfter; ResourceExhausted if
// the nodes have not enough devices, which is said before any search; what `go_on` says.
absl::StatusOr<v1::Plan> PreviewPlan(
    const Document& document, absl::Span<const Rank> lost, const std::vector<NodeView>& nodes,
    DataShapeSource data = [](const std::string&) { return std::optional<job::DataShape>(); },
    GoOn go_on = nullptr);

}  // namespace phalanx::coordinator
