// cat of runs, word by word: the kernels for most calls.
//
//   out[r, begin_i + k] = in_i[r, k]        0 <= r < rows, 0 <= k < run_i, begin_i = run_0 + ... + run_(i-1)
//
// Shapes, in words: in_i is [rows, run_i], rows `row_stride_i` apart; the result is [rows, words]. A word is
// the largest power of two, from 1 to 16 bytes, that all addresses, runs and strides are multiples of. So no
// word is in two runs, and every word is aligned. What is left to runs.cu: positions beyond 32 bits, many
// inputs with rows apart, results that other kernels fill too, and long runs of single bytes, or pairs, out
// of step. Many tiny inputs go on to tiny.cu.
//
// Bytes: 2 * rows * words * word; memory is the limit, 4.24 TB/s on an H200. Small calls are limited by
// latency: with one row of 16-byte words a thread executes 20 instructions and the arguments of two inputs
// take 72 bytes; up to about as many words as the GPU holds threads, each makes one. Beyond that a thread
// makes a pack, or a column: the same place of 2 to 8 rows, whose run it finds once.
// Alternatives and timings: docs/kernels/cat.md.
#include <algorithm>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "ops/cat/kernels.h"
#include "ops/cat/words_launch.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Up to so many words for each multiprocessor, as many as it holds threads, a thread makes one: latency
// decides, and no way is shorter. Half as many where what follows is short too: small words, and words of 4
// bytes in several rows of many inputs.
constexpr int64_t kWordsPerSM = 2048;
// Of more than eight inputs, up to so many words for each multiprocessor are left to tiny.cu, if all were as
// long as the longest: there each input has blocks of its own, here each warp looks up whose its words are.
// It does so once for most of its words where runs are long, and 16 inputs at most are looked up at once.
constexpr int64_t kTinyWords = 2048;               // of 16 bytes in short runs, or of 8,
constexpr int64_t kTinyWordsInLongRuns = 1152;     // of 16 bytes in longer ones,
constexpr int64_t kTinySmallWords = 1024;          // of up to 4 bytes,
constexpr int64_t kTinySmallWordsElsewhere = 512;  // of up to 8 in short runs of few inputs, or in long runs
constexpr int64_t kShortRunOfTiny = 32;            // bytes on average
constexpr int64_t kShortRunOfFew = 16;
constexpr int64_t kLongRunOfTiny = 256;
// Of runs of unlike lengths most of these threads have no word. If they are more than half, of runs of so
// many words on average, and more than so many for each multiprocessor, to look inputs up is faster.
constexpr int64_t kIdleRun = 8;
constexpr int64_t kIdleTinyWords = 800;
// Of more words of 16 bytes than this for each multiprocessor a thread makes one, as of few: of up to 16
// inputs, or of more.
constexpr int64_t kWordsInColumnsPerSM = 3200;
constexpr int64_t kWordsOfManyInColumnsPerSM = 4500;
// Of fewer rows than this, if they are an odd number, pairs would make too much of one twice; and of fewer
// than that, if they are no multiple of four, fours.
constexpr int64_t kRowsInPairs = 16;
constexpr int64_t kRowsInFours = 24;
// Rows of up to so many words, or bytes, are narrow: packs of a row are faster than columns of eight rows,
// and of 2 bytes so are packs of several rows. Of 4 bytes they are where inputs are few.
constexpr int64_t kNarrowRow = 10;
constexpr int64_t kNarrowRowOfBytes = 16;
constexpr int64_t kFewInNarrowRows = 3;
// From so many rows on, columns of eight of them are not mostly empty.
constexpr int64_t kRowsInEights = 4;
// Results of so many times the words that the GPU has threads for: up to here a thread makes a column of
// words rather than a pack of a row, and from here on its pack is a window of 16 bytes rather than four
// words.
constexpr int64_t kWavesOfColumns = 3;
constexpr int64_t kWavesOfFours = 12;
// Inputs whose rows lie apart, in narrow rows of the result: a thread makes a word, as of few, because the
// rows of a column lie in as many sectors. Words of 1 byte are too many for that, and so are more words of 2
// than so many for each multiprocessor.
constexpr int64_t kPairsApartPerSM = 8192;
// And inputs that are parts of matrices of their own, up to so many bytes of a row of each, by the word,
// where rows are so many bytes apart, of up to 8 inputs or more. Neighbours of a column are in other
// matrices, and a warp that makes several rows of it waits for more pages of memory at a time.
constexpr int64_t kShortRunApart[4] = {4, 8, 16, 32};  // of words of 1, 2, 4 bytes, or more
constexpr int64_t kFarRows = 24;
constexpr int64_t kFarRowsOfMany = 64;
// Average runs, in bytes. A pack across two of them holds up its warp.
constexpr int64_t kShortRun = 64;           // up to here more rows a thread, where rows are at least
constexpr int64_t kLongRow = 2048;          // this long: or each line of an input is read in pieces
constexpr int64_t kShortRunInEights = 256;  // up to here columns of single small words, however many
constexpr int64_t kLongWords = 640;         // from here runs of 4-byte words are made in a line,
constexpr int64_t kLongWordsOfMany = 2560;  // or from here, where each look-up is of more than 8 inputs
constexpr int64_t kLongRun = 2048;          // from here those of small words are, if they are many
// And from here runs.cu makes those of small words that no pack fits.
template <int word>
constexpr int64_t kLongRunOf = word == 2 ? 8192 : 2048;

// ---- which way ---------------------------------------------------------------------------------------

// Whether every launch, and every row of it, begins and ends with a pack.
bool in_packs(const CatRunsParams& p, int bytes) {
  uint64_t all = reinterpret_cast<uintptr_t>(p.out) | (p.rows > 1 ? p.row_size * p.element_size : 0);
  for (int64_t i = capacity(p); i < p.count; i += capacity(p)) {
    all |= static_cast<uint64_t>(p.runs[i].begin * p.element_size);
  }
  return all % bytes == 0;
}

// Whether the result can be made as one line.
bool in_line(const CatRunsParams& p, int pack) {
  if (reinterpret_cast<uintptr_t>(p.out) % pack != 0) {
    return false;
  }
  return p.count <= capacity(p) || (p.rows == 1 && in_packs(p, pack));
}

// The bytes, 1 to 16, that all addresses, sizes and strides are multiples of; 0 if some are too large for
// positions of 32 bits, or not for these kernels.
int common_word(const CatRunsParams& p) {
  uint64_t all = 16 | reinterpret_cast<uintptr_t>(p.out);
  int64_t most = p.rows * p.row_size;
  for (int64_t i = 0; i < p.count; ++i) {
    const CatRun& run = p.runs[i];
    if (run.data == nullptr || (!are_few(p) && p.rows > 1 && run.row_stride != run.size)) {
      return 0;
    }
    const int64_t stride = p.rows > 1 ? run.row_stride : 0;
    all |= reinterpret_cast<uintptr_t>(run.data) |
           static_cast<uint64_t>((run.begin | run.size | stride) * p.element_size);
    most = std::max(most, p.rows * stride);
  }
  const int word = static_cast<int>(all & -all);
  // The last block's threads go beyond the end.
  constexpr int64_t kBeyond = kCatWordsThreads * 16;
  return most * p.element_size / word <= kCatIndexLimit - kBeyond ? word : 0;
}

// Threads that the GPU holds at once.
int64_t held_threads(const CatRunsParams& p) {
  return kWordsPerSM * p.gpu.multiprocessors;
}

// Whether threads that make a pack in each of two rows are more than that, and those of four rows are not.
bool are_one_wave_of_fours(const CatRunsParams& p) {
  const int64_t packs = p.row_size * p.element_size / 16;
  return (p.rows % 4 == 0 || p.rows >= kRowsInFours) &&
         ceil_div(p.rows, int64_t{2}) * packs > held_threads(p) &&
         ceil_div(p.rows, int64_t{4}) * packs <= held_threads(p);
}

// Whether pairs of rows would make too much of one twice.
bool are_odd_rows(const CatRunsParams& p) {
  return p.rows % 2 != 0 && p.rows < kRowsInPairs;
}

// Whether words of 16 bytes are so many that memory decides.
bool are_many_vectors(const CatRunsParams& p) {
  const int64_t in_columns = are_few(p) ? kWordsInColumnsPerSM : kWordsOfManyInColumnsPerSM;
  return average_run(p) > kShortRun && bytes_of(p) / 16 > in_columns * p.gpu.multiprocessors;
}

// Whether a warp that makes eight rows of a column reads a sector for each few words.
bool are_rows_narrow(const CatRunsParams& p, int word) {
  return p.row_size * p.element_size <= (word == 1 ? kNarrowRowOfBytes : kNarrowRow) * word;
}

int64_t most_tiny_words(const CatRunsParams& p, int word) {
  const int64_t run = average_run(p);
  if (word == 16) {
    return run <= kShortRunOfTiny ? kTinyWords : kTinyWordsInLongRuns;
  }
  if ((are_few(p) && run <= kShortRunOfFew) || run > kLongRunOfTiny) {
    return kTinySmallWordsElsewhere;
  }
  return word == 8 ? kTinyWords : kTinySmallWords;
}

// Inputs that are so many and so small that a thread, or a warp, would look up many of them.
bool are_tiny(const CatRunsParams& p, int word) {
  const int64_t words = p.count * p.rows * longest_run(p) * p.element_size / word;
  const bool idle = average_run(p) > kIdleRun * word && words > kIdleTinyWords * p.gpu.multiprocessors &&
                    p.count * longest_run(p) > 2 * p.row_size;
  return p.count > EightRuns::kCapacity && words <= most_tiny_words(p, word) * p.gpu.multiprocessors &&
         !idle && !has_rows_apart(p);
}

// Whether rows of the result are narrow, and inputs have something between theirs.
bool are_narrow_and_apart(const CatRunsParams& p, int word) {
  return word > 1 && has_rows_apart(p) && are_rows_narrow(p, word) &&
         (word > 2 || bytes_of(p) / word <= kPairsApartPerSM * p.gpu.multiprocessors);
}

// Whether inputs are short parts of the rows of matrices of their own.
bool are_short_and_far_apart(const CatRunsParams& p, int word) {
  if (p.count < 2 || !are_few(p) || average_run(p) > kShortRunApart[word <= 4 ? word / 2 : 3]) {
    return false;
  }
  const int64_t far = p.count <= EightRuns::kCapacity ? kFarRows : kFarRowsOfMany;
  uintptr_t first = std::numeric_limits<uintptr_t>::max();
  uintptr_t last = 0;
  int64_t apart = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t bytes = p.runs[i].row_stride * p.element_size;
    if (bytes < far) {
      return false;
    }
    first = std::min(first, reinterpret_cast<uintptr_t>(p.runs[i].data));
    last = std::max(last, reinterpret_cast<uintptr_t>(p.runs[i].data));
    apart = std::max(apart, bytes);
  }
  return p.rows > 1 && last - first >= static_cast<uintptr_t>(apart);
}

// Whether a thread makes a single word.
bool are_single(const CatRunsParams& p, int word) {
  const bool columns = word == 4 && p.rows > 1 && p.count > EightRuns::kCapacity;
  const bool few = bytes_of(p) / word <= (word <= 2 || columns ? held_threads(p) / 2 : held_threads(p));
  return (few || are_narrow_and_apart(p, word) || are_short_and_far_apart(p, word)) && in_line(p, word);
}

template <int word>
cudaError_t launch_single(const CatRunsParams& p, LaunchSequence& sequence) {
  return p.rows == 1 ? launch<Line<word, 1>>(p, sequence) : launch<Line<word, 1, false>>(p, sequence);
}

cudaError_t launch_single(const CatRunsParams& p, int word, LaunchSequence& sequence) {
  return with_word(word, [&](auto bytes) { return launch_single<bytes>(p, sequence); });
}

cudaError_t launch_words_of_four(const CatRunsParams& p, LaunchSequence& sequence) {
  if (p.rows == 1) {
    return in_line(p, 16) ? launch<Line<4, 4>>(p, sequence) : cudaErrorNotSupported;
  }
  const bool few = p.count <= EightRuns::kCapacity;
  const bool narrow = p.count <= kFewInNarrowRows && are_rows_narrow(p, 4);
  const bool line =
      few ? average_run(p) >= kLongWords
          : average_run(p) >= kLongWordsOfMany && bytes_of(p) / 4 > kWavesOfColumns * held_threads(p);
  return (narrow || line) && in_line(p, 16) ? launch<Line<4, 4, false>>(p, sequence)
                                            : launch<Columns<4, 1, 4>>(p, sequence);
}

// Fours of words of 1 or 2 bytes.
template <int word>
cudaError_t launch_line_of_fours(const CatRunsParams& p, LaunchSequence& sequence) {
  return p.rows == 1 ? launch<Line<word, 4>>(p, sequence) : launch<Line<word, 4, false>>(p, sequence);
}

// Words of 1 or 2 bytes whose runs are long or whose rows are few.
template <int word>
cudaError_t launch_long_runs(const CatRunsParams& p, LaunchSequence& sequence) {
  const int64_t words = bytes_of(p) / word;
  if (words > kWavesOfFours * held_threads(p) && in_line(p, 16)) {
    return p.rows == 1 ? launch<Line<word, 16 / word, true, true>>(p, sequence)
                       : launch<Line<word, 16 / word, false, true>>(p, sequence);
  }
  if constexpr (word == 2) {
    if (p.rows == 1 && words <= 2 * held_threads(p)) {
      return launch<Line<2, 2>>(p, sequence);
    }
    if (p.rows > 1 && p.rows < kRowsInEights && words <= kWavesOfColumns * held_threads(p)) {
      return p.rows == 2 ? launch<Columns<2, 1, 2>>(p, sequence) : launch<Columns<2, 1, 4>>(p, sequence);
    }
  }
  return launch_line_of_fours<word>(p, sequence);
}

template <int word>
cudaError_t launch_small_words(const CatRunsParams& p, LaunchSequence& sequence) {
  const int64_t run = average_run(p);
  const int64_t words = bytes_of(p) / word;
  const bool few_rows = p.rows < kRowsInEights;
  const bool narrow = p.rows > 1 && are_rows_narrow(p, word);
  if (word == 2 && narrow && !in_packs(p, 4) && in_line(p, 16)) {
    return launch<Line<2, 8, false>>(p, sequence);
  }
  // Enough for fours, or for windows, to be faster than columns of eight rows.
  const bool many =
      words > (word == 2 && p.count <= EightRuns::kCapacity ? 2 : kWavesOfFours) * held_threads(p);
  if ((few_rows || (many && run >= kLongRun)) && in_line(p, 4 * word)) {
    return launch_long_runs<word>(p, sequence);
  }
  if (p.rows == 1) {
    return cudaErrorNotSupported;
  }
  const bool packs = in_packs(p, 4);
  const bool eights = words <= 8 * held_threads(p) ? !few_rows : run <= kShortRunInEights;
  if (packs ? eights && !narrow : eights || run < kLongRunOf<word>) {
    return launch<Columns<word, 1, 8>>(p, sequence);
  }
  return packs ? launch<Columns<word, 4 / word, 4, true>>(p, sequence) : cudaErrorNotSupported;
}

}  // namespace

cudaError_t launch_cat_words(const CatRunsParams& p, LaunchSequence& sequence) {
  const int word = common_word(p);
  if (word != 0 && are_tiny(p, word)) {
    return launch_cat_tiny(p, word, sequence);
  }
  if (word != 0 && are_single(p, word)) {
    return launch_single(p, word, sequence);
  }
  const bool one_row = p.rows == 1;
  switch (word) {
    case 16:
      if (one_row || (in_line(p, 16) && (are_odd_rows(p) || are_many_vectors(p)))) {
        return launch_single<16>(p, sequence);
      }
      return (average_run(p) <= kShortRun && p.row_size * p.element_size >= kLongRow) ||
                     are_one_wave_of_fours(p)
                 ? launch<Columns<16, 1, 4>>(p, sequence)
                 : launch<Columns<16, 1, 2>>(p, sequence);
    case 8:
      if (!one_row) {
        return launch<Columns<8, 1, 2>>(p, sequence);
      }
      [[fallthrough]];
    case 4:
      return launch_words_of_four(p, sequence);
    case 2:
      return launch_small_words<2>(p, sequence);
    case 1:
      return launch_small_words<1>(p, sequence);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace aten_ext::cuda
