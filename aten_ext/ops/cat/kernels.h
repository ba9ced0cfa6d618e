// Bridge between the ATen side of cat on CUDA (cuda.cpp) and its kernels (the .cu files here). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "core/launch_sequence.h"
#include "ops/cat/gpu.h"

namespace aten_ext::cuda {

// Up to here positions are 32 bits. (Another value lets a test see the other side.)
#ifndef ATEN_EXT_CAT_INDEX_LIMIT
#define ATEN_EXT_CAT_INDEX_LIMIT 0xffffffff
#endif
constexpr int64_t kCatIndexLimit = ATEN_EXT_CAT_INDEX_LIMIT;

// An input of which each row of the result takes one contiguous run. Everything in elements.
struct CatRun {
  const void* data;    // [rows, size]; nullptr: bytes of the result that another launch fills
  int64_t begin;       // in a row of the result: the end of the run before
  int64_t size;        // > 0
  int64_t row_stride;  // between two rows
  Dtype dtype;
};

struct CatRunsParams {
  const CatRun* runs;  // [count], on the host
  int64_t count;
  void* out;         // [rows, row_size]
  int64_t rows;      // > 0
  int64_t row_size;  // the sum of the runs' sizes
  int element_size;  // of the result, in bytes
  Dtype dtype;       // of the result
  CatGpu gpu;
};

// In elements.
inline int64_t longest_run(const CatRunsParams& p) {
  int64_t longest = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    longest = p.runs[i].size > longest ? p.runs[i].size : longest;
  }
  return longest;
}

// Whether there is something between the rows of an input.
inline bool has_rows_apart(const CatRunsParams& p) {
  for (int64_t i = 0; p.rows > 1 && i < p.count; ++i) {
    if (p.runs[i].data != nullptr && p.runs[i].row_stride != p.runs[i].size) {
      return true;
    }
  }
  return false;
}

constexpr int kCatMaxDims = 8;

// An input of any strides: a row-major array of its own dimensions, merged where its memory allows it, of
// which each row of the result takes the next `segment` elements.
struct CatGatherInput {
  const void* data;
  int64_t begin;    // in a row of the result
  int64_t segment;  // > 0
  int dims;         // > 0, from the outermost to the innermost
  int64_t sizes[kCatMaxDims];
  int64_t strides[kCatMaxDims];
  Dtype dtype;
};

struct CatGatherParams {
  const CatGatherInput* inputs;  // [count], on the host
  int64_t count;
  void* out;         // [rows, row_size], of which what is no input's is left as it is
  int64_t rows;      // > 0
  int64_t row_size;  // > 0
  int element_size;  // of the result, in bytes
  Dtype dtype;       // of the result
  bool converts;     // some input is of another
  CatGpu gpu;
};

// An input of a transpose.
struct CatStrided {
  const void* data;
  int64_t out_offset;            // of its first element in the result
  int64_t size_at_dim;           // > 0
  int64_t strides[kCatMaxDims];  // [dims]
  Dtype dtype;
};

struct CatStridedParams {
  const CatStrided* inputs;  // [count], on the host
  int64_t count;
  void* out;
  int dims;                          // from the outermost in the memory of the result to the innermost
  int dim;                           // the one that inputs differ in
  int tile_dim;                      // one with stride 1 in all inputs, not the last
  int64_t sizes[kCatMaxDims];        // [dims]; that of `dim` is the inputs' own
  int64_t out_strides[kCatMaxDims];  // [dims]; the last is 1
  int element_size;                  // of the result, in bytes
  Dtype dtype;                       // of the result
  bool converts;                     // some input is of another
  int64_t column_bytes;              // of panels (panels.h); 0: by tiles
  CatGpu gpu;
};

// Of an input along a dimension.
inline int64_t size_of(const CatStridedParams& p, const CatStrided& input, int d) {
  return d == p.dim ? input.size_at_dim : p.sizes[d];
}

// Words that a thread makes of a list, whose inputs are one row: enough loads under way for long ones.
template <int word>
constexpr int kCatWordsOfList = word <= 4 ? 8 : 4;

// Each queues its launches: as few as the size of kernel arguments allows, no synchronisation, no allocation.
// They return the first error of a launch.

// Inputs of the result's dtype, as bytes.
cudaError_t launch_cat_runs(const CatRunsParams& params, LaunchSequence& sequence);
// The same word by word, where that is faster; otherwise cudaErrorNotSupported, and nothing was launched.
cudaError_t launch_cat_words(const CatRunsParams& params, LaunchSequence& sequence);
// Contiguous inputs, input by input, in words of `word` bytes. A thread makes one, two, four of those of 4
// bytes, or kCatWordsOfList.
cudaError_t launch_cat_by_inputs(const CatRunsParams& params, int word, int words_of_thread,
                                 LaunchSequence& sequence);
// The same where inputs are of unlike lengths: one word, or four of larger ones than bytes. Of more inputs or
// words than a launch takes cudaErrorNotSupported, and nothing was launched.
cudaError_t launch_cat_by_uneven_inputs(const CatRunsParams& params, int word, int words_of_thread,
                                        LaunchSequence& sequence);
// Inputs of the dtypes that Dtype names, converted.
cudaError_t launch_cat_convert(const CatRunsParams& params, LaunchSequence& sequence);
// Inputs that share a dimension `tile_dim`.
cudaError_t launch_cat_transpose(const CatStridedParams& params, LaunchSequence& sequence);
// The same by panels, which hold all dimensions after `tile_dim`, of elements that are not converted.
cudaError_t launch_cat_panels(const CatStridedParams& params, LaunchSequence& sequence);
// Inputs of any strides, runs among them.
cudaError_t launch_cat_gather(const CatGatherParams& params, LaunchSequence& sequence);
// The same of runs.
cudaError_t launch_cat_gather(const CatRunsParams& params, bool converts, LaunchSequence& sequence);

}  // namespace aten_ext::cuda
