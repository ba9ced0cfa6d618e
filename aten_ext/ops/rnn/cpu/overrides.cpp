// The operators of recurrent layers, in terms of one call.
#include "ops/rnn/cpu/overrides.h"

namespace aten_ext::cpu {
namespace {

template <class Args>
RnnArguments padded(RnnCell cell, const Args& a, at::TensorList states) {
  return {cell,         a.input,   nullptr, states,          a.params,     a.has_biases,
          a.num_layers, a.dropout, a.train, a.bidirectional, a.batch_first};
}

template <class Args>
RnnArguments packed(RnnCell cell, const Args& a, at::TensorList states) {
  return {cell,         a.data,    &a.batch_sizes, states,          a.params, a.has_biases,
          a.num_layers, a.dropout, a.train,        a.bidirectional, false};
}

Ran<RnnResults> answered(const std::optional<RnnOutputs>& out) {
  return out ? Ran<RnnResults>(RnnResults{out->y, out->states[0]}) : Ran<RnnResults>(kRefused);
}

Ran<LstmResults> answered_lstm(const std::optional<RnnOutputs>& out) {
  return out ? Ran<LstmResults>(LstmResults{out->y, out->states[0], out->states[1]})
             : Ran<LstmResults>(kRefused);
}

}  // namespace

#define ATEN_EXT_RNN(op, layout, cell, answer)                                            \
  Choice<CpuRnnPlan> choose(const args::op& a) {                                          \
    return choose_rnn(layout(RnnCell::cell, a, a.hx));                                    \
  }                                                                                       \
  auto run(const args::op& a, const CpuRnnPlan& plan) -> decltype(answer(std::nullopt)) { \
    return answer(run_rnn(layout(RnnCell::cell, a, a.hx), plan));                         \
  }
ATEN_EXT_RNN(gru_input, padded, Gru, answered)
ATEN_EXT_RNN(gru_data, packed, Gru, answered)
ATEN_EXT_RNN(rnn_tanh_input, padded, Tanh, answered)
ATEN_EXT_RNN(rnn_tanh_data, packed, Tanh, answered)
ATEN_EXT_RNN(rnn_relu_input, padded, Relu, answered)
ATEN_EXT_RNN(rnn_relu_data, packed, Relu, answered)
ATEN_EXT_RNN(lstm_input, padded, Lstm, answered_lstm)
ATEN_EXT_RNN(lstm_data, packed, Lstm, answered_lstm)
#undef ATEN_EXT_RNN

}  // namespace aten_ext::cpu
