// The axes of the linear layers' measured tables.
#include <cstdint>
#include <vector>

#include "core/tables.h"
#include "ops/linear/crossover.h"

namespace aten_ext {
namespace {

const std::vector<int64_t> kAxes(crossover::kShape.begin(), crossover::kShape.end());
const TableOfFamily kTable(TableFamily::Linear, {"linear", kAxes});
const TableOfFamily kTableInGraphs(TableFamily::LinearInGraphs, {"linear_in_graphs", kAxes});
const TableOfFamily kTableInL2(TableFamily::LinearInL2, {"linear_in_l2", kAxes});

}  // namespace
}  // namespace aten_ext
