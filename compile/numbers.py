"""The numbers that dispatches take: constants, and lengths of axes that are known when the program runs.

Each is made once for an entry point. A large model has 50,000 uses of them, and every pass of the compiler walks over
whatever stands there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from iree.compiler import ir


@dataclass
class Numbers:
    """made: (entry, what) -> the value; shaped_as: a value that was updated in place -> what it was at first."""

    made: dict[tuple[ir.Operation, object], ir.Value] = field(default_factory=dict)
    shaped_as: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def same_shape(self, updated: ir.Value, before: ir.Value) -> None:
        """Say that a dispatch made `updated` of `before` in place: its lengths are those."""
        self.shaped_as[updated] = self.shaped_as.get(before, before)

    def constant(self, entry: ir.Operation, value: int, type_text: str) -> ir.Value:
        """A constant of type "i32" or "index" at the beginning of a function."""
        key = (entry, (value, type_text))
        if key not in self.made:
            with ir.InsertionPoint.at_block_begin(entry.regions[0].blocks[0]):
                self.made[key] = ir.Operation.create(
                    "arith.constant",
                    results=[ir.Type.parse(type_text)],
                    attributes={"value": ir.Attribute.parse(f"{value} : {type_text}")},
                ).result
        return self.made[key]

    def length(self, entry: ir.Operation, value: ir.Value, axis: int) -> ir.Value:
        """The length of a tensor's axis, an index."""
        value = self.shaped_as.get(value, value)
        key = (entry, (value, axis))
        if key not in self.made:
            number = self.constant(entry, axis, "index")
            # An argument is there from the beginning.
            after = number.owner if isinstance(value.owner, ir.Block) else value.owner
            with ir.InsertionPoint.after(after):
                made = ir.Operation.create("tensor.dim", results=[ir.IndexType.get()], operands=[value, number])
            self.made[key] = made.result
        return self.made[key]

    def length_i32(self, entry: ir.Operation, value: ir.Value, axis: int) -> ir.Value:
        """The same as an i32."""
        length = self.length(entry, value, axis)
        key = (entry, length)
        if key not in self.made:
            with ir.InsertionPoint.after(length.owner):
                i32 = ir.IntegerType.get_signless(32)
                self.made[key] = ir.Operation.create("arith.index_cast", results=[i32], operands=[length]).result
        return self.made[key]

    def dynamic_lengths(self, entry: ir.Operation, value: ir.Value) -> list[ir.Value]:
        """The lengths of a tensor's dynamic axes, indices."""
        type_ = ir.RankedTensorType(value.type)
        return [self.length(entry, value, axis) for axis in range(type_.rank) if type_.is_dynamic_dim(axis)]
