"""The tiles that matmuls of many rows are done in, on NVIDIA's GPUs (fragment_gemm.h) and AMD's (matrix_gemm.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..choices import Choices, Question
from .elements import with_elements

WAVE, STRIPE, PIECE = 32, 16, 128
DENSE = ("f32", "f16", "bf16")
STRIPE_LOCAL = 98 * 1024
MATRIX_THREADS, MATRIX_WIDTH = 256, {16: 32, 64: 128}  # of AMD's: threads; weight rows, by rows of x
BUSY = 200  # workgroups of four waves that keep 132 multiprocessors busy


@dataclass(frozen=True)
class Tile:
    """A workgroup's: rows of x; waves side by side, of 32 weight rows each; groups of waves that share the columns.
    AMD's, of eight waves, have no such choice: no waves. stripes: of 16 weight rows, with x in registers
    (register_gemm.h): eight waves that share the columns."""

    rows: int
    waves_n: int
    waves_k: int
    stripes: int = 0

    @property
    def name(self) -> str:
        """ "64x4x1", AMD's "64w", in registers "16r4x8"."""
        if self.stripes:
            return f"{self.rows}r{self.stripes}x{self.waves_k}"
        return f"{self.rows}x{self.waves_n}x{self.waves_k}" if self.waves_n else f"{self.rows}w"

    @property
    def kernel(self) -> str:
        """Its type in tiled_gemm.h."""
        if self.stripes:
            return f"InRegisters<{self.stripes}, {self.waves_k}>"
        if self.waves_n:
            return f"InFragments<{self.rows}, {self.waves_n}, {self.waves_k}>"
        return f"InMatrixTiles<{self.rows}>"

    @property
    def width(self) -> int:
        """Weight rows."""
        return STRIPE * self.stripes or WAVE * self.waves_n or MATRIX_WIDTH[self.rows]

    @property
    def threads(self) -> int:
        return WAVE * (1 if self.stripes else self.waves_n) * self.waves_k or MATRIX_THREADS

    @property
    def local_memory(self) -> int:
        """Bytes that a launch gives: STRIPE_LOCAL of stripe.h."""
        return STRIPE_LOCAL if self.stripes else 0

    def workgroups(self, m: int, columns: Sequence[int], gated: bool = False) -> int:
        """For m rows of x and weights of so many rows each; gated: of two that share tiles, columns of one."""
        width = self.width // (1 + gated)
        return -(-m // self.rows) * sum(-(-n // width) for n in columns)


# Of the sorted rows of one expert: MATRIX_TILE of moe_tiles.h.
EXPERT_TILE, EXPERT_MATRIX_TILE = Tile(64, 4, 1), Tile(64, 0, 0)

# Of activations: what 48 KB of local memory hold. The last is the widest.
_OF_ONE_TERM = (Tile(16, 2, 4), Tile(32, 2, 4), Tile(64, 4, 2), Tile(64, 4, 1))
_OF_TWO_TERMS = (Tile(16, 2, 4), Tile(32, 2, 2), Tile(64, 4, 1))
TILES: dict[str, tuple[Tile, ...]] = {"bf16": _OF_ONE_TERM, "f16": _OF_TWO_TERMS, "f32": _OF_TWO_TERMS}
# The same of up to 16 rows, of quantized weights: two workgroups of eight waves and up to four stripes on a
# multiprocessor, or one.
REGISTER_TILES = tuple(Tile(16, 0, waves, stripes) for waves in (8, 12) for stripes in (1, 2, 3, 4, 7))
MULTIPROCESSORS = 132
SUPER_SCALED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")  # formats whose scales each lane loads
TWELVE_WAVES = ("q4_1", "q5_1", *SUPER_SCALED, "mxfp4", "nvfp4")  # which these are faster for


def register_tile(kernel: str, x: str, columns: Sequence[int], gated: bool = False) -> Tile:
    """For up to 16 rows of x: by what was measured (benchmarks/gpu_kernels.py)."""
    stripes = sum(-(-n // (STRIPE // (1 + gated))) for n in columns)
    each = stripes / MULTIPROCESSORS
    wanted = max(1, -(-stripes // MULTIPROCESSORS))
    if each > 4 and kernel not in SUPER_SCALED:
        return Tile(16, 0, 8, 7)
    if x == "f32":
        return Tile(16, 0, 12, min(4, wanted))
    if each > 4 and kernel == "q5_k":
        return Tile(16, 0, 12, 7)
    if 1 < each <= 3 and (kernel in TWELVE_WAVES or kernel.startswith("affine4")):
        return Tile(16, 0, 12, wanted)
    return Tile(16, 0, 8, min(4, wanted))


def tiled(kernel: str, x: str, nvidia: bool) -> bool:
    """Whether weights of those kernels have tiles: float32 times float32 does not, whose 24 bits tiles do not keep, and
    on AMD's GPUs no float16 that the units of x do not hold."""
    if nvidia or kernel not in ("f32", "f16"):
        return (kernel, x) != ("f32", "f32")
    return kernel == x == "f16"


def tile_of(name: str) -> Tile:
    """The tile of that name."""
    if "r" in name:
        rows, stripes, waves = map(int, name.replace("r", "x").split("x"))
        return Tile(rows, 0, waves, stripes)
    return Tile(int(name.removesuffix("w")), 0, 0) if name.endswith("w") else Tile(*map(int, name.split("x")))


def choose_matrix_tile(
    kernel: str, x: str, m: int, columns: Sequence[int], k: int, choices: Choices, gated: bool = False
) -> Tile:
    """The same on AMD's GPUs: the smallest that holds all rows, else the widest."""
    rule = next((rows for rows in MATRIX_WIDTH if m <= rows), max(MATRIX_WIDTH))
    question = Question("gated_gemm" if gated else "fused_gemm", with_elements(kernel, x), m, (*columns, k))
    chosen = choices.pick(question, {"tile": rule}, [{"tile": rows} for rows in MATRIX_WIDTH])
    return Tile(int(chosen["tile"]), 0, 0)


def choose_tile(
    kernel: str, x: str, m: int, columns: Sequence[int], k: int, choices: Choices, gated: bool = False
) -> Tile:
    """For m rows of x (of that dtype) and weights of `columns` rows and k columns: the widest that keeps it busy."""
    tiles = TILES[x]

    def busy(tile: Tile) -> bool:
        return tile.workgroups(m, columns, gated) * tile.waves_k >= BUSY

    fitting = [t for t in tiles if t.rows < 2 * m or t.rows == tiles[0].rows]
    rule = next((t for t in reversed(fitting) if busy(t)), fitting[min(1, len(fitting) - 1)])
    if kernel not in DENSE and k % PIECE == 0 and m <= 16:
        rule = register_tile(kernel, x, columns, gated)
        tiles = (*tiles, *(t for t in REGISTER_TILES if x != "f32" or (t.waves_k > 8) == (t.stripes < 7)))
    question = Question("gated_gemm_tile" if gated else "gemm_tile", with_elements(kernel, x), m, (*columns, k))
    return tile_of(str(choices.pick(question, {"tile": rule.name}, [{"tile": t.name} for t in tiles])["tile"]))
