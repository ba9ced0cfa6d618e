// The pybind11 module `_C`: the registry seen from Python. Standard types only, no torch, so that it
// compiles in seconds and loads under any torch, also one that `_kernels` was not built for.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "core/registry.h"
#include "watch/watch.h"

namespace py = pybind11;

namespace {

// The registry lives in `_kernels`; its address comes from there (aten_ext_registry()).
aten_ext::Registry* attached = nullptr;

// Python's answer to Watch::find_site.
py::object* find_site = nullptr;

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

const aten_ext::Registry& get() {
  if (attached == nullptr) {
    throw std::runtime_error("[aten_ext] the kernels are not loaded");
  }
  return *attached;
}

struct CountsSnapshot {
  uint64_t ran = 0;
  uint64_t disabled = 0;
  uint64_t late = 0;
  std::map<std::string, uint64_t> declined;
};

aten_ext::Watch& watch() {
  return *get().watch;
}

const char* route_name(aten_ext::Route route) {
  switch (route) {
    case aten_ext::Route::kFused:
      return "fused";
    case aten_ext::Route::kDeclined:
      return "declined";
    case aten_ext::Route::kLate:
      return "declined late";
    default:
      return "disabled";
  }
}

CountsSnapshot snapshot(const aten_ext::Override& override) {
  CountsSnapshot result{override.counts.ran(), override.counts.disabled(), override.counts.late(), {}};
  for (const auto& [reason, count] : override.counts.declined()) {
    result.declined[reason] += count;
  }
  return result;
}

}  // namespace

// The registry is atomics and a mutex: a Python without the GIL stays without it.
PYBIND11_MODULE(_C, m, py::mod_gil_not_used()) {
  m.doc() = "The registry of overrides, as kept by the kernels' library.";
  // Compiled in, so that Python can compare versions before it loads anything that links torch.
  m.attr("built_for_torch") = ATEN_EXT_BUILT_FOR_TORCH;
  m.attr("built_for_cuda") = ATEN_EXT_BUILT_FOR_CUDA;
  m.attr("cuda_arch_list") = ATEN_EXT_CUDA_ARCH_LIST;

  py::class_<CountsSnapshot>(m, "Counts")
      .def_readonly("ran", &CountsSnapshot::ran)
      .def_readonly("disabled", &CountsSnapshot::disabled)
      .def_readonly("late", &CountsSnapshot::late)
      .def_readonly("declined", &CountsSnapshot::declined);

  m.def("attach", [](uintptr_t address) { attached = reinterpret_cast<aten_ext::Registry*>(address); });
  m.def("active", [] { return get().state->active; });
  m.def("rows", [] {
    // name, key, summary, built, measured, enabled
    std::vector<std::tuple<std::string, std::string, std::string, bool, bool, bool>> rows;
    for (const aten_ext::Override& override : get()) {
      rows.emplace_back(override.name, override.key, override.summary, override.built, override.measured,
                        override.enabled.load());
    }
    return rows;
  });
  m.def("names", [] { return get().names(); });
  m.def("is_any_enabled", [](const std::string& key) {
    const aten_ext::Registry& rows = get();
    return std::any_of(rows.begin(), rows.end(), [&](const aten_ext::Override& override) {
      return key == override.key && override.enabled.load();
    });
  });
  m.def("count_matching", [](const std::string& pattern) { return get().count_matching(pattern); });
  m.def("set_enabled",
        [](const std::string& pattern, bool enabled) { return get().set_enabled(pattern, enabled); });
  // The flags of all rows in their order, from set_enabled()'s point of view a snapshot.
  m.def("set_flags", [](const std::vector<bool>& flags) {
    const aten_ext::Registry& rows = get();
    for (size_t row = 0; row < rows.size && row < flags.size(); ++row) {
      rows.overrides[row].enabled.store(flags[row], std::memory_order_relaxed);
    }
  });
  m.def("counts", [] {
    std::vector<std::tuple<std::string, std::string, CountsSnapshot>> rows;
    for (const aten_ext::Override& override : get()) {
      rows.emplace_back(override.name, override.key, snapshot(override));
    }
    return rows;
  });
  // For the rows whose work is done in Python.
  m.def("add_ran", [](const std::string& name) {
    for (aten_ext::Override& override : get()) {
      if (name == override.name) {
        override.counts.add_ran();
      }
    }
  });
  m.def("reset_counts", [] {
    for (aten_ext::Override& override : get()) {
      override.counts.reset();
    }
  });

  // Sessions of the watch; see watch.h and aten_ext/_watch.py.
  m.def("start_trace", [](bool sites) { return watch().start_trace(sites); }, py::arg("sites") = false);
  m.def("start_times", [](double rate) { return watch().start_times(rate); });
  // Called for each call that a trace with sites sees: who called, as "file:line".
  m.def("set_find_site", [](const py::object& callable) {
    // Never freed: a thread of its own may still call at exit.
    find_site = new py::object(callable);
    watch().find_site.store(
        [] {
          if (Py_IsInitialized() == 0 || is_finalizing()) {
            return std::string();
          }
          const py::gil_scoped_acquire gil;
          try {
            return (*find_site)().cast<std::string>();
          } catch (const std::exception&) {  // the call goes on
            return std::string();
          }
        },
        std::memory_order_release);
  });
  m.def("start_shadow",
        [](double rate, bool keep_upstream) { return watch().start_shadow(rate, keep_upstream); });
  m.def("is_watched", [] { return watch().bits.load(std::memory_order_relaxed) != 0; });
  // Without the GIL: all of them may wait for the GPU.
  m.def(
      "stop_watching", [](uint64_t session) { watch().stop(session); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "clear_watched", [](uint64_t session) { watch().clear(session); },
      py::call_guard<py::gil_scoped_release>());
  m.def("traced_calls", [](uint64_t session) {
    // override, key, route, reason, signature, count, site, microseconds
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string, uint64_t,
                           std::string, double>>
        rows;
    for (const aten_ext::CallRow& row : watch().calls(session)) {
      rows.emplace_back(row.override, row.key, route_name(row.route), row.reason, row.signature, row.count,
                        row.site, row.microseconds);
    }
    return rows;
  });
  m.def("shadowed_calls", [](uint64_t session) {
    std::vector<py::dict> rows;
    for (const aten_ext::ShadowRow& row : watch().shadowed(session)) {
      const aten_ext::Differences& d = row.differences;
      py::dict fields;
      fields["override"] = row.override;
      fields["key"] = row.key;
      fields["signature"] = row.signature;
      fields["compared"] = row.compared;
      fields["differing"] = row.differing;
      fields["captured"] = row.captured;
      fields["failed"] = row.failed;
      fields["error"] = row.error;
      fields["elements"] = d.elements;
      fields["different"] = d.different;
      fields["max_absolute"] = d.max_absolute;
      fields["max_relative"] = d.max_relative;
      fields["max_ulp"] = d.max_ulp;
      fields["worst"] = d.worst;
      fields["nan"] = d.nan;
      fields["layouts"] = d.layouts;
      fields["layout"] = d.layout;
      rows.push_back(fields);
    }
    return rows;
  });
  m.def("timed_calls", [](uint64_t session) {
    std::vector<aten_ext::TimeRow> found;
    {
      const py::gil_scoped_release release;
      found = watch().timed(session);
    }
    std::vector<py::dict> rows;
    for (const aten_ext::TimeRow& row : found) {
      py::dict fields;
      fields["override"] = row.override;
      fields["key"] = row.key;
      fields["calls"] = row.calls;
      fields["timed"] = row.timed;
      fields["inside"] = row.inside;
      fields["captured"] = row.captured;
      fields["shadowed"] = row.shadowed;
      fields["ours_us"] = row.ours;
      fields["comparable"] = row.comparable;
      fields["comparable_us"] = row.comparable_ours;
      fields["sampled"] = row.sampled;
      fields["failed"] = row.failed;
      fields["error"] = row.error;
      fields["sum_ours"] = row.sum_ours;
      fields["sum_upstream"] = row.sum_upstream;
      fields["sum_ours_ours"] = row.sum_ours_ours;
      fields["sum_upstream_upstream"] = row.sum_upstream_upstream;
      fields["sum_ours_upstream"] = row.sum_ours_upstream;
      rows.push_back(fields);
    }
    return rows;
  });
  // ATEN_EXT_TRACE, and the sessions that the environment started (0: none).
  m.def("watched_by_environment", [] {
    return std::tuple(watch().trace_variable(), watch().trace_session(), watch().shadow_session(),
                      watch().times_session());
  });
}
