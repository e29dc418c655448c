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
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

constexpr uint32_t NOBODY = ~0u, ALL_LANES = ~0u;
constexpr uint8_t SEVERAL = 32;  // lanes

struct Access {
  uint32_t block = NOBODY, phase = 0, time = 0;
  uint32_t warps = 0;  // a mask: readers of one phase are kept together
  uint32_t at = 0;     // instruction
  uint8_t lane = 0;    // or SEVERAL
  bool pending = false;  // written by a cp.async that nobody has waited for
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

// Memory that the detector watches: cells of `cell` bytes.
struct Region {
  int shift = 0;
  std::vector<Cell> cells;
  std::unordered_map<int64_t, std::vector<Access>> readers;  // further readers of a cell, unordered with the first
  std::unordered_map<int64_t, std::vector<Strong>> strong;   // atomic accesses to a cell
  std::unordered_map<int64_t, Released> released;

  void reset(int64_t bytes, int cell) {
    shift = __builtin_ctz(cell);
    cells.assign((bytes + cell - 1) >> shift, Cell());
    readers.clear(), strong.clear(), released.clear();
  }
};
