"""The memory of a call, read from stream IR as IREE 3.13 prints it."""

from __future__ import annotations

import math

from iree.compiler import ir

from strixhlo.bundle import Bundle
from strixhlo.compile.stream_memory import memory_of
from strixhlo.runtime.program import read_build

ENTRY = """
util.func public @f(%size: index) {
  %c64 = arith.constant 64 : index
  %c1024 = arith.constant 1024 : index
  %r, %t0 = stream.resource.alloca uninitialized : !stream.resource<external>{%c64} => !stream.timepoint
  %a, %t1 = stream.resource.alloca uninitialized : !stream.resource<transient>{%c1024} => !stream.timepoint
  %b, %t2 = stream.resource.alloca uninitialized : !stream.resource<transient>{%SIZE} => !stream.timepoint
  util.return
}
"""


def memory(text: str) -> dict[str, int]:
    with ir.Context():
        module = ir.Module.parse(text)
        (function,) = module.body.operations
        return memory_of(function.operation)


def test_sizes_are_summed_by_lifetime() -> None:
    text = ENTRY.replace("%SIZE", "%c64")
    assert memory(text) == {"transient_bytes": 1088, "result_bytes": 64, "unknown_sizes": 0}


def test_computed_sizes_are_counted_apart() -> None:
    text = ENTRY.replace("%SIZE", "%size")
    assert memory(text) == {"transient_bytes": 1024, "result_bytes": 64, "unknown_sizes": 1}
    doubled = text.replace("  %r,", "  %n = arith.addi %size, %size : index\n  %r,").replace("{%size}", "{%n}")
    assert memory(doubled)["unknown_sizes"] == 1


def test_a_build_says_what_each_entry_takes(tiny: Bundle) -> None:
    """Results are logits and tokens, at multiples of 64 bytes; a cache updated in place is no result, no temporary."""
    entries = read_build(tiny, "cpu").report["entries"]
    assert set(entries) == set(tiny.manifest.entry_points)
    for name, entry in tiny.manifest.entry_points.items():
        assert entries[name]["unknown_sizes"] == 0
        sizes = [4 * math.prod(o.shape) for o in entry.outputs[:-2]]
        assert entries[name]["result_bytes"] == sum(math.ceil(n / 64) * 64 for n in sizes)
        assert 0 < entries[name]["transient_bytes"] < tiny.manifest.kv_cache.bytes * 40
    rows = {name: entries[name]["transient_bytes"] / e.rows for name, e in tiny.manifest.entry_points.items()}
    assert max(rows.values()) < 2 * min(rows.values())  # about the same for each row
