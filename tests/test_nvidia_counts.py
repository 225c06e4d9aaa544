"""benchmarks/nvidia_counts.py on what ptxas and nvdisasm print."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

REPORT = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    8 bytes stack frame, 12 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 384 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Used 40 registers, 384 bytes cmem[0]
"""
# A loop of six instructions within one of eight, two of which are left out now and then; then one that waits.
CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_1:
        /*0020*/              @!P0 BRA `(.L_x_2) ;
        /*0030*/                   LDGSTS.E.128 [R4], [R6.64] ;
.L_x_2:
        /*0040*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0050*/              @!P2 BRA `(.L_x_5) ;
        /*0060*/                   FADD R8, R8, R8 ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
.L_x_5:
        /*0080*/               @P3 BRA `(.L_x_0) ;
.L_x_3:
        /*0090*/                   NANOSLEEP 0x20 ;
        /*00a0*/               @P4 BRA `(.L_x_3) ;
        /*00b0*/                   EXIT ;
.L_x_4:
        /*00c0*/                   BRA `(.L_x_4);
"""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    import nvidia_counts

    return nvidia_counts


def test_registers(counts: ModuleType) -> None:
    assert counts.registers(REPORT) == {"first": (255, 12), "second": (40, 0)}


def test_the_loop_that_counts(counts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code = counts.instructions(CODE)
    assert len(code) == 13 and code[2].following == (4, 3) and code[11].following == ()
    loops = {(a.begin, a.end): (a.shortest, a.all, a.matrix) for a in counts.loops_of(code)}
    assert loops == {(2, 7): (6, 6, 1), (1, 8): (6, 8, 1), (9, 10): (2, 2, 0)}
    assert counts.main_loop(counts.loops_of(code)).all == 6
    monkeypatch.setattr(counts, "HARDLY_LONGER", 1.4)
    assert counts.main_loop(counts.loops_of(code)).all == 8
    assert counts.main_loop([]) is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--cuda-bin", "{folder}"], "nvidia_counts: no ptxas in {folder}; give --cuda-bin FOLDER"),
        (["--cuda-bin", "{tools}", "strixhlo_foo"], "nvidia_counts: no kernel is called strixhlo_foo; names are in"),
    ],
)
def test_what_is_missing_is_one_line(
    counts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    places = {"folder": str(tmp_path / "none"), "tools": str(tmp_path)}
    for name in ("ptxas", "nvdisasm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["nvidia_counts.py", *(a.format(**places) for a in arguments)])
    with pytest.raises(SystemExit) as end:
        counts.main()
    assert str(end.value).startswith(line.format(**places)) and "\n" not in str(end.value)
