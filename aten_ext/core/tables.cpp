#include "core/tables.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/gpu.h"

namespace aten_ext {
namespace {

// Of a cell that was measured on this GPU: the noise of a measurement, by family. There is less of it where
// launches do not overlap, and where nothing comes from memory.
constexpr std::array<int, kTableFamilies> kLeastHere{107, 104, 102, 107};
// Of a cell that was measured on another.
constexpr int kLeastElsewhere = 130;

struct Table {
  TableFamily family;
  std::string gpu;
  int capability;
  int multiprocessors;
  bool of_user;
  std::vector<uint8_t> percent;
};

constexpr size_t kDevices = 256;  // c10::DeviceIndex has 8 bits

// Tables and evidence live as long as the process: a rule of another thread may be reading them.
struct Tables {
  std::mutex mutex;
  std::deque<Table> all;
  std::vector<const Table*> active;
  std::deque<Evidence> made;
  std::array<std::array<std::atomic<const Evidence*>, kDevices>, kTableFamilies> known{};

  void forget() {
    for (auto& family : known) {
      for (auto& place : family) {
        place.store(nullptr, std::memory_order_release);
      }
    }
    table_changes.fetch_add(1, std::memory_order_release);
  }
};

Tables& tables() {
  static auto* const kept = new Tables;  // never destroyed: threads may outlive the end of main()
  return *kept;
}

std::array<TableShape, kTableFamilies>& shapes() {
  static std::array<TableShape, kTableFamilies> known;
  return known;
}

bool is_of(const Table& table, const Gpu& gpu) {
  return table.gpu == gpu.name && table.multiprocessors == gpu.multiprocessors;
}

// How far a table's GPU is from another: architecture first, then size; of two as near, a user's own.
std::tuple<int, int, bool> distance(const Table& table, const Gpu& gpu) {
  return {std::abs(table.capability - gpu.capability), std::abs(table.multiprocessors - gpu.multiprocessors),
          !table.of_user};
}

// The mutex is held.
Evidence decide(const Tables& known, TableFamily family, const Gpu& gpu) {
  const Table* best = nullptr;
  for (const Table* table : known.active) {
    if (table->family != family) {
      continue;
    }
    const bool here = is_of(*table, gpu);
    if (best == nullptr || here > is_of(*best, gpu) ||
        (here == is_of(*best, gpu) &&
         (here ? table->of_user && !best->of_user : distance(*table, gpu) < distance(*best, gpu)))) {
      best = table;
    }
  }
  if (best == nullptr) {
    return {nullptr, 0, "no table"};
  }
  if (is_of(*best, gpu)) {
    return {best->percent.data(), kLeastHere[static_cast<size_t>(family)],
            best->of_user ? "measured on this GPU" : "measured on such a GPU (" + best->gpu + ")"};
  }
  const std::string margin =
      std::to_string(kLeastElsewhere / 100) + "." + std::to_string(kLeastElsewhere % 100 / 10);
  return {best->percent.data(), kLeastElsewhere, "nearest: " + best->gpu + ", margin " + margin + " asked"};
}

}  // namespace

TableOfFamily::TableOfFamily(TableFamily family, TableShape shape) {
  shapes()[static_cast<size_t>(family)] = std::move(shape);
}

const std::array<TableShape, kTableFamilies>& table_shapes() {
  return shapes();
}

const Evidence& evidence(TableFamily family, c10::Device device) {
  Tables& known = tables();
  const auto of_family = static_cast<size_t>(family);
  const auto index = static_cast<size_t>(device.index() < 0 ? 0 : device.index()) % kDevices;
  std::atomic<const Evidence*>* const place = device.is_cuda() ? &known.known[of_family][index] : nullptr;
  if (place != nullptr) {
    if (const Evidence* found = place->load(std::memory_order_acquire)) {
      return *found;
    }
  }
  const Gpu& gpu = gpu_of(device);
  const std::lock_guard lock(known.mutex);
  Evidence made = decide(known, family, gpu);
  if (place == nullptr) {  // a GPU elsewhere, of this thread's
    static thread_local std::array<Evidence, kTableFamilies> elsewhere;
    return elsewhere[of_family] = std::move(made);
  }
  known.made.push_back(std::move(made));
  place->store(&known.made.back(), std::memory_order_release);
  return known.made.back();
}

void add_table(TableFamily family, const std::string& gpu, int capability, int multiprocessors, bool of_user,
               const uint8_t* percent, size_t cells) {
  Tables& known = tables();
  const std::lock_guard lock(known.mutex);
  known.all.push_back({family, gpu, capability, multiprocessors, of_user, {percent, percent + cells}});
  const Table& added = known.all.back();
  for (const Table*& table : known.active) {
    if (table->family == family && table->gpu == gpu && table->multiprocessors == multiprocessors &&
        table->of_user == of_user) {
      table = &added;
      known.forget();
      return;
    }
  }
  known.active.push_back(&added);
  known.forget();
}

void remove_table(TableFamily family, const std::string& gpu, int multiprocessors) {
  Tables& known = tables();
  const std::lock_guard lock(known.mutex);
  for (size_t i = 0; i < known.active.size(); ++i) {
    const Table& table = *known.active[i];
    if (table.family == family && table.gpu == gpu && table.multiprocessors == multiprocessors &&
        table.of_user) {
      known.active.erase(known.active.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
  known.forget();
}

}  // namespace aten_ext
