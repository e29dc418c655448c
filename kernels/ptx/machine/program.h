// What the decoder (decode.py) hands to the machine. Python reads the three enums from this file, so that there is one
// list of operations, of types and of findings.
#pragma once
#include <cstdint>

enum Operation : int32_t {
  MOV, PACK, UNPACK, ADD, SUB, MUL, MULHI, MULWIDE, MAD, MADHI, MADWIDE, DIV, REM, ABS, NEG, MIN, MAX, AND, OR, XOR,
  NOT, SHL, SHR, SHF_LEFT, SHF_RIGHT, BFE, BFI, BREV, CLZ, POPC, PRMT, LOP3, SELP, SETP, FMA, SQRT, RSQRT, RCP, EX2,
  LG2, SIN, COS, TANH, COPYSIGN, CVT, CVT_PAIR, SHFL, VOTE, REDUX, ELECT, ACTIVEMASK, LOAD_GLOBAL, STORE_GLOBAL,
  LOAD_SHARED, STORE_SHARED, ATOM_GLOBAL, ATOM_SHARED, CP_ASYNC, CP_COMMIT, CP_WAIT, LDMATRIX, STMATRIX, MMA, FENCE,
  WARP_SYNC, BARRIER, BRANCH, EXIT, TRAP
};

enum Type : int32_t {
  PRED, U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, TF32, F16X2, BF16X2, F32X2
};

enum Finding : int32_t {
  READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, PENDING_COPY, OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED
};

// The order and scope of a strong memory operation; WEAK is a plain ld or st.
enum Order : int32_t { WEAK = 0, RELAXED = 1, ACQUIRE = 2, RELEASE = 4 };

constexpr int OPERANDS = 16;

struct Instruction {
  int32_t operation;
  int32_t type;       // of the result, or of the data in memory
  int32_t from;       // the second type of cvt, mma and mixed arithmetic
  int32_t mode;       // comparison, rounding, shuffle kind, atomic operation, truth table of lop3, ...
  int32_t order;      // Order of a memory operation
  int32_t block_scope;  // 1: the order holds within the block only
  int32_t predicate;  // byte offset of a predicate register, -1: none
  int32_t negated;    // the predicate is negated
  int32_t count;      // registers of a vector, matrices of ldmatrix, k of mma, bytes of cp.async
  int32_t width;      // bytes of the register that a load fills
  int32_t wide;       // 1: the address register has 64 bits
  int32_t target;     // of a branch
  int32_t operand[OPERANDS];  // byte offsets into the registers of a warp; the last one is an address, the one before
                              // it the second address of cp.async
  int64_t offset, offset2;    // added to these addresses
};

struct Buffer {
  uint8_t* host;
  int64_t size;
  int64_t base;    // the address that the kernel sees
  int32_t region;  // of the race detector; -1: never written by this kernel
  int32_t pad;
  int64_t place;   // bytes from the start of the region
};

struct Found {
  int32_t kind, at, earlier, block, warp, lane, buffer, pad;  // buffer -1: shared memory; -2: no argument
  int64_t offset, times;
};

// decode.py and execute.py have the same layouts.
static_assert(sizeof(Instruction) == 128 && sizeof(Buffer) == 40 && sizeof(Found) == 48);

struct Count {
  int64_t warps, lanes, sectors, wavefronts, ideal;
};

struct Launch {
  const Instruction* code;
  const uint8_t* registers;  // initial values: constants, parameters
  const Buffer* buffers;
  const int64_t* regions;    // bytes of each region
  int32_t instructions, register_bytes, buffer_count, region_count;
  int32_t grid[3], block[3];
  int32_t shared, resident;
  int32_t global_cell, shared_cell;  // bytes per cell of the race detector
  int32_t races, traffic;
  int32_t special[14];  // byte offsets of %tid, %ntid, %ctaid, %nctaid (x, y, z each), %laneid, %warpid; -1: not used
  uint64_t seed;
  int64_t limit;        // warp instructions
};
