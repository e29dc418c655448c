// Memory: bounds, alignment, and what the race detector notes of every access.
#include "machine.h"

#include <cstring>

constexpr int SHARED = -1, NO_ARGUMENT = -2;
// Every argument has a window of addresses of its own, in the middle of 2^40: an access before or behind it is out of
// bounds, not in the next argument.
constexpr int WINDOW = 40;

void Machine::report(Finding kind, Warp& w, const Instruction& i, int lane, int earlier, int buffer, int64_t offset) {
  auto [at, added] = known.try_emplace({kind, place(i), earlier}, found.size());
  if (added) found.push_back({kind, place(i), earlier, int32_t(w.block->id) - 1, w.index, lane, buffer, 0, offset, 1});
  else found[at->second].times++;
}

const Buffer* Machine::find(Warp& w, const Instruction& i, int lane, uint64_t address, int size) {
  int64_t index = int64_t(address >> WINDOW) - 1;
  bool one = index >= 0 && index < launch.buffer_count;
  const Buffer* b = one ? launch.buffers + index : nullptr;
  int64_t offset = one ? int64_t(address) - b->base : int64_t(address);
  if (!one || offset < 0 || offset + size > b->size)
    report(OUT_OF_BOUNDS, w, i, lane, -1, one ? int(index) : NO_ARGUMENT, offset);
  else if (address % size) report(MISALIGNED, w, i, lane, -1, int(index), offset);
  else return b;
  return nullptr;
}

uint8_t* Machine::global(Warp& w, const Instruction& i, int lane, uint64_t address, int size, bool write,
                         const uint8_t* data) {
  const Buffer* b = find(w, i, lane, address, size);
  if (!b) return nullptr;
  int64_t offset = int64_t(address) - b->base;
  uint8_t* bytes = b->host + offset;
  if (launch.races && b->region >= 0) {
    Region& r = regions[b->region];
    int index = int(b - launch.buffers);
    if (write) note_write(w, i, lane, r, b->place + offset, size, index, offset, bytes, data);
    else note_read(w, i, lane, r, b->place + offset, size, index, offset);
  }
  return bytes;
}

uint8_t* Machine::shared(Warp& w, const Instruction& i, int lane, uint32_t address, int size, bool write,
                         const uint8_t* data) {
  std::vector<uint8_t>& memory = w.block->shared;
  if (address % size) report(MISALIGNED, w, i, lane, -1, SHARED, address);
  else if (uint64_t(address) + size > memory.size()) report(OUT_OF_BOUNDS, w, i, lane, -1, SHARED, address);
  else {
    uint8_t* bytes = memory.data() + address;
    if (launch.races) {
      if (write) note_write(w, i, lane, w.block->region, address, size, SHARED, address, bytes, data);
      else note_read(w, i, lane, w.block->region, address, size, SHARED, address);
    }
    return bytes;
  }
  return nullptr;
}

Access Machine::now(const Warp& w, const Instruction& i, int lane) const {
  return {w.block->id, w.block->phase, w.time, 1u << w.index, uint32_t(place(i)), uint8_t(lane), false};
}

// Does `a` happen before what `lane` does now?
bool Machine::ordered(const Warp& w, int lane, const Access& a) const {
  if (a.block == NOBODY) return true;
  if (a.block == w.block->id) {
    if (a.phase < w.block->phase) return true;
    if (a.warps == 1u << w.index && (a.lane == lane || a.time < w.base)) return true;
  }
  return w.block->clock.covers(a) || ((w.informed >> lane & 1) && w.acquired.covers(a));
}

void Machine::note_read(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer,
                        int64_t shown) {
  const uint32_t id = w.block->id, phase = w.block->phase, mine = 1u << w.index;
  r.each(at, size, false, [&](Cell& c, int64_t, int) {
    if (buffer == SHARED && c.write.block != id) report(UNINITIALISED, w, i, lane, -1, buffer, shown);
    else if (c.write.pending) report(PENDING_COPY, w, i, lane, c.write.at, buffer, shown);
    else if (!ordered(w, lane, c.write)) report(READ_AFTER_WRITE, w, i, lane, c.write.at, buffer, shown);
    Access& a = c.read;
    if (a.block == id && a.phase == phase) {
      bool alone = a.warps == mine && (a.lane == lane || a.time < w.base);
      a.lane = alone ? uint8_t(lane) : SEVERAL;
      a.warps |= mine;
      a.time = w.time;
      a.at = uint32_t(place(i));
    } else if (buffer == SHARED || ordered(w, lane, a)) a = now(w, i, lane);
    else {
      std::vector<Access>& others = r.readers[&c];
      others.erase(std::remove_if(others.begin(), others.end(), [&](auto& o) { return ordered(w, lane, o); }),
                   others.end());
      others.push_back(now(w, i, lane));
    }
    return true;
  });
  if (!r.strong.empty()) check_strong(w, i, lane, r, at, size, false, buffer, shown);
}

void Machine::note_write(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, int buffer,
                         int64_t shown, const uint8_t* old, const uint8_t* data) {
  const uint32_t id = w.block->id;
  r.each(at, size, true, [&](Cell& c, int64_t from, int bytes) {
    const bool stale = buffer == SHARED && c.write.block != id;
    const bool after = stale || ordered(w, lane, c.write);
    if (!stale && c.write.pending) report(PENDING_COPY, w, i, lane, c.write.at, buffer, shown);
    // Compilers let several warps store the same value to one place; the order of such writes changes nothing.
    else if (!after && (!data || std::memcmp(old + from, data + from, bytes)))
      report(WRITE_AFTER_WRITE, w, i, lane, c.write.at, buffer, shown);
    bool unread = (buffer == SHARED && c.read.block != id) || ordered(w, lane, c.read);
    if (!unread) report(WRITE_AFTER_READ, w, i, lane, c.read.at, buffer, shown);
    if (!r.readers.empty()) {
      auto others = r.readers.find(&c);
      if (others != r.readers.end()) {
        for (auto& a : others->second)
          if (!ordered(w, lane, a)) report(WRITE_AFTER_READ, w, i, lane, a.at, buffer, shown);
        r.readers.erase(others);
      }
    }
    if (after) c = {now(w, i, lane), {}};
    return after;
  });
  if (!r.strong.empty()) check_strong(w, i, lane, r, at, size, true, buffer, shown);
  if (!r.released.empty())
    for (int64_t byte = at; byte < at + size; byte++) r.released.erase(byte);  // a plain store ends a release sequence
}

void Machine::check_strong(Warp& w, const Instruction& i, int lane, Region& r, int64_t at, int size, bool write,
                           int buffer, int64_t shown) {
  for (int64_t byte = at; byte < at + size; byte++) {
    auto there = r.strong.find(byte);
    if (there == r.strong.end()) continue;
    for (auto& s : there->second)
      if ((write || s.writes) && !ordered(w, lane, s.access))
        report(!write ? READ_AFTER_WRITE : s.writes ? WRITE_AFTER_WRITE : WRITE_AFTER_READ, w, i, lane, s.access.at,
               buffer, shown);
  }
}

Clock Machine::released_by(const Warp& w, int lane) const {
  Clock out = w.block->clock;
  if (w.informed >> lane & 1) out.join(w.acquired);
  out.add({w.block->id, -1, w.block->phase});
  out.add({w.block->id, w.index, w.block->phase, w.base, w.time + 1, 1u << lane});
  return out;
}

// An atomic operation, or a load or store that is volatile, relaxed, acquire or release. Two of them race only if the
// scope of one does not hold the other.
uint8_t* Machine::strong(Warp& w, const Instruction& i, int lane, uint64_t address, int size, bool reads, bool writes) {
  const Buffer* b = find(w, i, lane, address, size);
  if (!b) return nullptr;
  const int64_t offset = int64_t(address) - b->base;
  if (!launch.races || b->region < 0) return b->host + offset;
  Region& r = regions[b->region];
  const int64_t place = b->place + offset;
  const int index = int(b - launch.buffers);
  r.each(place, size, false, [&](Cell& c, int64_t, int) {
    if (!ordered(w, lane, c.write))
      report(reads ? READ_AFTER_WRITE : WRITE_AFTER_WRITE, w, i, lane, c.write.at, index, offset);
    if (!writes) return true;
    if (!ordered(w, lane, c.read)) report(WRITE_AFTER_READ, w, i, lane, c.read.at, index, offset);
    auto others = r.readers.find(&c);
    if (others != r.readers.end())
      for (auto& a : others->second)
        if (!ordered(w, lane, a)) report(WRITE_AFTER_READ, w, i, lane, a.at, index, offset);
    return true;
  });
  std::vector<Strong>& all = r.strong[place];
  Strong* mine = nullptr;
  for (auto& s : all) {
    bool apart = s.access.block != w.block->id;
    if (apart && (i.block_scope || s.block_scope) && (writes || s.writes) && !ordered(w, lane, s.access))
      report(!writes ? READ_AFTER_WRITE : s.writes ? WRITE_AFTER_WRITE : WRITE_AFTER_READ, w, i, lane, s.access.at,
             index, offset);
    if (!apart && s.access.warps == 1u << w.index && s.access.lane == lane && s.writes == writes) mine = &s;
  }
  Strong access{now(w, i, lane), writes, i.block_scope != 0};
  if (mine) *mine = access;
  else all.push_back(access);

  Released& at = r.released[place];
  if (reads) {
    Clock learnt = i.block_scope ? Clock() : at.everyone;
    auto inside = at.block.find(w.block->id);
    if (inside != at.block.end()) learnt.join(inside->second);
    if (i.order & ACQUIRE) w.acquired.join(learnt), w.informed |= 1u << lane;
    else w.heard.join(learnt), w.heard_by |= 1u << lane;
  }
  if (writes) {
    if (!reads) at = Released();  // a store starts a new release sequence, a read-modify-write continues it
    bool block_scope = i.block_scope;
    Clock out;
    if (i.order & RELEASE) out = released_by(w, lane);
    else if (w.fence.lanes >> lane & 1) {  // fence; relaxed store
      const Fence& f = w.fence;
      out = f.known;
      out.add({w.block->id, -1, f.phase});
      out.add({w.block->id, w.index, f.phase, f.base, f.time, 1u << lane});
      block_scope |= f.block_scope;
    }
    if (!out.empty()) {
      at.block[w.block->id].join(out);
      if (!block_scope) at.everyone.join(out);
      w.time++;  // what the lane does from here on is not released
    }
  }
  return b->host + offset;
}

// An atomic operation in shared memory is relaxed, and only races with plain accesses.
uint8_t* Machine::shared_strong(Warp& w, const Instruction& i, int lane, uint32_t address, int size) {
  std::vector<uint8_t>& memory = w.block->shared;
  if (address % size) report(MISALIGNED, w, i, lane, -1, SHARED, address);
  else if (uint64_t(address) + size > memory.size()) report(OUT_OF_BOUNDS, w, i, lane, -1, SHARED, address);
  else {
    if (launch.races) {
      w.block->region.each(address, size, true, [&](Cell& c, int64_t, int) {
        const bool atomic = c.write.block == w.block->id && launch.code[c.write.at].operation == ATOM_SHARED;
        if (c.write.block != w.block->id) report(UNINITIALISED, w, i, lane, -1, SHARED, address);
        else if (!atomic && !ordered(w, lane, c.write))
          report(READ_AFTER_WRITE, w, i, lane, c.write.at, SHARED, address);
        if (c.read.block == w.block->id && !ordered(w, lane, c.read))
          report(WRITE_AFTER_READ, w, i, lane, c.read.at, SHARED, address);
        c.write = now(w, i, lane);
        return false;
      });
    }
    return memory.data() + address;
  }
  return nullptr;
}

void Machine::fence(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!launch.races) return;
  if (w.heard_by & lanes) w.acquired.join(w.heard), w.informed |= w.heard_by & lanes;
  w.fence = {w.block->clock, w.block->phase, w.base, w.time + 1, lanes, i.block_scope != 0};
  if (w.informed & lanes) w.fence.known.join(w.acquired);
  w.time++;
}

void Machine::warp_sync(Warp& w) {
  w.base = ++w.time;
  if (w.informed) w.informed = ALL_LANES;
}

// The bytes arrive when the lane waits for them, as late as they may; until then nobody may touch the place.
void Machine::start_copy(Warp& w, const Instruction& i, int lane, uint32_t to, int size, const uint8_t* data) {
  if (!shared(w, i, lane, to, size, true, nullptr)) return;
  Copy copy{to, size, lane, w.groups[lane], place(i), {}};
  std::memcpy(copy.data, data, size);
  w.copies.push_back(copy);
  if (!launch.races) return;
  w.block->region.each(to, size, true, [&](Cell& c, int64_t, int) {
    c = {now(w, i, lane), {}};
    return c.write.pending = true;
  });
}

void Machine::land(Warp& w, const Copy& copy) {
  std::memcpy(w.block->shared.data() + copy.to, copy.data, copy.size);
  if (!launch.races) return;
  w.block->region.each(copy.to, copy.size, true, [&](Cell& c, int64_t, int) {
    c = {now(w, launch.code[copy.at], copy.lane), {}};
    return true;
  });
}

// Global memory moves in sectors of 32 bytes; a request of a warp costs as many as it touches.
void Machine::count_sectors(const Instruction& i, const uint64_t* addresses, uint32_t mask, int size) {
  if (!launch.traffic) return;
  std::vector<uint64_t> sectors;
  for (int l = 0; l < LANES; l++)
    if (mask >> l & 1)
      for (uint64_t s = addresses[l] / 32; s <= (addresses[l] + size - 1) / 32; s++) sectors.push_back(s);
  std::sort(sectors.begin(), sectors.end());
  counts[place(i)].sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
}

// Shared memory has 32 banks of 4 bytes. Wide accesses are served for half (8 bytes) or a quarter (16) of the lanes at a
// time; each part costs as many wavefronts as its busiest bank has different words.
void Machine::count_wavefronts(const Instruction& i, const uint32_t* addresses, uint32_t mask, int size) {
  if (!launch.traffic) return;
  const int lanes = size <= 4 ? 32 : size == 8 ? 16 : 8;
  for (int first = 0; first < LANES; first += lanes) {
    std::vector<uint32_t> words;
    for (int l = first; l < first + lanes; l++)
      if (mask >> l & 1)
        for (uint32_t word = addresses[l] / 4; word <= (addresses[l] + size - 1) / 4; word++) words.push_back(word);
    if (words.empty()) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    int banks[32] = {}, most = 0;
    for (uint32_t word : words) most = std::max(most, ++banks[word % 32]);
    counts[place(i)].wavefronts += most;
    counts[place(i)].ideal += int64_t(words.size() + 31) / 32;
  }
}
