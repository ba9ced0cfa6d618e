// The axis of cat's measured table.
#include "core/tables.h"
#include "ops/cat/crossover.h"

namespace aten_ext {
namespace {

const TableOfFamily kTable(TableFamily::Cat,
                           {"cat", {cat_crossover::kShape.begin(), cat_crossover::kShape.end()}});

}  // namespace
}  // namespace aten_ext
