// How the blocks that share a hidden state hand it to each other between two steps. Each block computes a
// slice of the units and needs the whole state for the next product.
//
//   BlockExchange     one block has all units: nothing to hand on (cluster_exchange.cuh)
//   ClusterExchange   the blocks of a thread-block cluster, through distributed shared memory, with barriers
//                     that count the bytes that arrive (cluster_exchange.cuh)
//   GridExchange      blocks all over the GPU, through words in global memory that carry the number of their
//                     step (grid_exchange.cuh)
//
// Common to them: a state of step t + 1 may be sent as soon as the block has all of step t; two buffers are
// enough; and no thread waits for anything but the arrival of what it reads. kValues is what travels for each
// unit: 1 in the forward direction (h), the gradients of a unit's gates in a backward pass.
#pragma once

#include "ops/rnn/cluster_exchange.cuh"
#include "ops/rnn/grid_exchange.cuh"
