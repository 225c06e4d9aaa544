// The matrix unit of x86-64 CPUs that have one (AMX): eight tiles of up to 16 rows of 64 bytes. A process needs the
// kernel's permission to touch them, so kernels are told whether they may: see runtime/matrix_unit.py.
// With STRIXHLO_EMULATED_TILES the instructions are loops, after Intel's manual (volume 2, TDPBSUD and TDPBF16PS).
#pragma once
#include "dot.h"
#include "export.h"

#if STRIXHLO_VNNI && (STRIXHLO_EMULATED_TILES || (defined(__AMX_INT8__) && defined(__AMX_BF16__)))
#define STRIXHLO_TILES 1
// The first operand of every kernel that uses them: int32 [16], of which the first is 1 where they may be used.
#define TILES_OPERAND BUFFER(const int32_t, machine),
#define TILES_BYTES BUFFER(const uint8_t, machine),
#define MAY_USE_TILES (*reinterpret_cast<const int32_t*>(AT(machine)) == 1)
#else
#define TILES_OPERAND
#define TILES_BYTES
#define MAY_USE_TILES false
#endif

constexpr int64_t TILE_M = 16;  // rows of activations of a tile

#if STRIXHLO_TILES
// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tile 0 [16, 16] of 32-bit sums = tile 1 [16, 4 * DEPTH bytes] times tile 2 [DEPTH, 16 columns of 4 bytes].
class Tiles {
 public:
  INLINE_MEMBER explicit Tiles(int depth) {
    TileShapes shapes;
    for (int i = 0; i < 16; i++) shapes.row_bytes[i] = 0, shapes.rows[i] = 0;
    shapes.row_bytes[0] = shapes.row_bytes[2] = 64;
    shapes.row_bytes[1] = uint16_t(4 * depth);
    shapes.rows[0] = shapes.rows[1] = TILE_M;
    shapes.rows[2] = uint8_t(depth);
    configure(shapes);
  }
#if STRIXHLO_EMULATED_TILES
  INLINE_MEMBER void clear() {
    for (auto& row : data[0])
      for (uint8_t& byte : row) byte = 0;
  }
  template <int TILE>
  INLINE_MEMBER void load(const void* p, int64_t stride) {
    for (int r = 0; r < shapes.rows[TILE]; r++)
      for (int b = 0; b < shapes.row_bytes[TILE]; b++) data[TILE][r][b] = *static_cast<const uint8_t*>(advance(p, r * stride + b));
  }
  INLINE_MEMBER void save(void* p) const {
    for (int r = 0; r < shapes.rows[0]; r++)
      for (int b = 0; b < shapes.row_bytes[0]; b++) static_cast<uint8_t*>(p)[64 * r + b] = data[0][r][b];
  }
  INLINE_MEMBER void add_int8() {
    products([](uint32_t sum, uint32_t a, uint32_t b) {
      for (int i = 0; i < 32; i += 8) sum += uint32_t(int32_t(int8_t(a >> i)) * int32_t(uint8_t(b >> i)));
      return sum;
    });
  }
  INLINE_MEMBER void add_bf16() {
    const auto value = [](uint32_t bits) { return bits & 0x7f800000 ? __builtin_bit_cast(float, bits) : 0.0f; };
    products([&](uint32_t sum, uint32_t a, uint32_t b) {
      float total = value(sum);
      for (int i = 0; i < 2; i++) {
        const float more = value(i ? a & 0xffff0000 : a << 16) * value(i ? b & 0xffff0000 : b << 16);
        total = value(__builtin_bit_cast(uint32_t, total + more));
      }
      return __builtin_bit_cast(uint32_t, total);
    });
  }

 private:
  TileShapes shapes;
  uint8_t data[3][16][64];
  INLINE_MEMBER void configure(const TileShapes& wanted) { shapes = wanted; }
  template <class Op>
  INLINE_MEMBER void products(const Op& op) {
    for (int m = 0; m < shapes.rows[0]; m++)
      for (int k = 0; k < shapes.row_bytes[1] / 4; k++)
        for (int n = 0; n < shapes.row_bytes[0] / 4; n++)
          store(&data[0][m][4 * n], op(load_word(0, m, n), load_word(1, m, k), load_word(2, k, n)));
  }
  INLINE_MEMBER uint32_t load_word(int tile, int row, int word) const { return ::load<uint32_t>(&data[tile][row][4 * word]); }
#else
  INLINE_MEMBER ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  INLINE_MEMBER void clear() { _tile_zero(0); }
  template <int TILE>
  INLINE_MEMBER void load(const void* p, int64_t stride) {
    _tile_loadd(TILE, p, stride);
  }
  INLINE_MEMBER void save(void* p) const { _tile_stored(0, p, 64); }
  INLINE_MEMBER void add_int8() { _tile_dpbsud(0, 1, 2); }  // activations are signed, codes unsigned
  INLINE_MEMBER void add_bf16() { _tile_dpbf16ps(0, 1, 2); }

 private:
  INLINE_MEMBER void configure(const TileShapes& wanted) { _tile_loadconfig(&wanted); }
#endif
};
#endif
