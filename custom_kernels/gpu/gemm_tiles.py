"""Which tiles fragment_gemm.h has for matmuls of many rows on an NVIDIA GPU, and which of them a matmul takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..choices import Choices, Question
from .elements import with_elements

WAVE = 32
BUSY = 200  # workgroups of four waves that keep 132 multiprocessors busy


@dataclass(frozen=True)
class Tile:
    """A workgroup's: rows of x; waves side by side, of 32 weight rows each; groups of waves that share the columns."""

    rows: int
    waves_n: int
    waves_k: int

    @property
    def name(self) -> str:
        """ "64x4x1"."""
        return f"{self.rows}x{self.waves_n}x{self.waves_k}"

    @property
    def threads(self) -> int:
        return WAVE * self.waves_n * self.waves_k

    def workgroups(self, m: int, columns: Sequence[int], gated: bool = False) -> int:
        """For m rows of x and weights of so many rows each; gated: of two that share tiles, columns of one."""
        width = WAVE * self.waves_n // (1 + gated)
        return -(-m // self.rows) * sum(-(-n // width) for n in columns)


# Of activations: what 48 KB of local memory hold. The last is the widest.
_OF_ONE_TERM = (Tile(16, 2, 4), Tile(32, 2, 4), Tile(64, 4, 2), Tile(64, 4, 1))
_OF_TWO_TERMS = (Tile(16, 2, 4), Tile(32, 2, 2), Tile(64, 4, 1))
TILES: dict[str, tuple[Tile, ...]] = {"bf16": _OF_ONE_TERM, "f16": _OF_TWO_TERMS, "f32": _OF_TWO_TERMS}


def tiled(kernel: str, x: str) -> bool:
    """Whether weights of those kernels have tiles: float32 times float32 does not, whose 24 bits tiles do not keep."""
    return (kernel, x) != ("f32", "f32")


def tile_of(name: str) -> Tile:
    """The tile of that name."""
    return Tile(*map(int, name.split("x")))


def choose_tile(
    kernel: str, x: str, m: int, columns: Sequence[int], k: int, choices: Choices, gated: bool = False
) -> Tile:
    """For m rows of x (of that dtype) and weights of `columns` rows and k columns: the widest that keeps it busy."""
    tiles = TILES[x]

    def busy(tile: Tile) -> bool:
        return tile.workgroups(m, columns, gated) * tile.waves_k >= BUSY

    fitting = [t for t in tiles if t.rows < 2 * m or t.rows == tiles[0].rows]
    rule = next((t for t in reversed(fitting) if busy(t)), fitting[min(1, len(fitting) - 1)])
    question = Question("gated_gemm_tile" if gated else "gemm_tile", with_elements(kernel, x), m, (*columns, k))
    return tile_of(str(choices.pick(question, {"tile": rule.name}, [{"tile": t.name} for t in tiles])["tile"]))
