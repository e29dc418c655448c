// The tensor cores of sm_90 (wgmma) and sm_100 (tcgen05): matrices in shared memory by descriptor, accumulators in
// registers or in tensor memory. See asynchronous.h for what is waited for.
#include <climits>
#include <cstring>

#include "machine.h"
#include "numbers.h"

namespace {

constexpr int ADDRESS = OPERANDS - 1;
constexpr int DEEPEST = 64;

bool on(uint32_t mask, int lane) { return mask >> lane & 1; }
uint32_t word(Warp& w, const Instruction& i, int operand, int lane) { return w.reg<uint32_t>(i.operand[operand])[lane]; }
uint32_t address_of(Warp& w, const Instruction& i, int lane) { return word(w, i, ADDRESS, lane) + uint32_t(i.offset); }
void whole_warp(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES || w.alive != ALL_LANES) m.fail(i, "needs all lanes of a warp");
}

float number(const uint8_t* from, int32_t type) {
  if (type == TF32) {
    uint32_t raw;
    std::memcpy(&raw, from, 4);
    return bits<float>(raw & ~0x1fffu);  // the low bits are ignored
  }
  if (type == S8) return float(int8_t(*from));
  if (type == U8) return float(*from);
  if (type == E4M3 || type == E5M2) return float(widened(*from, type == E4M3));
  uint16_t raw;
  std::memcpy(&raw, from, 2);
  return type == F16 ? float(double(bits<Half>(raw))) : float(double(bits<Brain>(raw)));
}
int bytes_of(int32_t type) { return type == TF32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }

// A matrix in shared memory. Rows are M or N, and 8 of them (K-major), or 8 columns of K (MN-major), are one atom of
// `swizzle` bytes each; 16: not swizzled. `leading` and `stride` are the bytes from atom to atom.
struct Matrix {
  uint32_t start, leading, stride;
  int swizzle;
};
Matrix matrix(Machine& m, const Instruction& i, uint64_t descriptor) {
  const bool hopper = i.operation == WGMMA;
  Matrix out{uint32_t(descriptor & 0x3fff) << 4, uint32_t(descriptor >> 16 & 0x3fff) << 4,
             uint32_t(descriptor >> 32 & 0x3fff) << 4, 0};
  static constexpr int of_hopper[4] = {16, 128, 64, 32}, of_blackwell[8] = {16, 0, 128, 0, 64, 0, 32, 0};
  out.swizzle = hopper ? of_hopper[descriptor >> 62] : of_blackwell[descriptor >> 61];
  if (!out.swizzle) m.fail(i, "the machine does not know this swizzle of a matrix descriptor");
  if (descriptor >> 49 & 7 && out.swizzle != 16) m.fail(i, "the machine does not know matrix descriptors with a base offset");
  if (!hopper && ((descriptor >> 46 & 7) != 1 || (descriptor >> 52 & 1))) m.fail(i, "is no matrix descriptor of tcgen05");
  return out;
}
// Where 16 bytes lie: from element (row, k) on along K, or along the rows if `transposed`. The swizzle is one of the
// address: its bits 4, 5, 6 change with its bits 7, 8, 9. Without one, `leading` is along K and `stride` along the rows,
// whichever is contiguous.
uint32_t place(const Matrix& a, int row, int k, int bytes, bool transposed) {
  uint32_t offset;
  if (!transposed && a.swizzle == 16) offset = row % 8 * 16 + row / 8 * a.stride + k * bytes / 16 * a.leading;
  else if (!transposed) offset = row % 8 * a.swizzle + row / 8 * a.stride + k * bytes;
  else if (a.swizzle == 16) offset = row * bytes % 16 + row * bytes / 16 * a.stride + k % 8 * 16 + k / 8 * a.leading;
  else {
    const int along = row * bytes;
    offset = along % a.swizzle + along / a.swizzle * a.leading + k % 8 * a.swizzle + k / 8 * a.stride;
  }
  return swizzled(a.start + offset, uint32_t(a.swizzle));
}
void read(Machine& m, Warp& w, const Instruction& i, int lane, uint64_t descriptor, int32_t type, bool transposed, int first,
          int rows, bool negative, AsyncAccess by, float (*out)[DEEPEST]) {
  const Matrix a = matrix(m, i, descriptor);
  const int bytes = bytes_of(type), depth = 32 / bytes, many = 16 / bytes;
  const float sign = negative ? -1 : 1;
  auto piece = [&](int row, int k) {
    return m.proxy_read(w, i, lane, place(a, first + row, k, bytes, transposed), 16, by);
  };
  auto value = [&](const uint8_t* p, int n) { return p ? sign * number(p + n * bytes, type) : std::nanf(""); };
  if (!transposed) {
    for (int row = 0; row < rows; row++)
      for (int k = 0; k < depth; k += many) {
        const uint8_t* p = piece(row, k);
        for (int n = 0; n < many; n++) out[row][k + n] = value(p, n);
      }
  } else {
    for (int k = 0; k < depth; k++)
      for (int row = 0; row < rows; row += many) {
        const uint8_t* p = piece(row, k);
        for (int n = 0; n < many; n++) out[row + n][k] = value(p, n);
      }
  }
}
// The sum is formed in f64 and rounded once, as in mma. An accumulator is f32, s32, or f16 in the low half; integers wrap,
// or stop at the ends.
uint32_t product(const float* a, const float* b, int depth, uint32_t c, bool adds, int32_t type, bool saturate = false) {
  double sum = 0;
  for (int k = 0; k < depth; k++) sum += double(a[k]) * double(b[k]);
  if (!adds) c = 0;
  if (type == F16) return Half(sum + double(bits<Half>(uint16_t(c)))).raw;
  if (type == F32) return bits<uint32_t>(canonical(float(sum + double(bits<float>(c)))));
  const int64_t whole = int64_t(sum) + int32_t(c);
  return uint32_t(saturate ? std::clamp<int64_t>(whole, INT32_MIN, INT32_MAX) : whole);
}

// wgmma ------------------------------------------------------------------------------------------------------------

enum { A_IN_REGISTERS = 1, TRANSPOSE_A = 2, TRANSPOSE_B = 4, NEGATE_A = 8, NEGATE_B = 16, SATURATE = 32 };

void wgmma_fence(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  w.async.unfenced.clear();
  w.async.fence = true;
}
// Each of the four warps of a group computes its 16 rows of d. `list`: the registers of d, then those of a; operands:
// descriptors of a and b, the predicate by which d is added. The results come with wgmma.wait_group.
void wgmma(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  const int depth = 32 / bytes_of(i.from), registers = i.count / (i.type == F16 ? 4 : 2);
  const int32_t *d = m.launch.lists + i.list, *a_list = d + registers;
  Asynchronous& async = w.async;
  const AsyncAccess by{WGMMA_STREAM + w.index, ++w.block->async.serial, m.place(i)};
  async.last[0] = by.serial;
  const int factors = i.mode & A_IN_REGISTERS ? 4 : 0;
  if (m.launch.races)
    for (int k = 0; k < registers + factors; k++)
      if (!async.fence || std::find(async.unfenced.begin(), async.unfenced.end(), d[k]) != async.unfenced.end()) {
        m.report(NO_REGISTER_FENCE, w, i, 0, -1, REGISTER, d[k]);
        break;
      }
  float a[16][DEEPEST], b[256][DEEPEST];
  if (factors) {
    for (int r = 0; r < 4; r++)
      for (int l = 0; l < LANES; l++) {
        const uint32_t raw = w.reg<uint32_t>(a_list[r])[l];
        uint8_t bytes[4];
        std::memcpy(bytes, &raw, 4);
        const int per = 4 / bytes_of(i.from);
        for (int h = 0; h < per; h++) {
          const float x = number(bytes + h * bytes_of(i.from), i.from);
          a[l / 4 + 8 * (r & 1)][l % 4 * per + h + 4 * per * (r >> 1)] = i.mode & NEGATE_A ? -x : x;
        }
      }
  } else {
    read(m, w, i, 0, w.reg<uint64_t>(i.operand[0])[0], i.from, i.mode & TRANSPOSE_A, w.index % 4 * 16, 16,
         i.mode & NEGATE_A, by, a);
  }
  read(m, w, i, 0, w.reg<uint64_t>(i.operand[1])[0], i.width, i.mode & TRANSPOSE_B, 0, i.count, i.mode & NEGATE_B, by, b);
  const bool adds = word(w, i, 2, 0) & 1;
  for (int r = 0; r < registers; r++) {
    auto mine = std::find_if(async.accumulators.begin(), async.accumulators.end(),
                             [&](auto& one) { return one.place == d[r] && !one.factor; });
    if (mine == async.accumulators.end()) {
      Accumulator fresh{d[r], 0, 0, 0, false, {}};
      std::memcpy(fresh.value, w.reg<uint32_t>(d[r]), sizeof fresh.value);
      async.accumulators.push_back(fresh);
      mine = async.accumulators.end() - 1;
      std::memset(w.reg<uint32_t>(d[r]), 0xff, sizeof fresh.value);  // NaN until it is waited for
    }
    mine->group = uint32_t(async.groups.size()), mine->serial = by.serial, mine->at = by.at;
    for (int l = 0; l < LANES; l++) {
      uint32_t& value = mine->value[l];
      if (i.type != F16) {
        const int row = l / 4 + 8 * (r >> 1 & 1), column = r / 4 * 8 + l % 4 * 2 + (r & 1);
        value = product(a[row], b[column], depth, value, adds, i.type, i.mode & SATURATE);
        continue;
      }
      const int row = l / 4 + 8 * (r & 1), column = r / 2 * 8 + l % 4 * 2;  // two in a register
      value = product(a[row], b[column], depth, value & 0xffff, adds, F16) |
              product(a[row], b[column + 1], depth, value >> 16, adds, F16) << 16;
    }
  }
  for (int k = 0; k < factors; k++)
    async.accumulators.push_back({a_list[k], uint32_t(async.groups.size()), by.serial, by.at, true, {}});
}
void wgmma_commit(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  w.async.groups.push_back(w.async.last[0]);
}
void wgmma_wait(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  Asynchronous& async = w.async;
  const size_t complete = async.groups.size() - std::min(async.groups.size(), size_t(i.count));
  if (complete) async.done[0] = async.groups[complete - 1];
  auto stays = [&](const Accumulator& a) { return a.group >= complete; };
  auto end = std::stable_partition(async.accumulators.begin(), async.accumulators.end(), stays);
  for (auto a = end; a != async.accumulators.end(); ++a)
    if (!a->factor) std::memcpy(w.reg<uint32_t>(a->place), a->value, sizeof a->value);
  async.accumulators.erase(end, async.accumulators.end());
}

// mbarriers --------------------------------------------------------------------------------------------------------

void proxy_fence(Machine& m, Warp& w, const Instruction&, uint32_t mask) { m.proxy_fence(w, mask); }
void mbarrier_init(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) m.mbarrier_init(w, i, l, address_of(w, i, l), word(w, i, 0, l));
}
void mbarrier_inval(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) m.mbarrier_inval(w, i, l, address_of(w, i, l));
}
void mbarrier_arrive(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {  // mode 1: and expects bytes; 2: only that
      const uint32_t number = word(w, i, 0, l);
      m.mbarrier_arrive(w, i, l, address_of(w, i, l), i.mode == 2 ? 0 : i.mode ? 1 : number, i.mode ? number : 0);
    }
}
void mbarrier_wait(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t out = 0;
  for (int l = 0; l < LANES; l++)
    if (on(mask, l) && m.mbarrier_wait(w, i, l, address_of(w, i, l), word(w, i, 1, l))) out |= 1u << l;
  uint32_t* p = w.reg<uint32_t>(i.operand[0]);
  *p = (*p & ~mask) | out;
}

// tcgen05 ----------------------------------------------------------------------------------------------------------

constexpr int GROUP = TensorMemory::GROUP;

TensorMemory& tensor(Warp& w) {
  std::unique_ptr<TensorMemory>& t = w.block->async.tensor;
  if (!t) t = std::make_unique<TensorMemory>();
  return *t;
}
void alloc(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  TensorMemory& t = tensor(w);
  const int columns = int(word(w, i, 0, 0));
  if (columns < 32 || columns > TensorMemory::COLUMNS || columns & (columns - 1)) m.fail(i, "allocates no power of 2 from 32 to 512");
  std::vector<int> free;
  for (int first = 0; first < TensorMemory::COLUMNS; first += columns)
    if (std::all_of(t.owner + first, t.owner + first + columns, [](int32_t owner) { return owner < 0; })) free.push_back(first);
  if (free.empty()) m.fail(i, "tensor memory is full");
  const uint32_t first = uint32_t(free[m.random() % free.size()]);
  std::fill(t.owner + first, t.owner + first + columns, m.place(i));
  uint8_t* to = m.shared(w, i, 0, address_of(w, i, 0), 4, true, reinterpret_cast<const uint8_t*>(&first));
  if (to) std::memcpy(to, &first, 4);
}
void dealloc(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  TensorMemory& t = tensor(w);
  const uint32_t first = word(w, i, 0, 0), columns = word(w, i, 1, 0);
  if (first + columns > uint32_t(TensorMemory::COLUMNS)) m.fail(i, "frees what was not allocated");
  for (uint32_t c = first; c < first + columns; c++) {
    if (t.owner[c] < 0) m.fail(i, "frees what was not allocated");
    t.owner[c] = -1;
    for (int g = 0; g < TensorMemory::ROWS / GROUP; g++) {
      TensorMemory::Cell& cell = t.cell[g][c];
      if (m.launch.races) {
        if (!m.knows(w, 0, cell.write)) m.report(NOT_WAITED, w, i, 0, cell.write.at, TENSOR, int64_t(g * GROUP) << 16 | c);
        for (const AsyncAccess& a : cell.reads)
          if (!m.knows(w, 0, a)) m.report(PENDING_READ, w, i, 0, a.at, TENSOR, int64_t(g * GROUP) << 16 | c);
      }
      cell = {};
    }
  }
}
// Notes an access to 16 lanes of a column; false: it must not happen, or sees nothing that is complete.
bool access(Machine& m, Warp& w, const Instruction& i, int lane, int row, uint32_t column, const AsyncAccess& by, bool reads,
            bool writes) {
  TensorMemory& t = tensor(w);
  const int64_t shown = int64_t(row) << 16 | column;
  if (row >= TensorMemory::ROWS || column >= uint32_t(TensorMemory::COLUMNS) || t.owner[column] < 0) {
    m.report(OUT_OF_BOUNDS, w, i, lane, -1, TENSOR, shown);
    return false;
  }
  if (!m.launch.races) return true;
  TensorMemory::Cell& c = t.cell[row / GROUP][column];
  // Products of one thread are made in the order in which it began them.
  auto waited = [&](const AsyncAccess& a) { return (a.stream == by.stream && a.stream >= TENSOR_STREAM) || m.knows(w, lane, a); };
  bool good = true;
  if (c.write.stream) {
    if (!waited(c.write)) m.report(NOT_WAITED, w, i, lane, c.write.at, TENSOR, shown), good = false;
  } else if (reads) m.report(UNINITIALISED, w, i, lane, -1, TENSOR, shown), good = false;
  if (writes) {
    for (const AsyncAccess& a : c.reads)
      if (!waited(a)) m.report(PENDING_READ, w, i, lane, a.at, TENSOR, shown), good = false;
    c.reads.clear();
    c.write = by;
  } else {
    auto same = std::find_if(c.reads.begin(), c.reads.end(), [&](auto& a) { return a.stream == by.stream; });
    if (same == c.reads.end()) c.reads.push_back(by);
    else *same = by;
  }
  return good;
}
// tcgen05.ld and .st. Shape 0, 32x32b: lane l of the warp has lane l of its quarter of tensor memory. Shape 1, 16x32bx2:
// lanes 0-15 and 16-31 both have lanes 0-15 (or 16-31) of it, the second half `target` columns further. With 2 beside it (pack,
// unpack), a register has the low halves of two columns.
template <bool STORE> void move(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  const uint32_t address = address_of(w, i, 0);
  for (int l = 1; l < LANES; l++)
    if (address_of(w, i, l) != address) m.fail(i, "the lanes of a warp name different addresses");
  const int row = int(address >> 16), quarter = w.index % 4 * 32;
  const uint32_t column = address & 0xffff;
  const bool halves = i.mode & 1, packed = i.mode & 2;
  if (row != quarter && !(halves && row == quarter + 16)) m.fail(i, "a warp reaches only its own quarter of tensor memory");
  const int stream = (STORE ? STORE_STREAM : LOAD_STREAM) + w.index;
  const AsyncAccess by{stream, ++w.block->async.serial, m.place(i)};
  w.async.last[STORE ? 2 : 1] = by.serial;
  TensorMemory& t = tensor(w);
  const int32_t* list = m.launch.lists + i.list;
  for (int k = 0; k < i.count; k++)
    for (int half = 0; half < 2; half++) {
      const uint32_t at = column + (packed ? 2 * k : k) + (halves && half ? i.target : 0);
      const int first = row + (!halves && half ? GROUP : 0);
      bool good = access(m, w, i, half * GROUP, first, at, by, !STORE, STORE);
      if (packed) good &= access(m, w, i, half * GROUP, first, at + 1, by, !STORE, STORE);
      const bool inside = first + GROUP <= TensorMemory::ROWS && at + packed < uint32_t(TensorMemory::COLUMNS);
      for (int n = 0; n < GROUP; n++) {
        uint32_t& mine = w.reg<uint32_t>(list[k])[half * GROUP + n];
        uint32_t* there = &t.value[first + n][at];
        if (STORE && inside && packed) there[0] = mine & 0xffff, there[1] = mine >> 16;
        else if (STORE && inside) *there = mine;
        if (!STORE) mine = !good ? ~0u : packed ? (there[0] & 0xffff) | there[1] << 16 : *there;
      }
    }
}
void wait(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  whole_warp(m, w, i, mask);
  w.async.done[i.mode] = w.async.last[i.mode];
}
// The factor a in tensor memory: in the lanes of d, 32 bytes from the column on.
void read_tensor(Machine& m, Warp& w, const Instruction& i, int lane, uint32_t address, int32_t type, int rows, bool negative,
                 AsyncAccess by, float (*out)[DEEPEST]) {
  TensorMemory& t = tensor(w);
  const int bytes = bytes_of(type);
  for (int g = 0; g < rows / GROUP; g++)
    for (uint32_t c = 0; c < 8; c++) {
      const int first = int(address >> 16) + (rows == 64 ? 2 * GROUP : GROUP) * g;
      const bool good = access(m, w, i, lane, first, (address & 0xffff) + c, by, true, false);
      for (int n = 0; n < GROUP; n++) {
        uint8_t raw[4];
        std::memcpy(raw, &t.value[(first + n) % TensorMemory::ROWS][((address & 0xffff) + c) % TensorMemory::COLUMNS], 4);
        for (int k = 0; k < 4 / bytes; k++) {
          const float x = good ? number(raw + k * bytes, type) : std::nanf("");
          out[GROUP * g + n][int(c) * 4 / bytes + k] = negative ? -x : x;
        }
      }
    }
}
// With a scale for each block of a row of a and of a column of b (.block_scale). `mode`: 1 for numbers of 4 bits; `count` - 1
// scales belong to a row, a byte each from SFA_ID (SFB_ID) on, of a column of tensor memory for each 32 rows.
void mma_scaled(Machine& m, Warp& w, const Instruction& i, int lane, uint32_t what, uint32_t address, int columns, int rows) {
  const bool fours = i.mode & 1, power = what >> 23 & 1;
  const int blocks = i.count - 1, depth = fours ? 64 : 32;
  const uint32_t type_a = what >> 7 & 7, type_b = what >> 10 & 7;
  const bool known = fours ? type_a == 1 && type_b == 1 && !(what >> 15 & 3) && (power || blocks == 4) : type_a < 2 && type_b < 2 && power;
  if (!known || (what & 0x8700004f) || rows != 128 || columns < 8 || columns > 256 || address >> 16)
    m.fail(i, "the machine does not know this instruction descriptor");
  const AsyncAccess by{TENSOR_STREAM + w.index * LANES + lane, ++w.block->async.serial, m.place(i)};
  TensorMemory& t = tensor(w);
  static thread_local float a[128][DEEPEST], b[256][DEEPEST];
  static thread_local double scales[2][256][4];
  auto type_of = [&](uint32_t type) -> int32_t { return fours ? U8 : type ? E5M2 : E4M3; };
  if (i.operand[0] >= 0) read(m, w, i, lane, w.reg<uint64_t>(i.operand[0])[lane], type_of(type_a), what >> 15 & 1, 0, rows, false, by, a);
  else read_tensor(m, w, i, lane, word(w, i, ADDRESS - 1, lane) + uint32_t(i.offset2), type_of(type_a), rows, false, by, a);
  read(m, w, i, lane, w.reg<uint64_t>(i.operand[1])[lane], type_of(type_b), what >> 16 & 1, 0, columns, false, by, b);
  auto unpack = [&](float* row) {
    for (int k = 31; fours && k >= 0; k--) {
      const uint32_t raw = std::isnan(row[k]) ? 0 : uint32_t(row[k]);
      row[2 * k + 1] = float(widened_four(raw >> 4)), row[2 * k] = float(widened_four(raw & 15));
    }
  };
  for (int r = 0; r < rows; r++) unpack(a[r]);
  for (int c = 0; c < columns; c++) unpack(b[c]);
  for (int side = 0; side < 2; side++) {
    const uint32_t from = word(w, i, 4 + side, lane) + uint32_t(side ? i.width : i.target), id = what >> (side ? 4 : 29) & 3;
    for (int n = 0; n < (side ? columns : rows); n++) {
      const uint32_t column = (from & 0xffff) + uint32_t(n / 32);
      const bool good = n % GROUP || access(m, w, i, lane, n % 32, column, by, true, false);
      for (int j = 0; j < blocks; j++)
        scales[side][n][j] = good ? scale_of(uint8_t(t.value[n % 32][column % TensorMemory::COLUMNS] >> 8 * (id + uint32_t(j))), power) : std::nan("");
    }
  }
  const bool adds = word(w, i, 3, 0) >> lane & 1;
  const float sign = (what >> 13 & 1) != (what >> 14 & 1) ? -1 : 1;
  for (int g = 0; g < rows / GROUP; g++)
    for (int c = 0; c < columns; c++) {
      access(m, w, i, lane, GROUP * g, address + uint32_t(c), by, adds, true);
      if (address + uint32_t(c) >= uint32_t(TensorMemory::COLUMNS)) break;
      for (int n = 0; n < GROUP; n++) {
        uint32_t& d = t.value[GROUP * g + n][address + uint32_t(c)];
        const double sum = scaled_product(a[GROUP * g + n], b[c], depth, scales[0][GROUP * g + n], scales[1][c], blocks);
        d = bits<uint32_t>(canonical(float(sign * sum + (adds ? double(bits<float>(d)) : 0.0))));
      }
    }
}
// tcgen05.mma: operands are the descriptors of a and b, the instruction descriptor, the predicate by which d is added.
// The 64 rows of a smaller d lie in 16 lanes of each quarter.
void mma(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++) {
    if (!on(mask, l)) continue;
    const uint32_t what = word(w, i, 2, l), address = address_of(w, i, l);
    const int columns = int(what >> 17 & 63) * 8, rows = int(what >> 24 & 31) * 16;
    if (i.count > 1) {
      mma_scaled(m, w, i, l, what, address, columns, rows);
      continue;
    }
    const uint32_t type_a = what >> 7 & 7, type_b = what >> 10 & 7, type_d = what >> 4 & 3;
    const bool eights = i.type == E4M3, whole = i.type == S8;
    const bool known = i.type == TF32  ? type_a == 2 && type_b == 2 && type_d == 1
                       : eights        ? type_a < 2 && type_b < 2 && type_d < 2
                       : whole         ? type_a < 2 && type_b < 2 && type_d == 2
                                       : type_a < 2 && type_b == type_a && (type_d == 1 || (type_d == 0 && type_a == 0));
    if ((what & 7) || (what & 8 && !whole) || (what & 0xe0800040) || !known || (rows != 64 && rows != 128) ||
        columns < 8 || columns > 256 || (rows == 128 && columns % 16))
      m.fail(i, "the machine does not know this instruction descriptor");
    auto type_of = [&](uint32_t t) -> int32_t { return i.type == TF32 ? TF32 : eights ? (t ? E5M2 : E4M3) : whole ? (t ? S8 : U8) : t ? BF16 : F16; };
    const int32_t type = type_of(type_a), out = type_d == 0 ? F16 : type_d == 1 ? F32 : S32;
    if (type == TF32 && (what >> 15 & 3)) m.fail(i, "the machine does not know transposed matrices of tf32");
    const int depth = 32 / bytes_of(type), first = int(address >> 16);
    const uint32_t column = address & 0xffff;
    if (first % 128 != 0 && !(rows == 64 && first == GROUP)) m.fail(i, "d starts at a lane that the machine does not know");
    const AsyncAccess by{TENSOR_STREAM + w.index * LANES + l, ++w.block->async.serial, m.place(i)};
    TensorMemory& t = tensor(w);
    static thread_local float a[128][DEEPEST], b[256][DEEPEST];
    if (i.operand[0] >= 0) read(m, w, i, l, w.reg<uint64_t>(i.operand[0])[l], type, what >> 15 & 1, 0, rows, what >> 13 & 1, by, a);
    else {  // in tensor memory: the lanes of d, 32 bytes from the column on
      const uint32_t there = word(w, i, ADDRESS - 1, l) + uint32_t(i.offset2);
      read_tensor(m, w, i, l, there, type, rows, what >> 13 & 1, by, a);
    }
    read(m, w, i, l, w.reg<uint64_t>(i.operand[1])[l], type_of(type_b), what >> 16 & 1, 0, columns, what >> 14 & 1, by, b);
    const bool adds = word(w, i, 3, 0) >> l & 1;
    for (int g = 0; g < rows / GROUP; g++) {
      const int lane = first + (rows == 64 ? 2 * GROUP : GROUP) * g;
      for (int c = 0; c < columns; c++) {
        if (column + c >= uint32_t(TensorMemory::COLUMNS)) {
          access(m, w, i, l, lane, column + c, by, adds, true);
          break;
        }
        access(m, w, i, l, lane, column + c, by, adds, true);
        for (int n = 0; n < GROUP; n++) {
          uint32_t& d = t.value[lane + n][column + c];
          d = product(a[GROUP * g + n], b[c], depth, d, adds, out, what & 8);
        }
      }
    }
  }
}
void commit(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) m.tensor_commit(w, i, l, address_of(w, i, l), TENSOR_STREAM + w.index * LANES + l);
}

}  // namespace

Handler tensor_handler_of(const Instruction& i) {
  switch (i.operation) {
    case PROXY_FENCE: return proxy_fence;
    case WGMMA: return wgmma;
    case WGMMA_FENCE: return wgmma_fence;
    case WGMMA_COMMIT: return wgmma_commit;
    case WGMMA_WAIT: return wgmma_wait;
    case MBARRIER_INIT: return mbarrier_init;
    case MBARRIER_INVAL: return mbarrier_inval;
    case MBARRIER_ARRIVE: return mbarrier_arrive;
    case MBARRIER_WAIT: return mbarrier_wait;
    case TENSOR_ALLOC: return alloc;
    case TENSOR_DEALLOC: return dealloc;
    case TENSOR_MMA: return mma;
    case TENSOR_COMMIT: return commit;
    case TENSOR_LOAD: return move<false>;
    case TENSOR_STORE: return move<true>;
    case TENSOR_WAIT: return wait;
    default: return nullptr;
  }
}
