// cat of runs, word by word: the kernels for most calls.
//
//   out[r, begin_i + k] = in_i[r, k]        0 <= r < rows, 0 <= k < run_i, begin_i = run_0 + ... + run_(i-1)
//
// Shapes, in words: in_i is [rows, run_i], rows `row_stride_i` apart; the result is [rows, words]. A word is
// the largest power of two, from 1 to 16 bytes, that all addresses, runs and strides are multiples of. So no
// word is in two runs, and every word is aligned. What is left to runs.cu: positions beyond 32 bits, many
// inputs with rows apart, results that other kernels fill too, and long runs of single bytes, or pairs, out
// of step. Calls that are faster input by input go on to by_inputs.cu.
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
// Contiguous inputs input by input (by_inputs.cu): words for each multiprocessor, if all inputs were as long
// as the longest. Of more than eight inputs, up to so many of which a thread makes one, or two: to look up
// whose a word is takes longer than threads that are idle. By the logarithm of a word's bytes.
struct ByInputs {
  int64_t one, two;
};
constexpr ByInputs kFewByInputs{512, 0};  // up to 16 inputs, of any word
constexpr ByInputs kManyByInputs[] = {{800, 1536}, {800, 1536}, {800, 1536}, {800, 2048}, {1024, 3000}};
// And lists, whose inputs are one row: of results of so many words for each multiprocessor, or of more than
// eight inputs, if they would be at most kIdleList times as many. Of fewer words latency decides, and of more
// memory does.
struct ListByInputs {
  int64_t least, most, most_of_many;
};
constexpr ListByInputs kListByInputs[] = {
    {768, 4096, 4096}, {768, 8192, 8192}, {1536, 8192, 8192}, {1024, 4096, 4096}, {512, 4096, 1536}};
constexpr int64_t kIdleList = 2;
// Of more than eight inputs, results of so many words for each multiprocessor where the inputs are of unlike
// lengths, a word a thread or four: most threads would be idle, or each would look up whose its word is.
struct UnevenInputs {
  int64_t one, four;
};
constexpr UnevenInputs kUnevenInputs[] = {{256, 0}, {512, 4096}, {512, 4096}, {512, 2048}, {512, 4096}};
// Of four to eight inputs a thread makes a word in one of these ways up to so many words, and always by the
// table of blocks up to so few.
constexpr int64_t kFewestByInputs = 4;
constexpr int64_t kWordsOfFewInputsPerSM = 256;
constexpr int64_t kTinyPerSM = 4;
// And up to eight inputs of any number of rows: words of so many bytes, for each multiprocessor, and how many
// of them a thread makes.
struct RowsByInputs {
  int word;
  int64_t least, most;
  int words;
};
constexpr RowsByInputs kRowsByInputs[] = {{2, 2048, 8192, kCatWordsOfList<2>},
                                          {4, 1024, 2048, 4},
                                          {4, 2048, 6144, kCatWordsOfList<4>},
                                          {8, 768, 4608, kCatWordsOfList<8>},
                                          {16, 512, 3584, kCatWordsOfList<16>}};
// From so many rows on, and words for each multiprocessor, calls of more than eight inputs that are made by
// words are made in columns: a thread looks its input up once for all of them.
constexpr int64_t kRowsOfColumns = 8;
constexpr int64_t kWordsOfColumnsPerSM = 128;
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
// Of so many such results of words of 2 bytes, of up to eight inputs in long runs, columns are no longer
// faster.
constexpr int64_t kWavesOfPairs = 4;
// Inputs whose rows lie apart, in narrow rows of the result: a thread makes a word, as of few, because the
// rows of a column lie in as many sectors; of words of 2 and 4 bytes a pair of rows. Words of 1 byte are too
// many for that.
// And inputs that are parts of matrices of their own, up to so many bytes of a row of each, by the word or by
// pairs: from rows so many bytes apart on pairs, and from more on words, of up to 8 inputs or more. Of single
// bytes sooner, as else a thread makes eight rows of them.
// Neighbours of a column are in other matrices, and a warp that makes several rows of it waits for more pages
// of memory at a time.
constexpr int64_t kShortRunApart[4] = {4, 8, 16, 32};  // of words of 1, 2, 4 bytes, or more
struct FarRows {
  int64_t pairs, words;
};
constexpr FarRows kFarRows{24, 64};
constexpr FarRows kFarRowsOfMany{64, 128};
constexpr int64_t kPairsOfBytes[2] = {8, 16};  // of runs of one, or longer ones
// More inputs whose rows lie apart, up to so many, are made 16 a launch, if the result has so many bytes for
// each launch, in runs of up to so many bytes on average or in longer ones; else gather.cu takes them all. Of
// shorter runs, rows so many bytes apart, a thread makes a pair of rows, of others four.
constexpr int64_t kMostInLaunches = 64;
constexpr int64_t kShortRunInLaunches = 16;
constexpr int64_t kBytesOfLaunch[2] = {int64_t{256} << 10, int64_t{704} << 10};
constexpr int64_t kRunInPairs = 8;
constexpr int64_t kRowsApartInPairs = 64;
// Average runs, in bytes. A pack across two of them holds up its warp.
constexpr int64_t kShortRun = 64;           // up to here more rows a thread, where rows are at least
constexpr int64_t kLongRow = 2048;          // this long: or each line of an input is read in pieces
constexpr int64_t kShortRunInEights = 256;  // up to here columns of single small words, however many
constexpr int64_t kLongWords = 640;         // from here runs of 4-byte words are made in a line,
constexpr int64_t kLongWordsOfMany = 2560;  // or from here, where each look-up is of more than 8 inputs
constexpr int64_t kLongRun = 2048;          // from here those of small words are, if they are many
// From here those of 8 bytes are made in a line, or from here of more than eight inputs, if the result has so
// many times the words that the GPU has threads for.
constexpr int64_t kLongLargeWords = 2048;
constexpr int64_t kLongLargeWordsOfMany = 4096;
constexpr int64_t kWavesOfLargeWords = 4;
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
// positions of 32 bits, or bytes of the result are another launch's.
int common_word(const CatRunsParams& p) {
  uint64_t all = 16 | reinterpret_cast<uintptr_t>(p.out);
  int64_t most = p.rows * p.row_size;
  for (int64_t i = 0; i < p.count; ++i) {
    const CatRun& run = p.runs[i];
    if (run.data == nullptr) {
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

// Rows that a thread makes of inputs that have something between theirs, in short parts: one, a pair, or as
// of other inputs.
enum class RowsApart : uint8_t { One, Pair, AsOthers };

// Of inputs that are short parts of the rows of matrices of their own.
RowsApart rows_of_parts(const CatRunsParams& p, int word) {
  if (p.count < 2 || !are_few(p) || average_run(p) > kShortRunApart[word <= 4 ? word / 2 : 3]) {
    return RowsApart::AsOthers;
  }
  const FarRows& far = p.count <= EightRuns::kCapacity ? kFarRows : kFarRowsOfMany;
  uintptr_t first = std::numeric_limits<uintptr_t>::max();
  uintptr_t last = 0;
  int64_t nearest = std::numeric_limits<int64_t>::max();
  int64_t apart = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t bytes = p.runs[i].row_stride * p.element_size;
    first = std::min(first, reinterpret_cast<uintptr_t>(p.runs[i].data));
    last = std::max(last, reinterpret_cast<uintptr_t>(p.runs[i].data));
    nearest = std::min(nearest, bytes);
    apart = std::max(apart, bytes);
  }
  const int64_t pairs = word == 1 ? kPairsOfBytes[average_run(p) > 1] : far.pairs;
  if (p.rows == 1 || nearest < pairs || last - first < static_cast<uintptr_t>(apart)) {
    return RowsApart::AsOthers;
  }
  return nearest < far.words ? RowsApart::Pair : RowsApart::One;
}

RowsApart rows_apart(const CatRunsParams& p, int word) {
  const RowsApart of_parts = rows_of_parts(p, word);
  if (of_parts == RowsApart::AsOthers && word > 1 && has_rows_apart(p) && are_rows_narrow(p, word)) {
    return word <= 4 ? RowsApart::Pair : RowsApart::One;
  }
  return of_parts;
}

// Whether the result has so few words that latency decides: as many as a GPU holds threads, of 1 or 2 bytes
// half as many. Narrow rows of an odd number of 2-byte words are no packs, and stay single words up to the
// former: 145,743 of them in three columns at odd addresses took 2.57 us otherwise, and take 1.65.
bool are_few_words(const CatRunsParams& p, int word) {
  const bool columns = word == 4 && p.rows > 1 && p.count > EightRuns::kCapacity;
  const bool odd_rows = word == 2 && are_rows_narrow(p, word) && !in_packs(p, 4);
  const bool half = (word <= 2 && !odd_rows) || columns;
  return bytes_of(p) / word <= (half ? held_threads(p) / 2 : held_threads(p));
}

// Whether a thread makes a single word.
bool are_single(const CatRunsParams& p, int word, RowsApart apart) {
  return (are_few_words(p, word) || apart == RowsApart::One) && in_line(p, word);
}

const ByInputs& by_inputs_of(const CatRunsParams& p, int word) {
  return are_few(p) ? kFewByInputs : kManyByInputs[index_of_size(word)];
}

// The words of all inputs, if they were as long as the longest.
int64_t words_of_longest(const CatRunsParams& p, int word) {
  return p.count * p.rows * longest_run(p) * p.element_size / word;
}

// How many words a thread makes of inputs of unlike lengths, each of which has as many blocks as it needs; 0:
// not in this way.
int words_of_uneven_inputs(const CatRunsParams& p, int word) {
  if (p.count < kFewestByInputs || has_rows_apart(p)) {
    return 0;
  }
  const auto up_to = [&p](int64_t count, int64_t most) { return count <= most * p.gpu.multiprocessors; };
  const int64_t words = bytes_of(p) / word;
  const int64_t all_longest = words_of_longest(p, word);
  const bool alike = all_longest <= kIdleList * words;
  if (p.count <= EightRuns::kCapacity) {
    return up_to(words, alike ? kTinyPerSM : kWordsOfFewInputsPerSM) ? 1 : 0;
  }
  const UnevenInputs& most = kUnevenInputs[index_of_size(word)];
  if (up_to(words, most.one)) {
    return alike && up_to(all_longest, by_inputs_of(p, word).one) ? 0 : 1;
  }
  return !alike && up_to(words, most.four) ? 4 : 0;
}

// Each input has blocks of its own there, which do little: 10,000 of [37] in fp32 took 15.7 us so, in five
// launches, and 5.1 by runs. Up to so many are one launch, where arguments may be large.
constexpr int kMostByInputs = 2000;

// How many words a thread makes input by input; 0: not in this way.
int words_by_inputs(const CatRunsParams& p, int word) {
  if (p.count < 2 || p.count > kMostByInputs || has_rows_apart(p)) {
    return 0;
  }
  const int64_t words = bytes_of(p) / word;
  const int64_t all_longest = words_of_longest(p, word);
  const auto up_to = [&p](int64_t count, int64_t most) { return count <= most * p.gpu.multiprocessors; };
  const ByInputs& most = by_inputs_of(p, word);
  const bool many = p.count > EightRuns::kCapacity;
  if (many ? up_to(all_longest, most.one)
           : p.count >= kFewestByInputs && up_to(words, kWordsOfFewInputsPerSM)) {
    return 1;
  }
  const ListByInputs& list = kListByInputs[index_of_size(word)];
  const int64_t most_of_list = many ? list.most_of_many : list.most;
  if (p.rows == 1 && !up_to(words, list.least) && up_to(words, most_of_list) &&
      all_longest <= kIdleList * words) {
    return with_word(word, [](auto bytes) { return kCatWordsOfList<bytes>; });
  }
  if (p.rows > 1 && !many && all_longest <= kIdleList * words) {
    for (const RowsByInputs& by : kRowsByInputs) {
      if (word == by.word && !up_to(words, by.least) && up_to(words, by.most)) {
        return by.words;
      }
    }
  }
  return many && up_to(all_longest, most.two) && are_few_words(p, word) ? 2 : 0;
}

// Whether calls of many inputs have rows enough for columns.
bool are_columns_of_many(const CatRunsParams& p, int word) {
  return p.count > EightRuns::kCapacity && p.rows >= kRowsOfColumns && !has_rows_apart(p) &&
         are_few_words(p, word) && bytes_of(p) / word > kWordsOfColumnsPerSM * p.gpu.multiprocessors;
}

// Few words of many inputs.
cudaError_t launch_columns_of_many(const CatRunsParams& p, int word, LaunchSequence& sequence) {
  switch (word) {
    case 16:
      return launch<Columns<16, 1, 2>>(p, sequence);
    case 8:
      return launch<Columns<8, 1, 2>>(p, sequence);
    case 4:
      return launch<Columns<4, 1, 4>>(p, sequence);
    case 2:
      return launch<Columns<2, 1, 8>>(p, sequence);
    default:
      return launch<Columns<1, 1, 8>>(p, sequence);
  }
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

// Whether rows of words of 8 bytes are made in a line, sixteen bytes a thread.
bool are_long_large_words(const CatRunsParams& p) {
  const int64_t least = p.count <= EightRuns::kCapacity ? kLongLargeWords : kLongLargeWordsOfMany;
  return average_run(p) >= least && bytes_of(p) / 8 > kWavesOfLargeWords * held_threads(p) && in_line(p, 16);
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
  const bool many = words > (word == 2 && p.count <= EightRuns::kCapacity ? kWavesOfPairs : kWavesOfFours) *
                                held_threads(p);
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

// Whether inputs whose rows lie apart, more than one launch takes, are made in several.
bool are_in_launches(const CatRunsParams& p) {
  const int64_t launches = ceil_div(p.count, int64_t{SixteenOfMany::kCapacity});
  return p.count <= kMostInLaunches &&
         bytes_of(p) >= launches * kBytesOfLaunch[average_run(p) > kShortRunInLaunches];
}

cudaError_t launch_in_launches(const CatRunsParams& p, int word, LaunchSequence& sequence) {
  const auto is_far = [&p](const CatRun& run) {
    return run.row_stride * p.element_size >= kRowsApartInPairs;
  };
  const bool pairs = average_run(p) <= kRunInPairs && std::all_of(p.runs, p.runs + p.count, is_far);
  return with_word(word, [&](auto bytes) {
    return pairs ? launch_list<Columns<bytes, 1, 2>, SixteenOfMany>(p, sequence)
                 : launch_list<Columns<bytes, 1, 4>, SixteenOfMany>(p, sequence);
  });
}

}  // namespace

cudaError_t launch_cat_words(const CatRunsParams& p, LaunchSequence& sequence) {
  const int word = common_word(p);
  if (!are_few(p) && has_rows_apart(p)) {
    return word != 0 && are_in_launches(p) ? launch_in_launches(p, word, sequence) : cudaErrorNotSupported;
  }
  if (word != 0) {
    if (const int count = words_of_uneven_inputs(p, word); count > 0) {
      const cudaError_t error = launch_cat_by_uneven_inputs(p, word, count, sequence);
      if (error != cudaErrorNotSupported) {
        return error;
      }
    }
    if (const int count = words_by_inputs(p, word); count > 0) {
      return launch_cat_by_inputs(p, word, count, sequence);
    }
    if (are_columns_of_many(p, word)) {
      return launch_columns_of_many(p, word, sequence);
    }
    const RowsApart apart = rows_apart(p, word);
    if (are_single(p, word, apart)) {
      return launch_single(p, word, sequence);
    }
    if (apart == RowsApart::Pair) {
      return with_word(word, [&](auto bytes) { return launch<Columns<bytes, 1, 2>>(p, sequence); });
    }
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
        return are_long_large_words(p) ? launch<Line<4, 4, false>>(p, sequence)
                                       : launch<Columns<8, 1, 2>>(p, sequence);
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
