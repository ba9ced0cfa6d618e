// The geometry of cat where some input is not contiguous: dimensions in the order of the result's memory,
// what of an input is a run, and what else merges.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>

namespace aten_ext {

// The dimensions of a dense result from the outermost in its memory to the innermost; those of size 1 are
// left out, unless it is the one that inputs are joined in.
struct CatGeometry {
  c10::SmallVector<int, 8> from;  // which dimension of the tensors each is
  c10::SmallVector<int64_t, 8> sizes;
  c10::SmallVector<int64_t, 8> out_strides;
  size_t dim = 0;    // the one that inputs are joined in; its size is the result's
  int64_t rows = 1;  // product of the sizes before it
  int64_t step = 1;  // product of the sizes after it

  CatGeometry(c10::IntArrayRef result_sizes, c10::IntArrayRef result_strides, int64_t cat_dim) {
    for (size_t d = 0; d < result_sizes.size(); ++d) {
      if (result_sizes[d] != 1 || static_cast<int64_t>(d) == cat_dim) {
        from.push_back(static_cast<int>(d));
      }
    }
    std::stable_sort(from.begin(), from.end(),
                     [&](int a, int b) { return result_strides[a] > result_strides[b]; });
    for (size_t d = 0; d < from.size(); ++d) {
      sizes.push_back(result_sizes[from[d]]);
      out_strides.push_back(result_strides[from[d]]);
      dim = from[d] == cat_dim ? d : dim;
    }
    for (size_t d = 0; d < from.size(); ++d) {
      (d < dim ? rows : step) *= d == dim ? 1 : sizes[d];
    }
    // A dimension of size 1 has any stride; in the result it is where it was put.
    out_strides[dim] = step;
  }

  // Strides of an input, which come in the order of its tensor, in this order.
  c10::SmallVector<int64_t, 8> strides_of(c10::IntArrayRef strides) const {
    c10::SmallVector<int64_t, 8> result;
    for (const int d : from) {
      result.push_back(strides[d]);
    }
    return result;
  }

  // Whether each row of the result takes one contiguous run of an input with these strides, in the order of
  // its tensor, and `size_at_dim`; then how far apart they are in the input.
  bool is_run(c10::IntArrayRef strides, int64_t size_at_dim, int64_t& row_stride) const {
    int64_t expected = 1;
    for (size_t d = from.size(); d-- > dim;) {
      const int64_t size = d == dim ? size_at_dim : sizes[d];
      if (size != 1 && strides[from[d]] != expected) {
        return false;
      }
      expected *= size;
    }
    row_stride = expected;
    bool first = true;
    for (size_t d = dim; d-- > 0;) {
      const int64_t stride = strides[from[d]];
      if (!first && stride != expected) {
        return false;
      }
      if (first) {
        row_stride = stride;
        first = false;
      }
      expected = stride * sizes[d];
    }
    return true;
  }
};

// An input of which the strides matter.
struct CatStridedInput {
  c10::SmallVector<int64_t, 8> strides;  // in the order of the geometry; after merging, of what is left
  int64_t size_at_dim;
  size_t position;  // in the caller's list
  int tile_dim = -1;
};

// Of an input along a dimension of the geometry.
inline int64_t size_of(const CatGeometry& geometry, const CatStridedInput& input, size_t d) {
  return d == geometry.dim ? input.size_at_dim : geometry.sizes[d];
}

// Joins neighbouring dimensions that are one in the result and in every input. The dimension of cat joins
// with those after it alone: before it, the other inputs lie between. Sizes of the inputs in it grow with it.
inline void merge_dimensions(CatGeometry& geometry, c10::ArrayRef<CatStridedInput*> inputs) {
  // From the innermost outwards; `inner` is the last that was kept.
  size_t kept = geometry.from.size() - 1;
  size_t inner = kept;
  for (size_t d = kept; d-- > 0;) {
    const int64_t size = geometry.sizes[inner];
    bool joins = inner != geometry.dim && geometry.out_strides[d] == geometry.out_strides[inner] * size;
    for (size_t i = 0; joins && i < inputs.size(); ++i) {
      const bool any_stride = d == geometry.dim && inputs[i]->size_at_dim == 1;
      joins = any_stride || inputs[i]->strides[d] == inputs[i]->strides[inner] * size;
    }
    if (!joins) {
      --inner;
      geometry.sizes[inner] = geometry.sizes[d];
      geometry.out_strides[inner] = geometry.out_strides[d];
      for (CatStridedInput* input : inputs) {
        input->strides[inner] = input->strides[d];
      }
      geometry.dim = d == geometry.dim ? inner : geometry.dim;
      continue;
    }
    geometry.sizes[inner] = size * geometry.sizes[d];
    if (d == geometry.dim) {
      geometry.dim = inner;
      for (CatStridedInput* input : inputs) {
        input->size_at_dim *= size;
      }
    }
  }
  // What is left stands at the end.
  geometry.from.erase(geometry.from.begin(), geometry.from.begin() + inner);
  geometry.sizes.erase(geometry.sizes.begin(), geometry.sizes.begin() + inner);
  geometry.out_strides.erase(geometry.out_strides.begin(), geometry.out_strides.begin() + inner);
  geometry.dim -= inner;
  for (CatStridedInput* input : inputs) {
    input->strides.erase(input->strides.begin(), input->strides.begin() + inner);
  }
}

// A tile of a transpose is 64 or 32 elements long and wide, and its block takes as long for a part of one.
// From this many elements on it is faster than elements one by one, which find what their neighbours in the
// result have read in the L1.
constexpr int64_t kTileEdge = 64;
constexpr int64_t kMinTile = 8;
constexpr int64_t kMinTileRun = 32;  // of the result
constexpr int64_t kMinTileElements = 1024;
// Fewer elements than this, in both dimensions together, stay in the L1 until all of them are read.
constexpr int64_t kMinTransposed = 2048;
// An element that is moved by itself takes longer the further it is, in memory, from its neighbour in the
// result: as long as so many bytes and that distance. A tile, filled or not, takes as long as so many of
// these.
constexpr int64_t kElementBytes = 18;
constexpr int64_t kTileBytes = 88000;

// A dimension, in a merged geometry, along which the memory of an input runs and which is long enough for
// tiles; -1: none.
inline int tile_dim_of(const CatGeometry& geometry, const CatStridedInput& input, int64_t element_size) {
  const int last = static_cast<int>(geometry.sizes.size()) - 1;
  const auto size = [&](int d) { return size_of(geometry, input, static_cast<size_t>(d)); };
  const auto of_tile = [&](int d) { return std::min(size(d), kTileEdge); };
  // Neighbours in the result are neighbours in memory, or one element.
  if (input.strides[last] <= 1) {
    return -1;
  }
  const int64_t apart = kElementBytes + input.strides[last] * element_size;
  for (int d = 0; d < last; ++d) {
    const int64_t elements = of_tile(d) * of_tile(last);
    if (input.strides[d] == 1 && of_tile(d) >= kMinTile && of_tile(last) >= kMinTileRun &&
        elements >= kMinTileElements && size(d) * size(last) >= kMinTransposed &&
        elements * apart >= kTileBytes) {
      return d;
    }
  }
  return -1;
}

// Elements that the tiles of an input have room for.
inline int64_t elements_of_tiles(const CatGeometry& geometry, const CatStridedInput& input,
                                 int64_t element_size) {
  const int64_t edge = element_size <= 4 ? kTileEdge : kTileEdge / 2;
  int64_t elements = 1;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    const int64_t size = size_of(geometry, input, d);
    const bool tiled = d + 1 == geometry.sizes.size() || static_cast<int>(d) == input.tile_dim;
    elements *= tiled ? (size + edge - 1) / edge * edge : size;
  }
  return elements;
}

// An input, whose strides come in the order of its tensor, as a row-major array of dimensions of its own, as
// few as its memory allows, in the geometry's order. `sizes` and `strides` have room for all of them; returns
// how many are left.
inline int merge_input(const CatGeometry& geometry, c10::IntArrayRef strides, int64_t size_at_dim,
                       int64_t* merged_sizes, int64_t* merged_strides) {
  int count = 0;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    const int64_t size = d == geometry.dim ? size_at_dim : geometry.sizes[d];
    if (size == 1) {
      continue;
    }
    const int64_t stride = strides[geometry.from[d]];
    if (count > 0 && merged_strides[count - 1] == stride * size) {
      merged_sizes[count - 1] *= size;
    } else {
      merged_sizes[count++] = size;
    }
    merged_strides[count - 1] = stride;
  }
  if (count == 0) {  // one element
    merged_sizes[count++] = 1;
    merged_strides[0] = 1;
  }
  return count;
}

}  // namespace aten_ext
