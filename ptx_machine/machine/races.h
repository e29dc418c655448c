// The race detector: which accesses happen before which, in the PTX memory model, as far as a run shows it.
//
// An access is a point (block, warp, lane, phase, time). The phase of a block counts its barriers; all that a block did
// in earlier phases happens before all that it does now. The time of a warp counts its synchronisations (bar.warp.sync,
// barriers) and its releases. Lanes of a warp that run in lock step are not ordered by that: only bar.warp.sync orders
// them, as PTX says.
//
// A release publishes what its lane knows, an acquire that reads from it learns it; the other lanes of the warp learn it
// at the next bar.warp.sync, the other warps of the block at the next barrier.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

constexpr uint32_t NOBODY = 0, ALL_LANES = ~0u;  // blocks are counted from 1
constexpr uint8_t SEVERAL = 32;  // lanes
constexpr uint8_t BY_TMA = 33;   // no thread: `warps` is its stream and `time` its serial there

struct Access {
  uint32_t block, phase, time;
  uint32_t warps;  // a mask: readers of one phase are kept together
  uint32_t at;     // instruction
  uint8_t lane;    // or SEVERAL
  bool pending;  // written by a cp.async that nobody has waited for
  bool mixed;    // readers of several instructions
  uint32_t lanes;  // of all readers
};

// What is known of a block: all accesses before `phase`; or, for one warp (warp >= 0), those in `phase` before `base` by
// any lane and before `time` by `lanes`.
struct Known {
  uint32_t block;
  int32_t warp;
  uint32_t phase, base = 0, time = 0, lanes = 0;
  std::pair<uint32_t, int32_t> key() const { return {block, warp}; }
};

class Clock {
 public:
  bool empty() const { return rows.empty(); }
  void clear() { rows.clear(); }

  void add(const Known& k) {
    auto at = std::lower_bound(rows.begin(), rows.end(), k, [](auto& a, auto& b) { return a.key() < b.key(); });
    if (at == rows.end() || at->key() != k.key()) rows.insert(at, k);
    else if (at->phase < k.phase) *at = k;
    else if (at->phase == k.phase) {
      at->base = std::max(at->base, k.base);
      at->time = std::max(at->time, k.time);
      at->lanes |= k.lanes;
    }
  }

  void join(const Clock& other) {
    if (rows.empty()) rows = other.rows;
    else for (auto& k : other.rows) add(k);
  }

  // How far an asynchronous stream is known to be done: see asynchronous.h.
  uint32_t done(uint32_t block, int32_t stream) const {
    const Known* known = find(block, stream);
    return known ? known->phase : 0;
  }

  bool covers(const Access& a) const {
    const Known* block = find(a.block, -1);
    if (block && a.phase < block->phase) return true;
    if (__builtin_popcount(a.warps) != 1) return false;
    const Known* warp = find(a.block, __builtin_ctz(a.warps));
    if (!warp || warp->phase != a.phase) return false;
    return a.time < warp->base || (a.lane < SEVERAL && (warp->lanes >> a.lane & 1) && a.time < warp->time);
  }

 private:
  const Known* find(uint32_t block, int32_t warp) const {
    Known wanted{block, warp, 0};
    auto at = std::lower_bound(rows.begin(), rows.end(), wanted, [](auto& a, auto& b) { return a.key() < b.key(); });
    return at != rows.end() && at->key() == wanted.key() ? &*at : nullptr;
  }
  std::vector<Known> rows;  // sorted by key
};

// The state of a few bytes: the last write, and the reads since.
struct Cell {
  Access write, read;
};

struct Strong {
  Access access;
  bool writes, block_scope;
};

// What is released at one address: to everyone, and to the block of the releasing warp.
struct Released {
  Clock everyone;
  std::map<uint32_t, Clock> block;
};

// Memory that the detector watches. Most accesses move 16 bytes, so there is one cell per 16 bytes, until an access
// touches less of them: then there are four cells, or sixteen. A write of all 16 bytes makes them one again.
class Region {
 public:
  std::unordered_map<const Cell*, std::vector<Access>> readers;  // further readers, unordered with the cell's
  std::unordered_map<int64_t, std::vector<Strong>> strong;       // atomic accesses, by the byte they start at
  std::unordered_map<int64_t, Released> released;                // likewise

  // `least`: the fewest bytes that an instruction moves.
  void reset(int64_t bytes, int least) {
    lines = (bytes + 15) / 16;
    fineness.assign(lines, 0);
    cells[0] = zeroed(lines);
    if (least < 16) cells[1] = zeroed(4 * lines);
    if (least < 4) cells[2] = zeroed(16 * lines);
  }

  // f(cell, bytes from `at` to the cell, bytes) for every cell of an access. `whole`: f leaves nothing but this access
  // in the cells, so that they may become one.
  template <class F> void each(int64_t at, int size, bool writes, F f) {
    const int wanted = size >= 16 ? 0 : size >= 4 ? 1 : 2;
    for (int64_t line = at / 16, end = (at + size - 1) / 16; line <= end; line++) {
      while (fineness[line] < wanted) split(line);
      const int level = fineness[line];
      if (level == 0) {
        f(cells[0][line], line * 16 - at, 16);
        continue;
      }
      const int shift = level == 1 ? 2 : 0, step = 1 << shift;
      const int64_t from = std::max(at, line * 16), to = std::min(at + size, line * 16 + 16);
      bool fresh = true;
      for (int64_t byte = from; byte < to; byte += step) fresh &= f(cells[level][byte >> shift], byte - at, step);
      if (writes && fresh && to - from == 16) {
        cells[0][line] = cells[level][line * 16 >> shift];
        fineness[line] = 0;
      }
    }
  }

 private:
  struct Free {
    void operator()(Cell* c) const { std::free(c); }
  };
  using Cells = std::unique_ptr<Cell[], Free>;
  // Pages that nobody touches cost nothing: a cell of zeros is one that nobody has accessed.
  static Cells zeroed(int64_t count) { return Cells(static_cast<Cell*>(std::calloc(count + 1, sizeof(Cell)))); }

  void split(int64_t line) {
    const int level = fineness[line]++;
    const int64_t first = level == 0 ? line : line * 4;
    for (int64_t k = first; k < first + (level == 0 ? 1 : 4); k++) {
      auto others = readers.empty() ? readers.end() : readers.find(&cells[level][k]);
      for (int64_t part = 4 * k; part < 4 * k + 4; part++) {
        cells[level + 1][part] = cells[level][k];
        if (others != readers.end()) readers[&cells[level + 1][part]] = others->second;
      }
    }
  }

  int64_t lines = 0;
  std::vector<uint8_t> fineness;
  Cells cells[3];
};
