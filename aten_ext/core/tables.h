// Measured tables: where a family's kernels are faster than upstream's, cell by cell. What a cell stands for,
// the family says; a rule asks evidence() and holds no figure of its own.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aten_ext {

// LinearInGraphs: of a linear layer behind another kernel of a CUDA graph. LinearInL2: of one whose weight is
// in the L2 already, as in a loop over a small model.
enum class TableFamily : uint8_t { Linear, LinearInGraphs, LinearInL2, Cat };
inline constexpr size_t kTableFamilies = 4;

// What a family says of its table when the library is loaded.
struct TableShape {
  std::string name;
  std::vector<int64_t> sizes;  // of its axes
};
struct TableOfFamily {
  TableOfFamily(TableFamily family, TableShape shape);
};
// By family; without a name: not in this build.
const std::array<TableShape, kTableFamilies>& table_shapes();

// What decides on one GPU.
struct Evidence {
  // Upstream's time / ours in percent, by cell; 0: not measured. nullptr: there is no table at all.
  const uint8_t* percent;
  // The least percentage that counts as faster, of a cell: it covers noise, or the distance to another GPU.
  int least;
  // "measured on this GPU", "nearest: NVIDIA H200, margin 1.3 asked", "no table".
  std::string source;
};

// Of the GPU that a device is (core/gpu.h). After the first question about a device this is one atomic load.
const Evidence& evidence(TableFamily family, c10::Device device);

// How often tables came or went: what was decided before is out of date then.
inline std::atomic<uint64_t> table_changes{0};

// Adds a table, which takes the place of an older one of the same GPU, family and owner. A user's own comes
// before one that is shipped.
//   gpu: its name; capability: times 10; percent: as many bytes as the family has cells.
void add_table(TableFamily family, const std::string& gpu, int capability, int multiprocessors, bool of_user,
               const uint8_t* percent, size_t cells);

// A user's table of a GPU, taken back.
void remove_table(TableFamily family, const std::string& gpu, int multiprocessors);

}  // namespace aten_ext
