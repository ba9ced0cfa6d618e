// The axes of the linear layers' measured table.
#include "core/tables.h"
#include "ops/linear/crossover.h"

namespace aten_ext {
namespace {

const TableOfFamily kTable(TableFamily::Linear,
                           {"linear", {crossover::kShape.begin(), crossover::kShape.end()}});

}  // namespace
}  // namespace aten_ext
