"""Entry points that return before the device is done, into storage that the caller gives.

IREE's synchronous entries wait for the device at least where they free their temporaries. Given storage for results and
temporaries an entry allocates nothing, and with fences (`FLAGS`) it only queues its work: the host prepares the next
call meanwhile. An entry point's arguments are then, after the model's own: a buffer for each result that is not
donated, in order, one for temporaries, and the fences to wait for and to signal. The compiler leaves the number of
bytes of temporaries in the function's reflection, where `runtime/device_queue.py` reads it.
"""

from __future__ import annotations

from iree.compiler import ir

from .kv_pools import DONATED
from .lower import operations

FLAGS = ("--iree-execution-model=async-external",)
KINDS = ("cuda",)  # of targets
BUFFER = "!hal.buffer"


def give_storage(module: ir.Module, kind: str) -> bool:
    """Add the arguments to every entry point of a program for a kind of target; False where that is none of `KINDS`."""
    if kind not in KINDS:
        return False
    for function in operations(module, "func.func"):
        if "arg_attrs" not in function.attributes:
            continue  # of the program's own functions
        block = function.regions[0].blocks[0]
        marks = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
        donated = {ir.IntegerAttr(m[DONATED]).value for m in marks if DONATED in m}
        results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
        fresh = [i for i in range(len(results)) if i not in donated]
        added = [{"iree.abi.output": ir.IntegerAttr.get(ir.IndexType.get(), i)} for i in fresh]
        added.append({"iree.abi.transients": ir.UnitAttr.get()})
        for attributes in added:
            block.add_argument(ir.Type.parse(BUFFER), ir.Location.unknown())
            marks.append(ir.DictAttr.get(attributes))
        type_ = ir.FunctionType.get([a.type for a in block.arguments], results)
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(marks)
    return True
