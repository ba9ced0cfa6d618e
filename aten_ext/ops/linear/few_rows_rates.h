// Measured times of the kernel for few rows (few_rows.cu), as data for its plans (few_rows_plan.h). Standard
// library only.
//
// What the GPU reads in a us follows from how evenly its multiprocessors have blocks: with more than one for
// each it reads a sixth less than with one. So the rates are data: by columns of a tile, and by blocks in
// eighths of those that are on the GPU at once. Fitted to the times of all plans: of 666 layers of up to 8
// rows on an H200, and of 1,928 of 9 to 64 rows on an H100. How far the chosen plans are from the fastest,
// docs/kernels/linear.md says.
#pragma once

#include <cstdint>

namespace aten_ext::cuda::few_rows {

constexpr int kHeights = 4;  // of tiles: 8, 16, 32 and 64 rows
constexpr int kWidths = 3;   // 16, 32 and 64 columns
constexpr int kEighths = 18;

struct Rates {
  float launch;                    // us, as all times here
  float first_stage;               // of a block alone
  float stage;                     // each of its others
  float arithmetic;                // of a multiprocessor for a block's stage
  float l2;                        // TB/s: both operands, from the L2. 0: no limit
  float mat1;                      // the part of mat1's bytes that counts as the weight's
  float short_rows[kWidths];       // of a tile [K, N]: the part of its bytes that is read besides
  float cluster[3];                // of 2, of up to 4, of up to 8 blocks that share a tile
  float exchange;                  // a sum of theirs
  float crowd;                     // where multiprocessors have two blocks
  int64_t any_splits;              // bytes of a weight; of a larger one K is split by powers of two
  float rates[kWidths][kEighths];  // TB/s
};

constexpr int64_t kAnyWeight = INT64_MAX;

// By bits (16, fp32) and height. fp32 of 8 and of 64 rows has none.
inline constexpr Rates kRates[2][kHeights] = {
    {{1.1f,
      0.334f,
      0.265f,
      0.0f,
      0.0f,
      0.092f,
      {0.75f, 0.18f, 0.0f},
      {0.298f, 0.399f, 0.499f},
      0.367e-3f,
      0.602f,
      0,
      {{1.53f, 2.48f, 3.18f, 3.16f, 3.02f, 3.37f, 3.82f, 4.07f, 2.90f, 2.80f, 2.61f, 3.02f, 3.11f, 3.21f,
        3.48f, 3.11f, 3.29f, 3.25f},
       {1.22f, 2.56f, 3.39f, 3.55f, 3.01f, 3.49f, 3.98f, 4.23f, 3.16f, 3.04f, 3.00f, 3.14f, 3.47f, 3.70f,
        3.69f, 3.43f, 3.53f, 3.27f},
       {0.88f, 3.37f, 3.34f, 3.70f, 3.83f, 4.06f, 2.98f, 3.12f, 3.25f, 3.68f, 3.88f, 4.11f, 3.64f, 3.55f,
        3.38f, 3.55f, 3.42f, 3.72f}}},
     {1.24f,
      0.207f,
      0.176f,
      0.328f,
      6.45f,
      0.0752f,
      {1.13f, 0.235f, 0.0f},
      {0.268f, 0.327f, 0.409f},
      0.27e-3f,
      0.57f,
      2 << 20,
      {{1.35f, 2.34f, 2.94f, 3.03f, 3.32f, 3.79f, 4.93f, 4.53f, 2.64f, 2.44f, 2.95f, 3.00f, 3.21f, 3.49f,
        2.95f, 3.57f, 3.22f, 2.95f},
       {1.27f, 2.38f, 2.78f, 2.78f, 2.84f, 3.24f, 3.55f, 3.48f, 2.52f, 2.48f, 2.70f, 2.75f, 3.02f, 3.25f,
        2.93f, 2.83f, 2.82f, 2.95f},
       {1.45f, 2.45f, 2.75f, 2.83f, 2.82f, 3.05f, 3.14f, 3.20f, 2.67f, 2.32f, 2.70f, 2.59f, 2.96f, 3.01f,
        2.96f, 2.75f, 2.55f, 2.77f}}},
     {1.35f,
      0.211f,
      0.288f,
      0.406f,
      9.22f,
      0.0857f,
      {0.986f, 0.291f, 0.0f},
      {0.262f, 0.337f, 0.43f},
      0.224e-3f,
      0.642f,
      2 << 20,
      {{0.89f, 1.71f, 2.09f, 2.28f, 2.91f, 3.30f, 3.62f, 3.46f, 2.48f, 2.34f, 2.52f, 2.54f, 2.41f, 2.83f,
        2.90f, 2.82f, 2.75f, 2.32f},
       {1.35f, 2.33f, 2.72f, 2.71f, 2.89f, 3.44f, 3.52f, 3.50f, 2.32f, 2.38f, 2.56f, 2.71f, 2.98f, 3.28f,
        2.77f, 2.83f, 2.62f, 2.68f},
       {1.55f, 2.64f, 2.89f, 2.84f, 2.74f, 3.03f, 3.12f, 3.09f, 2.56f, 2.30f, 2.48f, 2.40f, 2.80f, 2.67f,
        2.72f, 2.64f, 2.40f, 2.57f}}},
     {1.42f,
      0.2f,
      0.687f,
      0.347f,
      10.4f,
      0.104f,
      {0.75f, 0.235f, 0.0f},
      {0.23f, 0.32f, 0.503f},
      0.18e-3f,
      1.33f,
      kAnyWeight,
      {{1.22f, 2.56f, 3.39f, 3.55f, 3.01f, 3.49f, 3.98f, 4.23f, 3.16f, 3.04f, 3.00f, 3.14f, 3.47f, 3.70f,
        3.69f, 3.43f, 3.53f, 3.27f},
       {1.05f, 1.85f, 2.07f, 2.09f, 2.55f, 3.17f, 3.37f, 3.42f, 2.16f, 2.17f, 2.41f, 2.22f, 2.62f, 2.82f,
        2.58f, 2.58f, 2.34f, 2.57f},
       {1.31f, 2.42f, 2.73f, 2.43f, 2.56f, 2.95f, 3.11f, 2.82f, 2.24f, 1.92f, 2.28f, 2.19f, 2.40f, 2.38f,
        2.57f, 2.17f, 2.26f, 2.39f}}}},
    {{},
     {1.35f,
      0.185f,
      0.377f,
      0.498f,
      6.17f,
      0.0849f,
      {0.404f, 0.138f, 0.0f},
      {0.284f, 0.392f, 0.51f},
      0.285e-3f,
      0.791f,
      2 << 20,
      {{1.27f, 2.38f, 2.73f, 3.21f, 3.26f, 3.97f, 4.46f, 4.66f, 2.37f, 2.27f, 2.63f, 2.92f, 2.68f, 2.95f,
        2.94f, 3.04f, 3.08f, 2.86f},
       {1.40f, 2.57f, 2.81f, 2.99f, 2.92f, 3.28f, 3.45f, 3.27f, 2.54f, 2.13f, 2.53f, 2.68f, 2.52f, 2.62f,
        2.78f, 2.73f, 2.71f, 2.58f},
       {1.48f, 2.66f, 2.67f, 2.67f, 2.65f, 3.13f, 3.17f, 2.85f, 2.10f, 2.06f, 2.25f, 2.41f, 2.66f, 2.58f,
        2.87f, 2.53f, 2.58f, 2.45f}}},
     {1.31f,
      0.245f,
      0.924f,
      0.749f,
      7.95f,
      0.0814f,
      {0.361f, 0.143f, 0.0f},
      {0.272f, 0.391f, 0.585f},
      0.217e-3f,
      1.64f,
      2 << 20,
      {{1.12f, 2.28f, 2.37f, 2.29f, 2.34f, 2.85f, 3.75f, 4.20f, 2.10f, 2.29f, 2.28f, 2.38f, 2.24f, 2.66f,
        2.73f, 3.14f, 2.75f, 2.40f},
       {1.23f, 2.35f, 2.73f, 2.58f, 2.36f, 2.82f, 3.25f, 3.32f, 2.04f, 2.08f, 2.42f, 2.13f, 2.11f, 2.29f,
        2.62f, 2.18f, 2.28f, 2.20f},
       {1.09f, 2.01f, 2.75f, 2.61f, 2.08f, 2.33f, 2.68f, 2.25f, 1.86f, 1.98f, 2.08f, 1.82f, 1.96f, 2.22f,
        2.43f, 2.09f, 2.19f, 2.07f}}},
     {}}};

}  // namespace aten_ext::cuda::few_rows
