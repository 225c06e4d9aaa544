"""Counters that start at zero: one tensor for all launches of an entry point, which hand it on, updated in place."""

from __future__ import annotations

from dataclasses import dataclass, field

from iree.compiler import ir

from ..custom_kernels.ops.launch import COUNTER_WORDS, SCRATCH_WORDS
from .numbers import Numbers

NAME = "call_target_name"
COUNTED = ("strixhlo.moe_one", "strixhlo.moe_chosen_down")  # calls that may have launches with counters


@dataclass
class Counters:
    """values: the tensor of each entry as the last launch left it; slots: how many launches have theirs."""

    values: dict[ir.Operation, ir.Value] = field(default_factory=dict)
    slots: dict[ir.Operation, int] = field(default_factory=dict)

    def of(self, call: ir.Operation, numbers: Numbers) -> ir.Value:
        """The tensor, with room for every call in the entry that may want some; filled once, at its beginning."""
        entry = call.parent
        if entry not in self.values:
            calls = [op for op in entry.regions[0].blocks[0] if op.operation.name == call.name]
            alike = sum(ir.StringAttr(op.operation.attributes[NAME]).value in COUNTED for op in calls)
            zero = numbers.constant(entry, 0, "i32")
            with ir.InsertionPoint.after(zero.owner):
                words = SCRATCH_WORDS + alike * COUNTER_WORDS
                type_ = ir.RankedTensorType.get([words], ir.IntegerType.get_signless(32))
                filled = ir.Operation.create("flow.tensor.splat", results=[type_], operands=[zero])
            self.values[entry] = filled.result
        return self.values[entry]

    def next_slot(self, entry: ir.Operation) -> int:
        """The number of a launch's own words."""
        self.slots[entry] = self.slots.get(entry, -1) + 1
        return self.slots[entry]
