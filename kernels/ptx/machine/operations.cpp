// One handler per operation and type: what an instruction does to the registers of a warp.
#include <cstring>
#include <utility>

#include "machine.h"
#include "numbers.h"

namespace {

constexpr int ADDRESS = OPERANDS - 1, ADDRESS2 = OPERANDS - 2;

bool on(uint32_t mask, int lane) { return mask >> lane & 1; }

uint64_t address_of(Warp& w, const Instruction& i, int lane) {
  const int32_t place = i.operand[ADDRESS];
  return (i.wide ? w.reg<uint64_t>(place)[lane] : w.reg<uint32_t>(place)[lane]) + uint64_t(i.offset);
}

// Lane-wise arithmetic: D = F(A...). The loop over all lanes is the common case, and is vectorised.
template <class F, class D, class... A> void loop(uint32_t mask, D* d, A*... a) {
  if (mask == ALL_LANES) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; l++) d[l] = F()(a[l]...);
  } else {
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) d[l] = F()(a[l]...);
  }
}
template <class F, class D, class... A, size_t... K>
void spread(Warp& w, const Instruction& i, uint32_t mask, std::index_sequence<K...>) {
  loop<F, D, A...>(mask, w.reg<D>(i.operand[0]), w.reg<A>(i.operand[1 + K])...);
}
template <class F, class D, class... A> void lanes(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  spread<F, D, A...>(w, i, mask, std::index_sequence_for<A...>());
}

// F with N operands of the type of the result.
template <class F, class T, int N> Handler same() {
  if constexpr (N == 1) return lanes<F, T, T>;
  else if constexpr (N == 2) return lanes<F, T, T, T>;
  else return lanes<F, T, T, T, T>;
}
template <template <class> class F, int N> Handler integers(int32_t type) {
  switch (type) {
    case U16: return same<F<uint16_t>, uint16_t, N>();
    case S16: return same<F<int16_t>, int16_t, N>();
    case U32: return same<F<uint32_t>, uint32_t, N>();
    case S32: return same<F<int32_t>, int32_t, N>();
    case U64: return same<F<uint64_t>, uint64_t, N>();
    case S64: return same<F<int64_t>, int64_t, N>();
    default: return nullptr;
  }
}
enum { FTZ = 1, NAN_WINS = 2 };  // modes of floating-point arithmetic, as in decode.py
template <template <class> class F, int N> Handler wide_floats(const Instruction& i) {
  switch (i.type) {
    case F32: return i.mode & FTZ ? same<Flushed<F<float>>, float, N>() : same<F<float>, float, N>();
    case F64: return same<F<double>, double, N>();
    default: return nullptr;
  }
}
template <template <class> class F, int N> Handler floats(const Instruction& i) {
  switch (i.type) {
    case F16: return same<F<Half>, Half, N>();
    case BF16: return same<F<Brain>, Brain, N>();
    case F16X2: return same<Pair<Half, F<Half>>, uint32_t, N>();
    case BF16X2: return same<Pair<Brain, F<Brain>>, uint32_t, N>();
    case F32X2: return same<Pair<float, F<float>>, uint64_t, N>();
    default: return wide_floats<F, N>(i);
  }
}
template <template <class> class F, int N> Handler numbers(const Instruction& i) {
  Handler found = integers<F, N>(i.type);
  return found ? found : floats<F, N>(i);
}
template <template <class> class F> Handler shifts(int32_t type) {
  switch (type) {
    case U16: return lanes<F<uint16_t>, uint16_t, uint16_t, uint32_t>;
    case S16: return lanes<F<int16_t>, int16_t, int16_t, uint32_t>;
    case U32: return lanes<F<uint32_t>, uint32_t, uint32_t, uint32_t>;
    case S32: return lanes<F<int32_t>, int32_t, int32_t, uint32_t>;
    case U64: return lanes<F<uint64_t>, uint64_t, uint64_t, uint32_t>;
    case S64: return lanes<F<int64_t>, int64_t, int64_t, uint32_t>;
    default: return nullptr;
  }
}
template <template <class> class F, bool ADDS> Handler widening(int32_t type) {
  auto of = [](auto zero) -> Handler {
    using T = decltype(zero);
    if constexpr (ADDS) return lanes<F<T>, Twice<T>, T, T, Twice<T>>;
    else return lanes<F<T>, Twice<T>, T, T>;
  };
  switch (type) {
    case U16: return of(uint16_t());
    case S16: return of(int16_t());
    case U32: return of(uint32_t());
    case S32: return of(int32_t());
    default: return nullptr;
  }
}
template <template <class> class F> Handler counting(int32_t type) {
  return type == U32 ? lanes<F<uint32_t>, uint32_t, uint32_t> : type == U64 ? lanes<F<uint64_t>, uint32_t, uint64_t> : nullptr;
}
template <template <class> class F> Handler fields(int32_t type) {
  switch (type) {
    case U32: return lanes<F<uint32_t>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case S32: return lanes<F<int32_t>, int32_t, int32_t, uint32_t, uint32_t>;
    case U64: return lanes<F<uint64_t>, uint64_t, uint64_t, uint32_t, uint32_t>;
    case S64: return lanes<F<int64_t>, int64_t, int64_t, uint32_t, uint32_t>;
    default: return nullptr;
  }
}

// Predicates: one bit per lane.
template <class F> void predicates(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  uint32_t value = F()(*w.reg<uint32_t>(i.operand[1]), *w.reg<uint32_t>(i.operand[2]));
  *d = (*d & ~mask) | (value & mask);
}
template <template <class> class F, int N> Handler bitwise(int32_t type) {
  if (type == PRED) {
    if constexpr (N == 2) return predicates<F<uint32_t>>;
    else return predicates<decltype([](uint32_t a, uint32_t) { return F<uint32_t>()(a); })>;
  }
  return integers<F, N>(type);
}
template <class T> void set_predicate(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  const T *a = w.reg<T>(i.operand[1]), *b = w.reg<T>(i.operand[2]);
  uint32_t out = 0;
  auto all = [&](auto how) {
    for (int l = 0; l < LANES; l++) out |= uint32_t(compare<T>(how, a[l], b[l])) << l;
  };
  using std::integral_constant;
  switch (i.mode) {
    case 0: all(integral_constant<int, 0>()); break;
    case 1: all(integral_constant<int, 1>()); break;
    case 2: all(integral_constant<int, 2>()); break;
    case 3: all(integral_constant<int, 3>()); break;
    case 4: all(integral_constant<int, 4>()); break;
    case 5: all(integral_constant<int, 5>()); break;
    default: all(i.mode);
  }
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  *d = (*d & ~mask) | (out & mask);
}
Handler set_predicate_of(int32_t type) {
  switch (type) {
    case U16: return set_predicate<uint16_t>;
    case S16: return set_predicate<int16_t>;
    case U32: return set_predicate<uint32_t>;
    case S32: return set_predicate<int32_t>;
    case U64: return set_predicate<uint64_t>;
    case S64: return set_predicate<int64_t>;
    case F16: return set_predicate<Half>;
    case BF16: return set_predicate<Brain>;
    case F32: return set_predicate<float>;
    case F64: return set_predicate<double>;
    default: return nullptr;
  }
}
template <class T> void select(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  T* d = w.reg<T>(i.operand[0]);
  const T *a = w.reg<T>(i.operand[1]), *b = w.reg<T>(i.operand[2]);
  const uint32_t p = *w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = on(p, l) ? a[l] : b[l];
}
Handler by_width(int bytes, Handler two, Handler four, Handler eight) {
  return bytes == 2 ? two : bytes == 4 ? four : bytes == 8 ? eight : nullptr;
}
int bytes_of(int32_t type) {
  switch (type) {
    case U8: case S8: return 1;
    case U16: case S16: case F16: case BF16: return 2;
    case U32: case S32: case F32: case TF32: case F16X2: case BF16X2: return 4;
    case U64: case S64: case F64: case F32X2: return 8;
    default: return 0;
  }
}

uint64_t load(const uint8_t* from, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}
// Registers of any width, one lane.
uint64_t get(Warp& w, int32_t place, int bytes, int lane) { return load(w.registers + place + lane * bytes, bytes); }
void set(Warp& w, int32_t place, int bytes, int lane, uint64_t value) {
  std::memcpy(w.registers + place + lane * bytes, &value, bytes);
}

// mov {a, b}, c and mov c, {a, b}: the narrow registers have `width` bytes, `count` of them.
void unpack(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      const uint64_t value = get(w, i.operand[i.count], i.width * i.count, l);
      for (int k = 0; k < i.count; k++)
        if (i.operand[k] >= 0) set(w, i.operand[k], i.width, l, value >> 8 * i.width * k);
    }
}
void pack(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint64_t value = 0;
      for (int k = 0; k < i.count; k++) value |= get(w, i.operand[1 + k], i.width, l) << 8 * i.width * k;
      set(w, i.operand[0], i.width * i.count, l, value);
    }
}

template <uint32_t (*F)(uint32_t, uint32_t, uint32_t, uint32_t)>
void table(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  const uint32_t *a = w.reg<uint32_t>(i.operand[1]), *b = w.reg<uint32_t>(i.operand[2]), *c = w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = F(a[l], b[l], c[l], uint32_t(i.mode));
}
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t truth) {
  uint32_t out = 0;
  for (int k = 0; k < 8; k++)
    if (truth >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return out;
}
template <class T> void insert(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  T* d = w.reg<T>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l))
      d[l] = Bfi<T>()(w.reg<T>(i.operand[1])[l], w.reg<T>(i.operand[2])[l], w.reg<uint32_t>(i.operand[3])[l],
                      w.reg<uint32_t>(i.operand[4])[l]);
}

// cvt. A mode is a rounding (0: .rn, 1: .rz, 2: .rm, 3: .rp, 4: .rna) and three flags.
enum { ROUNDING = 7, TO_INTEGRAL = 8, SATURATE = 16, FLUSH = 32 };

bool is_floating(int32_t type) { return type == F16 || type == BF16 || type == F32 || type == F64; }
bool is_signed(int32_t type) { return type == S8 || type == S16 || type == S32 || type == S64; }

int64_t whole(uint64_t raw, int32_t type) {
  switch (type) {
    case U8: return uint8_t(raw);
    case S8: return int8_t(raw);
    case U16: return uint16_t(raw);
    case S16: return int16_t(raw);
    case U32: return uint32_t(raw);
    case S32: return int32_t(raw);
    default: return int64_t(raw);
  }
}
double real(uint64_t raw, int32_t type) {
  switch (type) {
    case F16: return bits<Half>(uint16_t(raw));
    case BF16: return bits<Brain>(uint16_t(raw));
    case F32: return bits<float>(uint32_t(raw));
    default: return bits<double>(raw);
  }
}
// Towards zero: the nearest value, one step back if it is larger in size.
template <class Raw, class T> uint64_t to_zero(double x) {
  Raw raw = bits<Raw>(T(x));
  if (std::fabs(double(bits<T>(raw))) > std::fabs(x)) raw--;
  return raw;
}
uint64_t rounded(double x, int32_t type, int rounding) {
  switch (type) {
    case F16: return rounding == 1 ? to_zero<uint16_t, Half>(x) : Half(x).raw;
    case BF16: return rounding == 1 ? to_zero<uint16_t, Brain>(x) : Brain(x).raw;
    case F32: return rounding == 1 ? to_zero<uint32_t, float>(x) : bits<uint32_t>(float(x));
    default: return bits<uint64_t>(x);
  }
}
uint64_t saturated_to(double x, int32_t type) {
  switch (type) {
    case U8: return saturated<uint8_t>(x);
    case S8: return uint64_t(int64_t(saturated<int8_t>(x)));
    case U16: return saturated<uint16_t>(x);
    case S16: return uint64_t(int64_t(saturated<int16_t>(x)));
    case U32: return saturated<uint32_t>(x);
    case S32: return uint64_t(int64_t(saturated<int32_t>(x)));
    case U64: return saturated<uint64_t>(x);
    default: return uint64_t(saturated<int64_t>(x));
  }
}
uint64_t converted(uint64_t raw, const Instruction& i) {
  const int rounding = i.mode & ROUNDING;
  if (!is_floating(i.from)) {
    const int64_t value = whole(raw, i.from);
    if (!is_floating(i.type)) return uint64_t(value);
    // One rounding: f64 holds only 53 bits of a 64-bit integer.
    if (i.type == F32) return bits<uint32_t>(i.from == U64 ? float(uint64_t(value)) : float(value));
    if (i.type == F64) return bits<uint64_t>(i.from == U64 ? double(uint64_t(value)) : double(value));
    return rounded(double(value), i.type, rounding);
  }
  double x = real(raw, i.from);
  if (i.mode & FLUSH && i.from == F32) x = flushed(float(x));
  if (!is_floating(i.type)) return saturated_to(integral(rounding, x), i.type);
  if (i.mode & TO_INTEGRAL) x = integral(rounding, x);
  if (i.mode & SATURATE) x = std::isnan(x) ? 0 : std::fmin(std::fmax(x, 0.0), 1.0);
  uint64_t out = rounded(x, i.type, i.mode & TO_INTEGRAL ? 0 : rounding);
  return i.mode & FLUSH && i.type == F32 ? bits<uint32_t>(flushed(bits<float>(uint32_t(out)))) : out;
}
// `count` and `width`: bytes of the source's and of the result's register, which may be wider than their types.
void convert(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint64_t out = converted(get(w, i.operand[1], i.count, l), i);
      const int bytes = bytes_of(i.type);
      if (!is_signed(i.type) && bytes < 8) out &= (uint64_t(1) << 8 * bytes) - 1;
      set(w, i.operand[0], i.width, l, out);
    }
}
template <class To, class From> struct Narrow { To operator()(From a) const { return To(a); } };
template <class From> struct Widen { float operator()(From a) const { return float(double(a)); } };
struct Away { uint32_t operator()(uint32_t a) const { return tf32_away(a); } };
struct Even { uint32_t operator()(uint32_t a) const { return tf32_even(a); } };
// cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half.
template <class T> struct Two {
  uint32_t operator()(float a, float b) const { return uint32_t(T(a).raw) << 16 | T(b).raw; }
};
Handler convert_of(const Instruction& i) {
  if (i.type == TF32) return (i.mode & ROUNDING) == 4 ? lanes<Away, uint32_t, uint32_t> : lanes<Even, uint32_t, uint32_t>;
  if (i.count != bytes_of(i.from) || i.width != bytes_of(i.type)) return convert;  // wider registers
  if (!i.mode && i.from == F32 && i.type == BF16) return lanes<Narrow<Brain, float>, Brain, float>;
  if (!i.mode && i.from == F32 && i.type == F16) return lanes<Narrow<Half, float>, Half, float>;
  if (!i.mode && i.from == BF16 && i.type == F32) return lanes<Widen<Brain>, float, Brain>;
  if (!i.mode && i.from == F16 && i.type == F32) return lanes<Widen<Half>, float, Half>;
  return convert;
}

// Operations of a warp as a whole --------------------------------------------------------------------------------

void need(Machine& m, Warp& w, const Instruction& i, uint32_t mask, int operand) {
  uint32_t members = 0;
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) members |= w.reg<uint32_t>(i.operand[operand])[l];
  if ((members & w.alive) != mask) m.fail(i, "the lanes of the member mask do not all execute it");
}
// shfl: mode 0 bfly, 1 up, 2 down, 3 idx. Operands: result, source, b, c, member mask, predicate of the result or -1.
void shuffle(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 4);
  uint32_t out[LANES], valid = 0;
  const uint32_t *a = w.reg<uint32_t>(i.operand[1]), *b = w.reg<uint32_t>(i.operand[2]), *c = w.reg<uint32_t>(i.operand[3]);
  for (int l = 0; l < LANES; l++) {
    const int n = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
    const int last = (l & segment) | (clamp & ~segment), first = l & segment;
    int from = l;
    bool ok = true;
    switch (i.mode) {
      case 0: from = l ^ n, ok = from <= last; break;
      case 1: from = l - n, ok = from >= last; break;
      case 2: from = l + n, ok = from <= last; break;
      default: from = first | (n & ~segment), ok = from <= last;
    }
    if (ok && on(mask, l) && !on(mask, from)) m.fail(i, "a lane reads from a lane that does not take part");
    out[l] = a[ok ? from : l];
    valid |= uint32_t(ok) << l;
  }
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = out[l];
  if (i.operand[5] >= 0) {
    uint32_t* p = w.reg<uint32_t>(i.operand[5]);
    *p = (*p & ~mask) | (valid & mask);
  }
}
// vote: mode 0 all, 1 any, 2 uni, 3 ballot. Operands: result, predicate, member mask.
void vote(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  uint32_t p = *w.reg<uint32_t>(i.operand[1]);
  if (i.wide) p = ~p;
  p &= mask;
  if (i.mode == 3) {
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = p;
    return;
  }
  const bool yes = i.mode == 0 ? p == mask : i.mode == 1 ? p != 0 : p == mask || p == 0;
  uint32_t* d = w.reg<uint32_t>(i.operand[0]);
  *d = yes ? *d | mask : *d & ~mask;
}
// redux: mode 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor.
template <class T> void reduce(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  const T* a = w.reg<T>(i.operand[1]);
  T sum = a[__builtin_ctz(mask)];
  for (int l = __builtin_ctz(mask) + 1; l < LANES; l++)
    if (on(mask, l)) switch (i.mode) {
        case 0: sum = Add<T>()(sum, a[l]); break;
        case 1: sum = std::min(sum, a[l]); break;
        case 2: sum = std::max(sum, a[l]); break;
        case 3: sum &= a[l]; break;
        case 4: sum |= a[l]; break;
        default: sum ^= a[l];
      }
  T* d = w.reg<T>(i.operand[0]);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) d[l] = sum;
}
void elect(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 2);
  const int leader = __builtin_ctz(mask);
  if (i.operand[0] >= 0)
    for (int l = 0; l < LANES; l++)
      if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = leader;
  uint32_t* p = w.reg<uint32_t>(i.operand[1]);
  *p = (*p & ~mask) | 1u << leader;
}
void active_mask(Machine&, Warp& w, const Instruction& i, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.reg<uint32_t>(i.operand[0])[l] = mask;
}
void warp_sync(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  need(m, w, i, mask, 0);
  if (mask != w.alive) m.fail(i, "bar.warp.sync of a part of a warp");
  m.warp_sync(w);
}
void fence(Machine& m, Warp& w, const Instruction& i, uint32_t mask) { m.fence(w, i, mask); }

// The layouts of mma.sync fragments: lane l holds rows l / 4 (+ 8) and columns from l % 4 on. Operands: d 0-3, a, b, c.
// The sum is formed in f64 and rounded once; tensor cores add in an order and width that NVIDIA does not tell.
template <class T> void mma(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "mma.sync needs all lanes of a warp");
  constexpr int PER = sizeof(T) == 2 ? 2 : 1;  // values in a register
  const int k_size = i.count, a_registers = 16 * k_size / (LANES * PER), b_registers = 8 * k_size / (LANES * PER);
  const int step = 4 * PER;  // columns of a that one register of all lanes covers
  float a[16][16], b[8][16];
  auto value = [](uint32_t raw, int half) {
    if constexpr (PER == 1) return bits<float>(raw & ~0x1fffu);
    else return float(double(bits<T>(uint16_t(raw >> 16 * half))));
  };
  for (int l = 0; l < LANES; l++) {
    const int row = l / 4, column = l % 4 * PER;
    for (int r = 0; r < a_registers; r++)
      for (int h = 0; h < PER; h++)
        a[row + 8 * (r & 1)][column + h + step * (r >> 1)] = value(w.reg<uint32_t>(i.operand[4 + r])[l], h);
    for (int r = 0; r < b_registers; r++)
      for (int h = 0; h < PER; h++)
        b[row][column + h + step * r] = value(w.reg<uint32_t>(i.operand[4 + a_registers + r])[l], h);
  }
  const int32_t *c = i.operand + 4 + a_registers + b_registers, *d = i.operand;
  float out[4][LANES];
  for (int l = 0; l < LANES; l++)
    for (int r = 0; r < 4; r++) {
      const int row = l / 4 + 8 * (r >> 1), column = l % 4 * 2 + (r & 1);
      double sum = 0;
      for (int k = 0; k < k_size; k++) sum += double(a[row][k]) * double(b[column][k]);
      out[r][l] = float(sum + double(w.reg<float>(c[r])[l]));
    }
  for (int r = 0; r < 4; r++) std::memcpy(w.reg<float>(d[r]), out[r], sizeof out[r]);
}

// Memory -----------------------------------------------------------------------------------------------------------

// Bytes in memory are of `type`, `count` of them per lane; registers have `width` bytes.
void fill(Warp& w, const Instruction& i, int lane, const uint8_t* from) {
  const int bytes = bytes_of(i.type);
  for (int k = 0; k < i.count; k++) {
    uint64_t value = from ? load(from + k * bytes, bytes) : ~uint64_t(0);
    if (is_signed(i.type)) value = uint64_t(whole(value, i.type));
    if (i.operand[k] >= 0) set(w, i.operand[k], i.width, lane, value);
  }
}
void take(Warp& w, const Instruction& i, int lane, uint8_t* to) {
  const int bytes = bytes_of(i.type);
  for (int k = 0; k < i.count; k++) std::memcpy(to + k * bytes, w.registers + i.operand[k] + lane * i.width, bytes);
}

template <bool STORE> void global(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int size = bytes_of(i.type) * i.count;
  uint64_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = address_of(w, i, l);
  m.count_sectors(i, addresses, mask, size);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[32];
      if (STORE) take(w, i, l, data);
      uint8_t* p = i.order == WEAK ? m.global(w, i, l, addresses[l], size, STORE, STORE ? data : nullptr)
                                   : m.strong(w, i, l, addresses[l], size, !STORE, STORE);
      if (!STORE) fill(w, i, l, p);
      else if (p) std::memcpy(p, data, size);
    }
}
template <bool STORE> void shared(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  const int size = bytes_of(i.type) * i.count;
  uint32_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = uint32_t(address_of(w, i, l));
  m.count_wavefronts(i, addresses, mask, size);
  // Many lanes read the same address. The detector sees two of them, and that is "several".
  uint32_t seen[64], times[64];
  if (!STORE) std::fill(seen, seen + 64, ~0u);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[32];
      if (STORE) take(w, i, l, data);
      const int slot = addresses[l] / size % 64;
      if (!STORE && seen[slot] == addresses[l] && ++times[slot] > 2) {
        fill(w, i, l, uint64_t(addresses[l]) + size <= w.block->shared.size() ? &w.block->shared[addresses[l]] : nullptr);
        continue;
      }
      if (!STORE && seen[slot] != addresses[l]) seen[slot] = addresses[l], times[slot] = 1;
      uint8_t* p = m.shared(w, i, l, addresses[l], size, STORE, STORE ? data : nullptr);
      if (!STORE) fill(w, i, l, p);
      else if (p) std::memcpy(p, data, size);
    }
}

// atom and red: mode 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor, 6 exch, 7 cas, 8 inc, 9 dec. Operands: result or -1, b, c.
template <class T> T changed(int mode, T old, T b, T c) {
  if (mode == 0) return Add<T>()(old, b);
  if (mode == 6) return b;
  if constexpr (std::is_integral_v<T>) switch (mode) {
      case 1: return std::min(old, b);
      case 2: return std::max(old, b);
      case 3: return old & b;
      case 4: return old | b;
      case 5: return old ^ b;
      case 7: return old == b ? c : old;
      case 8: return old >= b ? 0 : old + 1;
      case 9: return old == 0 || old > b ? b : old - 1;
    }
  return old;
}
template <class T, bool SHARED> void atomic(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint64_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = address_of(w, i, l);
  if (!SHARED) m.count_sectors(i, addresses, mask, sizeof(T));
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t* p = SHARED ? m.shared_strong(w, i, l, uint32_t(addresses[l]), sizeof(T))
                          : m.strong(w, i, l, addresses[l], sizeof(T), true, true);
      if (!p) continue;
      T old, b = w.reg<T>(i.operand[1])[l], c = b;
      if (i.mode == 7) c = w.reg<T>(i.operand[2])[l];
      std::memcpy(&old, p, sizeof old);
      const T value = changed<T>(i.mode, old, b, c);
      std::memcpy(p, &value, sizeof value);
      if (i.operand[0] >= 0) w.reg<T>(i.operand[0])[l] = old;
    }
}
template <bool SHARED> Handler atomic_of(int32_t type) {
  switch (type) {
    case U32: return atomic<uint32_t, SHARED>;
    case S32: return atomic<int32_t, SHARED>;
    case U64: return atomic<uint64_t, SHARED>;
    case S64: return atomic<int64_t, SHARED>;
    case F32: return atomic<float, SHARED>;
    case F64: return atomic<double, SHARED>;
    case F16: return atomic<Half, SHARED>;
    case BF16: return atomic<Brain, SHARED>;
    default: return nullptr;
  }
}

// cp.async: `count` bytes from the second address to the first; the last operand before the addresses is the number of
// bytes to read, the rest is zero.
void copy(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  uint64_t from[LANES];
  uint32_t reading = 0;
  for (int l = 0; l < LANES; l++) {
    from[l] = address_of(w, i, l);
    if (on(mask, l) && w.reg<uint32_t>(i.operand[0])[l]) reading |= 1u << l;
  }
  if (reading) m.count_sectors(i, from, reading, i.count);
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) {
      uint8_t data[16] = {};
      const int size = std::min<int>(w.reg<uint32_t>(i.operand[0])[l], i.count);
      if (size) {
        const uint8_t* p = m.global(w, i, l, from[l], i.count, false, nullptr);
        if (p) std::memcpy(data, p, size);
        else std::memset(data, 0xff, size);
      }
      const uint32_t to = w.reg<uint32_t>(i.operand[ADDRESS2])[l] + uint32_t(i.offset2);
      m.start_copy(w, i, l, to, i.count, data);
    }
}
void commit(Machine&, Warp& w, const Instruction&, uint32_t mask) {
  for (int l = 0; l < LANES; l++)
    if (on(mask, l)) w.groups[l]++;
}
// Waits until at most `count` groups are pending; -1: for all copies, committed or not.
void wait(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  auto stays = [&](const Copy& c) {
    return !on(mask, c.lane) || (i.count >= 0 && c.group + uint32_t(i.count) >= w.groups[c.lane]);
  };
  auto end = std::stable_partition(w.copies.begin(), w.copies.end(), stays);
  for (auto c = end; c != w.copies.end(); ++c) m.land(w, *c);
  w.copies.erase(end, w.copies.end());
}

// ldmatrix and stmatrix: 8 x 8 matrices of 16 bits; lanes 8 k .. 8 k + 7 give the row addresses of matrix k. Lane l has
// row l / 4, columns 2 (l % 4) and the next; with .trans (mode 1) rows and columns change places.
template <bool STORE> void matrix(Machine& m, Warp& w, const Instruction& i, uint32_t mask) {
  if (mask != ALL_LANES) m.fail(i, "needs all lanes of a warp");
  uint32_t addresses[LANES];
  for (int l = 0; l < LANES; l++) addresses[l] = uint32_t(address_of(w, i, l));
  for (int k = 0; k < i.count; k++) {
    m.count_wavefronts(i, addresses, 0xffu << 8 * k, 16);
    uint16_t values[8][8];
    uint32_t* r = w.reg<uint32_t>(i.operand[k]);
    auto each = [&](auto move) {
      for (int l = 0; l < LANES; l++)
        for (int h = 0; h < 2; h++) {
          const int row = l / 4, column = l % 4 * 2 + h;
          move(i.mode ? values[column][row] : values[row][column], l, h);
        }
    };
    if (STORE) each([&](uint16_t& v, int l, int h) { v = uint16_t(r[l] >> 16 * h); });
    for (int row = 0; row < 8; row++) {
      uint8_t* line = reinterpret_cast<uint8_t*>(values[row]);
      uint8_t* p = m.shared(w, i, 8 * k + row, addresses[8 * k + row], 16, STORE, STORE ? line : nullptr);
      if (STORE && p) std::memcpy(p, line, 16);
      if (!STORE) p ? std::memcpy(line, p, 16) : std::memset(line, 0xff, 16);
    }
    if (!STORE) each([&](uint16_t& v, int l, int h) { r[l] = h ? (r[l] & 0xffff) | uint32_t(v) << 16 : v; });
  }
}

void control(Machine&, Warp&, const Instruction&, uint32_t) {}  // Machine::step does these

template <template <class> class F> Handler mixed2(int32_t from) {
  return from == F16 ? lanes<F<Half>, float, Half, float> : from == BF16 ? lanes<F<Brain>, float, Brain, float> : nullptr;
}

}  // namespace

Handler handler_of(const Instruction& i) {
  const bool mixed = i.type == F32 && (i.from == F16 || i.from == BF16);
  switch (i.operation) {
    case MOV:
      if (i.type == PRED) return predicates<decltype([](uint32_t a, uint32_t) { return a; })>;
      return by_width(bytes_of(i.type), lanes<Move<uint16_t>, uint16_t, uint16_t>,
                      lanes<Move<uint32_t>, uint32_t, uint32_t>, lanes<Move<uint64_t>, uint64_t, uint64_t>);
    case PACK: return pack;
    case UNPACK: return unpack;
    case ADD: return mixed ? mixed2<MixedAdd>(i.from) : numbers<Add, 2>(i);
    case SUB: return mixed ? mixed2<MixedSub>(i.from) : numbers<Sub, 2>(i);
    case MUL: return numbers<Mul, 2>(i);
    case MULHI: return integers<MulHi, 2>(i.type);
    case MULWIDE: return widening<MulWide, false>(i.type);
    case MAD: return integers<Mad, 3>(i.type);
    case MADHI: return integers<MadHi, 3>(i.type);
    case MADWIDE: return widening<MadWide, true>(i.type);
    case DIV: {
      Handler found = integers<Div, 2>(i.type);
      return found ? found : wide_floats<Div, 2>(i);
    }
    case REM: return integers<Rem, 2>(i.type);
    case ABS: return numbers<Abs, 1>(i);
    case NEG: return numbers<Neg, 1>(i);
    case MIN: return i.mode & NAN_WINS ? floats<MinNan, 2>(i) : numbers<Min, 2>(i);
    case MAX: return i.mode & NAN_WINS ? floats<MaxNan, 2>(i) : numbers<Max, 2>(i);
    case AND: return bitwise<And, 2>(i.type);
    case OR: return bitwise<Or, 2>(i.type);
    case XOR: return bitwise<Xor, 2>(i.type);
    case NOT: return bitwise<Not, 1>(i.type);
    case SHL: return shifts<Shl>(i.type);
    case SHR: return shifts<Shr>(i.type);
    case SHF_LEFT: return i.mode ? lanes<Funnel<true, true>, uint32_t, uint32_t, uint32_t, uint32_t>
                                 : lanes<Funnel<true, false>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case SHF_RIGHT: return i.mode ? lanes<Funnel<false, true>, uint32_t, uint32_t, uint32_t, uint32_t>
                                  : lanes<Funnel<false, false>, uint32_t, uint32_t, uint32_t, uint32_t>;
    case BFE: return fields<Bfe>(i.type);
    case BFI: return i.type == U32 ? insert<uint32_t> : i.type == U64 ? insert<uint64_t> : nullptr;
    case BREV: return i.type == U32 || i.type == U64 ? integers<Brev, 1>(i.type) : nullptr;
    case CLZ: return counting<Clz>(i.type);
    case POPC: return counting<Popc>(i.type);
    case PRMT: return lanes<Prmt, uint32_t, uint32_t, uint32_t, uint32_t>;
    case LOP3: return table<lop3>;
    case SELP: return by_width(bytes_of(i.type), select<uint16_t>, select<uint32_t>, select<uint64_t>);
    case SETP: return set_predicate_of(i.type);
    case FMA:
      if (mixed) return i.from == F16 ? lanes<MixedFma<Half>, float, Half, Half, float>
                                      : lanes<MixedFma<Brain>, float, Brain, Brain, float>;
      return floats<Fma, 3>(i);
    case SQRT: return wide_floats<Sqrt, 1>(i);
    case RSQRT: return wide_floats<Rsqrt, 1>(i);
    case RCP: return wide_floats<Rcp, 1>(i);
    case EX2: return wide_floats<Ex2, 1>(i);
    case LG2: return wide_floats<Lg2, 1>(i);
    case SIN: return wide_floats<Sin, 1>(i);
    case COS: return wide_floats<Cos, 1>(i);
    case TANH: return wide_floats<Tanh, 1>(i);
    case COPYSIGN: return wide_floats<CopySign, 2>(i);
    case CVT: return convert_of(i);
    case CVT_PAIR: return i.type == F16X2 ? lanes<Two<Half>, uint32_t, float, float> : lanes<Two<Brain>, uint32_t, float, float>;
    case SHFL: return shuffle;
    case VOTE: return vote;
    case REDUX: return i.type == S32 ? reduce<int32_t> : reduce<uint32_t>;
    case ELECT: return elect;
    case ACTIVEMASK: return active_mask;
    case LOAD_GLOBAL: return global<false>;
    case STORE_GLOBAL: return global<true>;
    case LOAD_SHARED: return shared<false>;
    case STORE_SHARED: return shared<true>;
    case ATOM_GLOBAL: return atomic_of<false>(i.type);
    case ATOM_SHARED: return atomic_of<true>(i.type);
    case CP_ASYNC: return copy;
    case CP_COMMIT: return commit;
    case CP_WAIT: return wait;
    case LDMATRIX: return matrix<false>;
    case STMATRIX: return matrix<true>;
    case MMA: return i.from == F16 ? mma<Half> : i.from == BF16 ? mma<Brain> : i.from == TF32 ? mma<float> : nullptr;
    case FENCE: return fence;
    case WARP_SYNC: return warp_sync;
    case BARRIER: case BRANCH: case EXIT: case TRAP: return control;
    default: return nullptr;
  }
}
