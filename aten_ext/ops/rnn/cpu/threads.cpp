#include "ops/rnn/cpu/threads.h"

#include "ops/rnn/cpu/product.h"

#include <initializer_list>

namespace aten_ext::cpu {
namespace {

// What a thread can do, in nanoseconds: rough, and only compared with each other. From a Zen 4 at about 3.7
// GHz, those of 16 bits from a Zen 5 at about 4.
struct Rates {
  double products = 1.0 / 48;         // a multiply-add of a tile
  double blas_products = 1.0 / 38;    // the same in a small GEMM
  double blas_bytes = 1.0 / 50;       // beside them W_hh, which the GEMM copies on one thread
  double weight_bytes = 1.0 / 150;    // W_hh beyond the L2, read once a step
  double packed_bytes = 1.0 / 12;     // W_hh read and written in panels
  double far_bytes = 1.0 / 8;         // and beside that, beyond the L2
  double gate = 0.7;                  // an element of a gate
  double narrow_products = 1.0 / 60;  // a multiply-add of a small GEMM of bfloat16
  double narrow_bytes = 1.0 / 110;    // W_hh of bfloat16 in that GEMM
  double narrow_call = 6000;          // beside its work, with rounding to 16 bits and back
  // Where upstream multiplies bfloat16 without instructions for it: from a Zen 3.
  int64_t widened_rows = 6;        // of all steps: with fewer, widening the weights costs as much as it saves
  double widened_weight = 0.12;    // an element
  double widened_input = 0.5;      // an element of x, with moving it where the batch is first
  double composed_gates = 12000;   // a step of the composition beside its product
  int64_t widened_columns = 4;     // of W_ih: with fewer, upstream's product costs what widening x does
  int64_t narrow_rnn_steps = 4;    // of a plain RNN of bfloat16, which save what rounding to it costs
  double barrier = 2500;           // all threads meet
  double blas_call = 2000;         // a GEMM of ATen's beside its work
  double worth_thread = 8000;      // less is not worth waking a thread for
  double short_lstm_step = 60e3;   // multiply-adds of a step, up to which ours beats oneDNN's on one thread
  double short_lstm_input = 12e6;  // and of the projection of its input
  double large_step = 30e6;        // multiply-adds from which oneDNN's GEMM of bfloat16 gains on ours
  double large_lstm_step = 6e6;    // and its LSTM
  double l2_bytes = 768 * 1024;
  int64_t few_steps = 2;     // of a large product: little but the product, which is upstream's, too
  double surely = 0.9;       // of a GEMM's time: packing has to promise as much, for both are estimates
  int64_t rows_of_part = 4;  // fewer rows share a row of a panel badly
};
constexpr Rates kRates;

double products_of(const RnnWork& work, int64_t rows) {
  return static_cast<double>(rows * gates_of(work.cell) * work.hidden) * static_cast<double>(work.hidden);
}
double weight_bytes_of(const RnnWork& work) {
  return products_of(work, 1) * sizeof(float);
}
double gates_time(const RnnWork& work, int64_t rows) {
  return static_cast<double>(rows * gates_of(work.cell) * work.hidden) * kRates.gate;
}

// One step of `rows` rows on one thread, of a share of the units.
double step_time(const RnnWork& work, int64_t rows, double share) {
  const double bytes = weight_bytes_of(work) * share;
  const double reading = bytes > kRates.l2_bytes ? bytes * kRates.weight_bytes : 0;
  return std::max(products_of(work, rows) * share * kRates.products, reading) +
         gates_time(work, rows) * share;
}

// A GEMM before a step, of one direction.
double product_time(const RnnWork& work, double team) {
  const double products = products_of(work, work.batch);
  const double bytes = weight_bytes_of(work);
  if (work.bfloat16 && multiplies_bfloat16()) {
    return std::max(products * kRates.narrow_products, bytes * kRates.narrow_bytes / 2) / team +
           kRates.narrow_call;
  }
  return products * kRates.blas_products / team + bytes * kRates.blas_bytes + kRates.blas_call;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

RnnThreads share_work(const RnnWork& work) {
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const double alone = step_time(work, work.batch, 1) * work.directions;
  if (threads == 1 || alone * static_cast<double>(work.steps) < 2 * kRates.worth_thread) {
    return {false, 0};
  }
  const int64_t wanted = ceil_div(threads, work.directions);
  const int64_t parts = std::clamp<int64_t>(work.batch / kRates.rows_of_part, 1, wanted);
  const int64_t turns = ceil_div(work.directions * parts, threads);
  const double by_rows = step_time(work, ceil_div(work.batch, parts), 1) * static_cast<double>(turns);
  const double by_units =
      step_time(work, work.batch, static_cast<double>(work.directions) / threads) + kRates.barrier;
  if (by_units < by_rows) {
    return {true, 1};
  }
  return {false, work.directions * parts == 1 ? 0 : static_cast<int>(parts)};
}

bool is_worth_packing(const RnnWork& work, const RnnThreads& threads) {
  const double team = at::in_parallel_region() ? 1 : at::get_num_threads();
  const double used =
      threads.by_units ? team : std::min(team, double(std::max(threads.parts, 1) * work.directions));
  const double bytes = weight_bytes_of(work);
  const double each = kRates.packed_bytes + (bytes > kRates.l2_bytes ? kRates.far_bytes : 0);
  const double packing = bytes * work.directions * each / (threads.parts == 0 ? 1 : team);
  const double step =
      step_time(work, work.batch, work.directions / used) + (threads.by_units ? kRates.barrier : 0);
  const double blas = work.directions * (product_time(work, team) + gates_time(work, work.batch) / used);
  const double steps = static_cast<double>(work.steps);
  return packing + steps * step <= kRates.surely * steps * blas;
}

bool is_large_step(const RnnWork& work) {
  return products_of(work, work.batch) > kRates.large_step;
}

bool is_large_lstm_step(const RnnWork& work) {
  return products_of(work, work.batch) > kRates.large_lstm_step;
}

bool is_worth_widening(const RnnWork& work, int64_t layers) {
  if (!work.bfloat16 || multiplies_bfloat16()) {
    return true;
  }
  const int64_t columns = gates_of(work.cell) * work.hidden;
  const double composed = static_cast<double>(work.steps * layers) * kRates.composed_gates;
  const double input = static_cast<double>(work.steps * work.batch * work.inputs) * kRates.widened_input;
  if (columns < kRates.widened_columns && input > composed) {
    return false;
  }
  if (work.steps * work.batch >= kRates.widened_rows) {
    return true;
  }
  const double first = static_cast<double>(columns) * static_cast<double>(work.inputs + work.hidden);
  const double others = static_cast<double>(columns * (work.directions + 1) * work.hidden);
  const double weights = first + static_cast<double>(layers - 1) * others;
  return weights * kRates.widened_weight <= composed;
}

bool beats_narrow_products(const RnnWork& work, const RnnThreads& threads) {
  if (!work.bfloat16 || !multiplies_bfloat16()) {
    return true;
  }
  if (is_large_step(work)) {
    return false;
  }
  // After its product a step of a plain RNN is two operators: with the same GEMM there is nothing to gain.
  if (gates_of(work.cell) == 1 &&
      (work.steps < kRates.narrow_rnn_steps || !is_worth_packing(work, threads))) {
    return false;
  }
  return true;
}

bool is_all_product(const RnnWork& work) {
  return !work.bfloat16 && work.steps <= kRates.few_steps && is_large_step(work);
}

bool beats_onednn(const RnnWork& work, const RnnThreads& threads) {
  const double projection = static_cast<double>(work.steps * work.batch * work.inputs) *
                            static_cast<double>(gates_of(work.cell) * work.hidden);
  return threads.parts > 1 || threads.by_units ||
         (products_of(work, work.batch) <= kRates.short_lstm_step && projection <= kRates.short_lstm_input);
}

std::vector<int64_t> split_rows(const RnnSteps& steps, int parts) {
  std::vector<int64_t> bounds{0};
  const int64_t count = std::max(parts, 1);
  if (steps.total == steps.count * steps.batch) {
    for (int64_t part = 1; part <= count; ++part) {
      bounds.push_back(steps.batch * part / count);
    }
    return bounds;
  }
  // Rows are sorted by their length: row r is in all steps with more than r rows.
  int64_t length = steps.count;
  int64_t sum = 0;
  for (int64_t row = 0; row < steps.batch; ++row) {
    while (steps.rows[length - 1] <= row) {
      --length;
    }
    sum += length;
    if (sum * count >= steps.total * static_cast<int64_t>(bounds.size()) &&
        static_cast<int64_t>(bounds.size()) < count) {
      bounds.push_back(row + 1);
    }
  }
  if (bounds.back() < steps.batch) {
    bounds.push_back(steps.batch);
  }
  return bounds;
}

}  // namespace aten_ext::cpu
