"""The memory that one call of an entry point takes beside weights and caches: IREE's own sizes, from its stream IR.

After the stream phase all temporaries of an entry lie in a few allocations, whose sizes are constants.
"""

from __future__ import annotations

import re
from math import prod

from iree.compiler import ir

SIZE = "iree.abi.transients.size.constant"  # in the reflection of an entry that is given storage
_ALLOCATIONS = ("stream.resource.alloca", "stream.resource.alloc")


def memory_of(entry: ir.Operation) -> dict[str, int]:
    """transient_bytes: temporaries, freed at the end of the call; result_bytes: buffers that it returns new;
    unknown_sizes: the number of allocations whose size is known at run time only."""
    found = {"transient_bytes": 0, "result_bytes": 0, "unknown_sizes": 0}

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.operation.name in _ALLOCATIONS:
            resources = [t for t in (str(r.type) for r in op.results) if t.startswith("!stream.resource<")]
            sizes = [_constant(v) for v in op.operands if isinstance(v.type, ir.IndexType)]
            for kind, nbytes in zip(resources, sizes, strict=True):
                if nbytes is None:
                    found["unknown_sizes"] += 1
                else:
                    found["result_bytes" if "external" in kind else "transient_bytes"] += nbytes
        return ir.WalkResult.ADVANCE

    entry.walk(visit)
    given = given_storage(entry)
    return found | {name: found[name] + given[name] for name in given}


def given_storage(entry: ir.Operation) -> dict[str, int]:
    """transient_bytes and result_bytes of the storage that the caller gives, see `given_storage.py`; 0 where there is
    none."""
    reflection = {a.name: a.attr for a in entry.attributes.get("iree.reflection", ())}
    if SIZE not in reflection:
        return {"transient_bytes": 0, "result_bytes": 0}
    declared = ir.StringAttr(reflection["iree.abi.declaration"]).value.rpartition(" -> ")
    donated = {int(n) for n in re.findall(r"tensor<[^>]*> {iree.abi.output = (\d+)", declared[0])}
    results = re.findall(r"tensor<(?:([\dx?]*)x)?\w+?(\d+)>", declared[2])
    fresh = [(shape, bits) for i, (shape, bits) in enumerate(results) if i not in donated]
    sizes = [prod(map(int, shape.split("x"))) * int(bits) // 8 for shape, bits in fresh]
    return {"transient_bytes": ir.IntegerAttr(reflection[SIZE]).value, "result_bytes": sum(sizes)}


def _constant(value: ir.Value) -> int | None:
    """The number that an index is, None when it is computed."""
    if isinstance(value.owner, ir.Block):
        return None
    source = value.owner.operation
    return ir.IntegerAttr(source.attributes["value"]).value if source.name == "arith.constant" else None
