// Blocks and warps under a random schedule.
#include "machine.h"

#include <cstring>
#include <numeric>

Machine::Machine(const Launch& launch) : launch(launch), counts(launch.instructions), random(launch.seed) {
  for (int k = 0; k < launch.instructions; k++) {
    handlers.push_back(handler_of(launch.code[k]));
    if (!handlers.back()) fail(launch.code[k], "the machine has no such operation");
  }
  is_sink.resize(launch.instructions);
  for (int k = 0; k < launch.instructions; k++) {
    const Instruction& i = launch.code[k];
    parts |= i.operation == MBARRIER_INIT || (i.operation == BARRIER && i.width);
  }
  for (int k = 0; launch.races && k < launch.sink_starts[launch.instructions]; k++)
    if (launch.sinks[k] >= 0) is_sink[launch.sinks[k]] = 1;
  regions.resize(launch.region_count);
  if (launch.races)
    for (int k = 0; k < launch.region_count; k++) regions[k].reset(launch.regions[k], launch.global_cell);
}

// A random number of blocks of the grid, in random order, is on the GPU at a time. A random warp of them executes a
// random number of instructions: mostly few, sometimes many, so that one warp may run far ahead of the others.
void Machine::run() {
  std::vector<uint32_t> order(size_t(launch.grid[0]) * launch.grid[1] * launch.grid[2]);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  size_t next = 0;
  const int threads = launch.block[0] * launch.block[1] * launch.block[2], warps = (threads + LANES - 1) / LANES;
  std::vector<Block> blocks(std::min<size_t>(launch.resident, order.size()));
  std::vector<Block*> live;
  for (Block& block : blocks) {
    block.shared.resize(launch.shared);
    if (launch.races) block.region.reset(launch.shared, launch.shared_cell);
    block.warps.resize(warps);
    for (Warp& w : block.warps) {
      size_t bytes = (size_t(launch.register_bytes) + 63) / 64 * 64;
      w.memory.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
      w.registers = w.memory.get();
      w.local.resize(size_t(launch.local) * LANES);
    }
    start(block, order[next++]);
    live.push_back(&block);
  }
  while (!live.empty()) {
    Block& block = *live[random() % live.size()];
    Warp& w = block.warps[random() % warps];
    if (w.done() || w.waiting) continue;
    const uint64_t dice = random();
    w.async.yields = false;
    for (int64_t n = 1 + (dice >> 8) % (dice % 8 ? 40 : 2000); n > 0 && step(w) && !w.async.yields; n--) {
    }
    if (!block.async.arrivals.empty() && random() % 4 == 0) happen(block);
    if (w.async.yields && ++block.async.spins > 1'000'000)
      throw std::runtime_error(std::to_string(w.at - 1) + ":waits for ever: no warp goes on that could arrive at the mbarrier");
    if (executed > launch.limit) throw std::runtime_error("-1:did not end");
    if (std::all_of(block.warps.begin(), block.warps.end(), [](const Warp& w) { return w.done(); })) {
      settle(block);
      if (next < order.size()) start(block, order[next++]);
      else live.erase(std::find(live.begin(), live.end(), &block));
    }
  }
}

void Machine::start(Block& block, uint32_t id) {
  block.id = id + 1;
  ++block.phase;
  block.clock.clear();
  std::fill(block.shared.begin(), block.shared.end(), uint8_t(0xff));  // NaN, if anyone reads it
  block.async.clear();
  block.region.readers.clear();
  block.parts = parts;
  same_time(block);
  const int32_t* size = launch.block;
  const int threads = size[0] * size[1] * size[2];
  for (size_t k = 0; k < block.warps.size(); k++) {
    Warp& w = block.warps[k];
    w.block = &block;
    w.index = int(k);
    w.at = 0;
    w.active = w.alive = threads - int(k) * LANES >= LANES ? ALL_LANES : (1u << (threads - int(k) * LANES)) - 1;
    w.waiting = false;
    w.elsewhere.clear(), w.copies.clear();
    std::fill(w.groups, w.groups + LANES, 0u);
    w.base = w.time;
    w.informed = w.heard_by = 0;
    w.acquired.clear(), w.heard.clear();
    w.fence = Fence();
    w.async = Asynchronous();
    if (launch.races) w.stored.assign(launch.instructions, 0u);
    std::memcpy(w.registers, launch.registers, launch.register_bytes);
    for (int l = 0; l < LANES; l++) {
      const int thread = int(k) * LANES + l;
      const uint32_t lane = 1u << l, below = lane - 1;
      const int values[SPECIAL] = {
          thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1], size[0], size[1], size[2],
          int(id) % launch.grid[0], int(id) / launch.grid[0] % launch.grid[1], int(id) / launch.grid[0] / launch.grid[1],
          launch.grid[0], launch.grid[1], launch.grid[2], l, int(k),
          int(id), int(lane), int(below | lane), int(below), int(~below), int(~below & ~lane)};
      for (int s = 0; s < SPECIAL; s++)
        if (launch.special[s] >= 0) w.reg<uint32_t>(launch.special[s])[l] = uint32_t(values[s]);
    }
  }
}

// One instruction of a warp; false if the warp cannot go on now.
bool Machine::step(Warp& w) {
  if (!w.elsewhere.empty()) converge(w);
  const Instruction& i = launch.code[w.at];
  uint32_t mask = w.active;
  if (i.predicate >= 0) {
    const uint32_t p = *w.reg<uint32_t>(i.predicate);
    mask &= i.negated ? ~p : p;
  }
  Count& count = counts[w.at];
  if (i.touches) touch_registers(w, i);
  count.warps++;
  count.lanes += __builtin_popcount(mask);
  if (is_sink[w.at]) w.stored[w.at] |= mask;
  executed++;
  switch (i.operation) {
    case BRANCH: branch(w, i, mask); return true;
    case BRANCH_TABLE: branch_table(w, i, mask); return true;
    case EXIT: w.at++; leave(w, mask); return !w.done();
    case BARRIER: w.at++; return mask ? arrive(w, i, mask) : true;
    case TRAP: if (mask) fail(i, "trap"); w.at++; return true;
    default: break;
  }
  w.at++;
  if (mask) handlers[&i - launch.code](*this, w, i, mask);
  return true;
}

// Diverged lanes: those at the lowest address run first, and meet the others there. Compilers lay out code so that this
// is where paths join.
void Machine::converge(Warp& w) {
  auto lowest = std::min_element(w.elsewhere.begin(), w.elsewhere.end(), [](auto& a, auto& b) { return a.at < b.at; });
  if (!w.active || lowest->at < w.at) {
    Fragment here{w.at, w.active};
    w.at = lowest->at, w.active = lowest->lanes;
    if (here.lanes) *lowest = here;
    else w.elsewhere.erase(lowest);
  }
  for (size_t k = 0; k < w.elsewhere.size();)
    if (w.elsewhere[k].at == w.at) {
      w.active |= w.elsewhere[k].lanes;
      w.elsewhere.erase(w.elsewhere.begin() + k);
    } else k++;
}

void Machine::branch(Warp& w, const Instruction& i, uint32_t taken) {
  const uint32_t stay = w.active & ~taken;
  if (taken && stay) w.elsewhere.push_back({i.target, taken}), w.active = stay;
  w.at = stay ? w.at + 1 : i.target;
}

// brx.idx: each lane has its own place in the list; one beyond it goes nowhere.
void Machine::branch_table(Warp& w, const Instruction& i, uint32_t mask) {
  const int32_t* targets = launch.lists + i.list;
  if (w.active & ~mask) w.elsewhere.push_back({w.at + 1, w.active & ~mask});
  for (int l = 0; l < LANES; l++) {
    if (!(mask >> l & 1)) continue;
    const uint32_t index = w.reg<uint32_t>(i.operand[0])[l];
    if (index >= uint32_t(i.count)) fail(i, "its index is not in the list");
    auto same = std::find_if(w.elsewhere.begin(), w.elsewhere.end(), [&](auto& f) { return f.at == targets[index]; });
    if (same != w.elsewhere.end()) same->lanes |= 1u << l;
    else w.elsewhere.push_back({targets[index], 1u << l});
  }
  w.active = 0;
}

void Machine::leave(Warp& w, uint32_t lanes) {
  w.alive &= ~lanes;
  w.active &= ~lanes;
  if (w.active || !w.elsewhere.empty()) return;
  for (const Copy& copy : w.copies) land(w, copy);
  w.copies.clear();
  open_barriers(*w.block);
}

bool Machine::arrive(Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != w.alive) fail(i, "a barrier that only some lanes of a warp reach");
  w.barrier = i.count, w.members = i.width;
  w.waiting = true;
  open_barriers(*w.block);
  const auto stuck = [](const Warp& one) { return one.done() || one.waiting; };
  if (w.waiting && std::all_of(w.block->warps.begin(), w.block->warps.end(), stuck)) fail(i, "other warps wait at a different barrier");
  return !w.waiting;
}

void Machine::open_barriers(Block& block) {
  int alive = 0, waiting[16] = {}, members[16] = {};
  for (const Warp& w : block.warps) {
    alive += !w.done();
    if (w.waiting) waiting[w.barrier & 15]++, members[w.barrier & 15] = w.members;
  }
  for (int barrier = 0; barrier < 16; barrier++) {
    if (!waiting[barrier]) continue;
    if (waiting[barrier] == alive) open_all(block);
    else if (members[barrier] && waiting[barrier] == members[barrier]) open_some(block, barrier);
  }
}

// Later than anything before: warps that do the same from here on have the same times.
void Machine::same_time(Block& block) {
  uint32_t latest = 0;
  for (const Warp& w : block.warps) latest = std::max(latest, w.time);
  for (Warp& w : block.warps) w.time = latest + 1;
}

// Some warps meet: everything that they did before happens before everything that they do after.
void Machine::open_some(Block& block, int barrier) {
  Clock known, fenced;
  block.async.spins = 0;
  auto meets = [&](const Warp& w) { return w.waiting && (w.barrier & 15) == barrier; };
  for (Warp& w : block.warps)
    if (meets(w)) {
      known.join(w.acquired);
      known.add({block.id, w.index, block.phase, w.time + 1, w.time + 1, ALL_LANES});
      add_done(known, w);
      fenced.join(w.async.fenced);
    }
  for (Warp& w : block.warps)
    if (meets(w)) {
      w.waiting = false;
      if (!launch.races) continue;
      w.acquired.join(known), w.informed = ALL_LANES;
      w.async.fenced.join(fenced), w.async.fenced_by = ALL_LANES;
      w.base = ++w.time;
    }
}

// All warps that have not ended are at the barrier: everything before it happens before everything after it.
void Machine::open_all(Block& block) {
  block.phase++;
  block.async.spins = 0;
  same_time(block);
  for (Warp& w : block.warps) {
    w.waiting = false;
    block.clock.join(w.acquired);
    add_done(block.clock, w);
    block.async.fenced.join(w.async.fenced);
    w.async.fenced.clear();
    w.async.fenced_by = 0;
    w.acquired.clear();
    w.informed = 0;
    w.base = w.time;
  }
}

// 0: the launch ended. 1: it did not; `message` is "instruction:reason".
extern "C" int ptx_machine_run(const Launch* launch, Count* counts, Found* found, int room, int* findings, char* message,
                               int length) {
  std::unique_ptr<Machine> machine;
  int code = 0;
  try {
    machine = std::make_unique<Machine>(*launch);
    machine->run();
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), length - 1);
    code = 1;
  }
  *findings = 0;
  if (machine) {
    std::copy(machine->counts.begin(), machine->counts.end(), counts);
    *findings = int(machine->found.size());
    std::copy_n(machine->found.begin(), std::min<size_t>(room, machine->found.size()), found);
  }
  return code;
}
