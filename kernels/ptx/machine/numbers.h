// Number formats and the arithmetic of one lane. Results are rounded as PTX asks (.rn unless it says otherwise); where
// PTX allows an error (div.full, ex2.approx, ...) they are as exact as the C library's.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

template <class To, class From> To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The float next to x towards zero with an odd last bit, unless x is a float: rounding it once more is then the same
// as rounding x once.
inline float to_odd(double x) {
  float f = float(x);
  if (double(f) == x || std::isnan(x) || std::isinf(f)) return f;
  uint32_t u = bits<uint32_t>(f);
  if (std::fabs(double(f)) > std::fabs(x)) u--;
  return bits<float>(u | 1);
}

struct Half {
  uint16_t raw;
  Half() = default;
  explicit Half(double x) : raw(bits<uint16_t>(_Float16(x))) {}
  explicit Half(float x) : raw(bits<uint16_t>(_Float16(x))) {}
  operator double() const { return double(float(bits<_Float16>(raw))); }
};

struct Brain {
  uint16_t raw;
  Brain() = default;
  explicit Brain(double x) : Brain(to_odd(x)) {}
  explicit Brain(float x) {
    uint32_t u = bits<uint32_t>(x);
    raw = std::isnan(x) ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator double() const { return double(bits<float>(uint32_t(raw) << 16)); }
};

inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x; }

// tf32 keeps 10 of 23 mantissa bits. cvt.rna rounds half away from zero; mma ignores the low bits.
inline uint32_t tf32_away(uint32_t u) { return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0x1000) & ~0x1fffu; }
inline uint32_t tf32_even(uint32_t u) {
  return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0xfff + (u >> 13 & 1)) & ~0x1fffu;
}

template <class T> constexpr bool is_float = !std::is_integral_v<T>;
template <class T> constexpr int width_of = 8 * sizeof(T);
// Integers are computed without sign, so that overflow wraps. 16-bit products are made of 32-bit numbers for the same
// reason: C++ promotes them to int.
template <class T> using Wrap = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
template <class T>
using Twice = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

// Arithmetic on f16 and bf16 goes through double, in which products of two are exact.
template <class T> using Exact = std::conditional_t<sizeof(T) == 2 && is_float<T>, double, T>;
template <class T> using Unsigned = std::make_unsigned_t<T>;

template <class T> struct Add {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(Exact<T>(a) + Exact<T>(b));
    else return T(Wrap<T>(a) + Wrap<T>(b));
  }
};
template <class T> struct Sub {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(Exact<T>(a) - Exact<T>(b));
    else return T(Wrap<T>(a) - Wrap<T>(b));
  }
};
template <class T> struct Mul {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(Exact<T>(a) * Exact<T>(b));
    else return T(Wrap<T>(a) * Wrap<T>(b));
  }
};
template <class T> struct Div {
  T operator()(T a, T b) const {
    if constexpr (is_float<T>) return T(Exact<T>(a) / Exact<T>(b));
    else if (b == 0) return T(~T(0));  // PTX leaves it open; this is what GPUs give
    else if (std::is_signed_v<T> && b == T(-1)) return T(Wrap<T>(0) - Wrap<T>(a));
    else return T(a / b);
  }
};
template <class T> struct Rem {
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
template <class T> struct Fma {
  T operator()(T a, T b, T c) const { return T(std::fma(Exact<T>(a), Exact<T>(b), Exact<T>(c))); }
};
template <class T> struct MulHi {
  T operator()(T a, T b) const { return T((Twice<T>(a) * Twice<T>(b)) >> width_of<T>); }
};
template <class T> struct MulWide {
  Twice<T> operator()(T a, T b) const { return Twice<T>(a) * Twice<T>(b); }
};
template <class T> struct Mad {
  T operator()(T a, T b, T c) const { return Add<T>()(Mul<T>()(a, b), c); }
};
template <class T> struct MadHi {
  T operator()(T a, T b, T c) const { return Add<T>()(MulHi<T>()(a, b), c); }
};
template <class T> struct MadWide {
  Twice<T> operator()(T a, T b, Twice<T> c) const { return Add<Twice<T>>()(Twice<T>(a) * Twice<T>(b), c); }
};
template <class T> struct Neg {
  T operator()(T a) const {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) { a.raw ^= 0x8000; return a; }
    else if constexpr (is_float<T>) return -a;
    else return T(Wrap<T>(0) - Wrap<T>(a));
  }
};
template <class T> struct Abs {
  T operator()(T a) const {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) { a.raw &= 0x7fff; return a; }
    else if constexpr (is_float<T>) return std::fabs(a);
    else return a < 0 ? T(Wrap<T>(0) - Wrap<T>(a)) : a;
  }
};
// A NaN loses against a number, or wins (.NaN); -0 is below +0.
template <class T, bool NAN_WINS, bool LARGER> T extreme(T a, T b) {
  if constexpr (is_float<T>) {
    double x = double(a), y = double(b);
    if (std::isnan(x) || std::isnan(y)) {
      if (NAN_WINS || (std::isnan(x) && std::isnan(y))) {
        if constexpr (std::is_same_v<T, float>) return bits<float>(0x7fffffffu);
        else if constexpr (sizeof(T) == 2) return bits<T>(uint16_t(0x7fff));
        else return T(std::numeric_limits<double>::quiet_NaN());
      }
      return std::isnan(x) ? b : a;
    }
    if (x == y) return std::signbit(x) == LARGER ? b : a;
    return (x > y) == LARGER ? a : b;
  } else return (a > b) == LARGER ? a : b;
}
template <class T> struct Min { T operator()(T a, T b) const { return extreme<T, false, false>(a, b); } };
template <class T> struct Max { T operator()(T a, T b) const { return extreme<T, false, true>(a, b); } };
template <class T> struct MinNan { T operator()(T a, T b) const { return extreme<T, true, false>(a, b); } };
template <class T> struct MaxNan { T operator()(T a, T b) const { return extreme<T, true, true>(a, b); } };
template <class T> struct And { T operator()(T a, T b) const { return T(a & b); } };
template <class T> struct Or { T operator()(T a, T b) const { return T(a | b); } };
template <class T> struct Xor { T operator()(T a, T b) const { return T(a ^ b); } };
template <class T> struct Not { T operator()(T a) const { return T(~a); } };
template <class T> struct Move { T operator()(T a) const { return a; } };
template <class T> struct Shl {
  T operator()(T a, uint32_t n) const { return n >= uint32_t(width_of<T>) ? T(0) : T(Wrap<T>(a) << n); }
};
template <class T> struct Shr {
  T operator()(T a, uint32_t n) const {
    if (n >= uint32_t(width_of<T>)) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
    return T(a >> n);
  }
};
template <class T> struct Bfe {
  T operator()(T a, uint32_t from, uint32_t length) const {
    constexpr uint32_t N = width_of<T>;
    from &= 255, length &= 255;
    if (length == 0) return 0;
    bool sign = std::is_signed_v<T> && Unsigned<T>(a) >> (from + length < N ? from + length - 1 : N - 1) & 1;
    Unsigned<T> fill = sign ? ~Unsigned<T>(0) : 0;
    if (from >= N) return T(fill);
    uint32_t valid = length < N - from ? length : N - from;
    Unsigned<T> field = Unsigned<T>(a) >> from;
    return T(valid == N ? field : (field & ((Unsigned<T>(1) << valid) - 1)) | fill << valid);
  }
};
template <class T> struct Bfi {
  T operator()(T field, T into, uint32_t from, uint32_t length) const {
    from &= 255, length &= 255;
    if (from >= uint32_t(width_of<T>) || length == 0) return into;
    T mask = length >= uint32_t(width_of<T>) ? T(~T(0)) : T((T(1) << length) - 1);
    return T((into & ~(mask << from)) | ((field & mask) << from));
  }
};
template <class T> struct Brev {
  T operator()(T a) const {
    T out = 0;
    for (int k = 0; k < width_of<T>; k++) out = T(out << 1 | (a >> k & 1));
    return out;
  }
};
template <class T> struct Clz {
  uint32_t operator()(T a) const { return a ? __builtin_clzll(uint64_t(a)) - (64 - width_of<T>) : width_of<T>; }
};
template <class T> struct Popc { uint32_t operator()(T a) const { return __builtin_popcountll(uint64_t(a)); } };
template <class T> struct Sqrt { T operator()(T a) const { return std::sqrt(a); } };
template <class T> struct Rsqrt { T operator()(T a) const { return T(1.0 / std::sqrt(double(a))); } };
template <class T> struct Rcp { T operator()(T a) const { return T(1) / a; } };
template <class T> struct Ex2 { T operator()(T a) const { return std::exp2(a); } };
template <class T> struct Lg2 { T operator()(T a) const { return std::log2(a); } };
template <class T> struct Sin { T operator()(T a) const { return std::sin(a); } };
template <class T> struct Cos { T operator()(T a) const { return std::cos(a); } };
template <class T> struct Tanh { T operator()(T a) const { return std::tanh(a); } };
template <class T> struct CopySign { T operator()(T sign, T a) const { return std::copysign(a, sign); } };

// .ftz: subnormal inputs and results are zero.
template <class F> struct Flushed {
  template <class... A> float operator()(A... a) const { return flushed(F()(flushed(a)...)); }
};
// f16x2, bf16x2: two numbers in one 32-bit register; f32x2: in one 64-bit register.
template <class T, class F> struct Pair {
  using Both = std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>;
  using One = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  template <class... A> Both operator()(A... a) const {
    constexpr int half = 8 * sizeof(T);
    Both low = bits<One>(F()(bits<T>(One(a))...)), high = bits<One>(F()(bits<T>(One(a >> half))...));
    return low | high << half;
  }
};
// fma.rn.f32.bf16: the narrow operands are exact in f32.
template <class H> struct MixedFma {
  float operator()(H a, H b, float c) const { return std::fma(float(double(a)), float(double(b)), c); }
};
template <class H> struct MixedAdd { float operator()(H a, float b) const { return float(double(a)) + b; } };
template <class H> struct MixedSub { float operator()(H a, float b) const { return float(double(a)) - b; } };

struct Prmt {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    uint64_t both = a | uint64_t(b) << 32;
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
      uint32_t select = selector >> 4 * k & 15, byte = both >> 8 * (select & 7) & 255;
      if (select & 8) byte = byte & 128 ? 255 : 0;
      out |= byte << 8 * k;
    }
    return out;
  }
};
// shf: the middle of (high:low) shifted; .wrap takes the amount modulo 32, .clamp stops at 32.
template <bool LEFT, bool WRAP> struct Funnel {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t n) const {
    n = WRAP ? n & 31 : n < 32 ? n : 32;
    uint64_t both = low | uint64_t(high) << 32;
    return LEFT ? uint32_t(both << n >> 32) : uint32_t(both >> n);
  }
};

// Comparisons, in the order of decode.COMPARISONS. The unordered ones (ltu, ...) are true if an operand is NaN.
template <class T> bool compare(int how, T a, T b) {
  if constexpr (is_float<T>) {
    double x = double(a), y = double(b);
    bool unordered = std::isnan(x) || std::isnan(y);
    switch (how) {
      case 5: return !unordered && x != y;
      case 6: return !unordered;
      case 7: return unordered;
      case 13: return unordered || x != y;
      default: break;
    }
    if (how >= 8) {
      if (unordered) return true;
      how -= 8;
    }
    switch (how) { case 0: return x < y; case 1: return x <= y; case 2: return x > y; case 3: return x >= y; }
    return x == y;
  } else {
    switch (how) {
      case 0: return a < b;
      case 1: return a <= b;
      case 2: return a > b;
      case 3: return a >= b;
      case 4: return a == b;
      default: return a != b;
    }
  }
}

// The four roundings to an integer, in the order of decode.ROUNDINGS: nearest even, to zero, down, up.
inline double integral(int rounding, double x) {
  switch (rounding) {
    case 0: return std::nearbyint(x);
    case 1: return std::trunc(x);
    case 2: return std::floor(x);
    default: return std::ceil(x);
  }
}
// Out of range saturates and NaN is 0, as cvt does.
template <class T> T saturated(double x) {
  if (std::isnan(x)) return 0;
  if (x <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= std::ldexp(1.0, width_of<T> - std::is_signed_v<T>)) return std::numeric_limits<T>::max();
  return T(x);
}
