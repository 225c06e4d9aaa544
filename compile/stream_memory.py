"""The memory that one call of an entry point takes beside weights and caches: IREE's own sizes, from its stream IR.

After the stream phase all temporaries of an entry lie in a few allocations, whose sizes are constants.
"""

from __future__ import annotations

from iree.compiler import ir

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
    return found


def _constant(value: ir.Value) -> int | None:
    """The number that an index is, None when it is computed."""
    if isinstance(value.owner, ir.Block):
        return None
    source = value.owner.operation
    return ir.IntegerAttr(source.attributes["value"]).value if source.name == "arith.constant" else None
