"""The GPU's kernels as one `hal.executable.source`: an export for each kernel that a program uses, one code object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir

from ..custom_kernels.ops.launch import Launch
from ..custom_kernels.toolchain import KernelObject

EXECUTABLE = "strixhlo_kernels"


@dataclass
class GpuExecutable:
    """Collects the kernels that a program needs; `export` is called once a dispatch, `add_to` at the end."""

    holding: Callable[[Iterable[str]], KernelObject]  # symbols -> code object
    target: str  # the #hal.executable.target attribute of the program
    exports: dict[str, str] = field(default_factory=dict)  # symbol -> text
    kernels: KernelObject | None = None  # of a program that launches some, once it is added

    def export(self, launch: Launch, _inputs: Sequence[ir.Type], _outputs: Sequence[ir.Type]) -> str:
        """The export for this launch: made on first use."""
        text = _export(launch, len(self.exports))
        known = self.exports.setdefault(launch.symbol, text)
        if _export(launch, int(known.partition("ordinal(")[2].partition(")")[0])) != known:
            raise RuntimeError(f"two launches of {launch.symbol} differ in their arguments")
        return f"@{EXECUTABLE}::@{launch.symbol}"

    def add_to(self, module: ir.Module) -> None:
        """Put the executable at the end of a module, its code object yet to be built; nothing when nothing is
        launched."""
        if not self.exports:
            return
        self.kernels = self.holding(self.exports)
        text = f"hal.executable.source private @{EXECUTABLE} {{{''.join(self.exports.values())}\n}}"
        holder = ir.Module.parse(text)  # must live until its operation has moved
        source = holder.body.operations[0].operation
        # The parser takes no objects in an attribute dictionary.
        source.attributes["objects"] = ir.Attribute.parse(
            f'#hal.executable.objects<{{ {self.target} = [#hal.executable.object<{{path = "{self.kernels.path}"}}>] }}>'
        )
        module.body.append(holder.body.operations[0])


def _export(launch: Launch, ordinal: int) -> str:
    updated = {o.updates for o in launch.outputs if o.updates}
    fresh = sum(not o.updates for o in launch.outputs)
    read = "#hal.pipeline.binding<storage_buffer, ReadOnly>"
    written = "#hal.pipeline.binding<storage_buffer>"
    bindings = [written if name in updated else read for name in launch.inputs] + [written] * fresh
    local = f", workgroup_local_memory = {launch.local_memory}" if launch.local_memory else ""
    return f"""
  hal.executable.export public @{launch.symbol} ordinal({ordinal})
      layout(#hal.pipeline.layout<constants = {len(launch.scalars)}, bindings = [{", ".join(bindings)}]>)
      count(%device: !hal.device, %n: index) -> (index, index, index) {{
    %c1 = arith.constant 1 : index
    hal.return %n, %c1, %c1 : index, index, index
  }} <workgroup_size = [{launch.threads} : index, 1 : index, 1 : index]{local}>"""
