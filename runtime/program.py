"""A compiled program on a device: weights mapped, entry points called with device buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from traceback import clear_frames
from types import TracebackType
from typing import Any

import iree.runtime as rt
import numpy as np

from ..build_inputs import interface_sha256, lowering_sha256
from ..bundle import (
    BUILD,
    MANIFEST,
    VMFB,
    Build,
    Bundle,
    EntryPoint,
    Parameter,
    TensorSpec,
    built_cache,
    read_record,
    sha256_file,
)
from ..cpu_features import cpuinfo_flags
from ..errors import StrixhloError, one_line
from ..weight_spans import weight_spans
from .block_table import DeviceTables
from .device import DRIVERS, SCOPE, Device, Weights
from .device_queue import DeviceQueue, Fetched, is_queued
from .load_plan import LoadPlan, load_plans
from .matrix_unit import machine_parameters
from .memory import budget_line
from .patient_wait import patient_wait
from .peak import Peak, peak_memory
from .signature import signature_problem
from .sizes import size


def read_build(bundle: Bundle, target: str) -> Build:
    """The target's build.json, checked against its vmfb and this machine; StrixhloError says what does not fit."""
    target = built_target(bundle, target)
    folder = bundle.target_dir(target)
    if not folder.is_dir():
        raise StrixhloError(
            f"{bundle.path}: not compiled for {target}; run `strixhlo compile {bundle.path} --target {target}`"
        )
    build = read_record(folder / BUILD, Build, "build")
    again = _again(bundle, target)
    if build.target != target:
        raise StrixhloError(f"{folder}: built for {build.target}, not for {target}; {again}")
    if not (folder / VMFB).is_file():
        raise StrixhloError(f"{folder}: the build is not whole, {VMFB} is missing; {again}")
    if sha256_file(folder / VMFB) != build.vmfb_sha256:
        raise StrixhloError(f"{folder / VMFB}: is not the file that {BUILD} describes; {again}")
    if build.program_sha256 != bundle.manifest.program_sha256:
        raise StrixhloError(f"{folder}: compiled from another program than this bundle's; {again}")
    if build.interface_sha256 not in ("", interface_sha256(bundle.manifest)):
        raise StrixhloError(f"{folder}: {MANIFEST} says other weights, KV cache or entry points than then; {again}")
    missing = sorted(set(build.cpu_features) - cpuinfo_flags())
    if missing:
        raise StrixhloError(
            f"{folder / VMFB}: needs the CPU features {', '.join(missing)}, which this machine lacks;"
            f" compile with --target cpu here, or for a lower level such as cpu:x86-64-v3"
        )
    return build


def version_line(bundle: Bundle, build: Build) -> str:
    """ "" for a build of this strixhlo; else a line that says that it is another's, and what to do."""
    if build.lowering_sha256 == lowering_sha256(build.target.partition(":")[0]):
        return ""
    version = build.versions.get("strixhlo", "")[:40]
    return (
        f"{bundle.target_dir(build.target)}: built by another version of strixhlo ({version or 'not known'}) than this;"
        f" {_again(bundle, build.target)}"
    )


def built_target(bundle: Bundle, target: str) -> str:
    """The target's name as it was compiled: "cuda" means the one cuda:<chip> that is there, and "rocm:gfx1151" a "rocm"
    that was built for that chip. Raises StrixhloError for an unknown kind, and where several builds could be meant.
    """
    folder = bundle.target_dir(target)
    kind, _, variant = target.partition(":")
    if kind not in DRIVERS:
        raise StrixhloError(f"target {target!r} is not known; choose one of {', '.join(DRIVERS)}")
    if folder.is_dir():
        return target
    builds = [read_record(p, Build, "build") for p in sorted(bundle.path.glob(f"{kind}*/{BUILD}"))]
    if not variant:
        found = [b.target for b in builds if b.target.startswith(f"{kind}:")]
    else:
        found = [b.target for b in builds if b.target == kind and any(f.endswith(f"={variant}") for f in b.flags)]
    if len(found) > 1:
        raise StrixhloError(f"{bundle.path}: compiled for {' and '.join(found)}; name one of them with --target")
    return found[0] if found else target


def _again(bundle: Bundle, target: str) -> str:
    return f"run `strixhlo compile {bundle.path} --target {target}` again"


def _weight_files(bundle: Bundle) -> list[tuple[Path, dict[str, Parameter]]]:
    """The archive and the checkpoint's files that are referred to, each with its parameters; the archive also with
    those of whole weights, which some programs take in place of their parts."""
    m = bundle.manifest
    files = [(None, bundle.weights), *((i, Path(r.path)) for i, r in enumerate(m.references))]
    parameters = m.parameters | {name: span.parameter for name, span in weight_spans(m.parameters).items()}
    inside = [(path, {n: p for n, p in parameters.items() if p.file == i}) for i, path in files]
    return [(path, of_file) for path, of_file in inside if of_file]


@dataclass(frozen=True)
class Started:
    """A call that the device may still be busy with. tokens: its output of that name on the device; pools: the KV pools
    behind it."""

    fetched: Fetched | np.ndarray | None
    tokens: Any
    pools: list[Any]

    def read(self) -> np.ndarray:
        """The output that was asked for, when it is there. StrixhloError where the call failed."""
        if self.fetched is None:
            raise ValueError("no output was asked for")
        return self.fetched if isinstance(self.fetched, np.ndarray) else self.fetched.read()


class Program:
    """One loaded program. IREE's objects must go before the device they use, so close it, or use it in a `with`."""

    def __init__(
        self,
        bundle: Bundle,
        target: str,
        threads: int | None = None,
        memory_limit: int | None = None,
        say: Callable[[str], None] = lambda _line: None,
        *,
        context: int | None = None,
        plan: LoadPlan | None = None,
    ) -> None:
        """memory_limit: bytes that it may take of the device, in place of what the device has left. say: gets a line
        before anything is loaded, how much memory it needs and how much will be left; before that `version_line` if
        there is one. context: positions of its one sequence, see `cache_size`. plan: what was planned already, in place
        of memory_limit and context."""
        self.bundle = bundle
        self.build = read_build(bundle, target)
        target = self.build.target
        kind = self.build.target.partition(":")[0]
        plan = plan or load_plans([(bundle, self.build)], memory_limit, context)[0]
        self.budget, self.context = plan.budget, plan.size.context
        self.kv_cache = built_cache(bundle.manifest, self.build).model_copy(update={"rows": plan.size.rows})
        if line := version_line(bundle, self.build):
            say(line)
        say(budget_line([self.budget]))
        self.device = Device(kind, threads)
        self._context: Any = None
        self._functions: dict[str, Any] = {}
        self._queue: DeviceQueue | None = None
        self.tables = DeviceTables(self)
        try:
            further = machine_parameters(self.device)
            self._weights = Weights(_weight_files(bundle), self.device.maps_files, further)
            self._load(bundle, target)
            self._weights.loaded()
        except BaseException as error:
            clear_frames(error.__traceback__)
            self.device.close()
            raise

    def _load(self, bundle: Bundle, target: str) -> None:
        """Set the context and its functions."""
        instance = rt.VmInstance()
        try:
            # Not VmModule.mmap, which opens the file for writing too: bundles may be read-only.
            module = rt.VmModule.copy_buffer(instance, (bundle.target_dir(target) / VMFB).read_bytes())
            modules = [
                rt.create_hal_module(instance, self.device.hal),
                rt.create_io_parameters_module(instance, self._weights.provider(SCOPE)),
                module,
            ]
            self._context = rt.VmContext(instance, modules)
            self._functions = {n: module.lookup_function(n) for n in bundle.manifest.entry_points}
        except (RuntimeError, ValueError, LookupError) as error:  # IREE maps its status codes to all of these
            reason = one_line(error)
            raise StrixhloError(
                f"{bundle.target_dir(target) / VMFB}: cannot be loaded: {reason}; {_again(bundle, target)}"
            ) from None
        pools = self.kv_cache.pools()
        for name, point in bundle.manifest.entry_points.items():
            specs = (*point.inputs[:-2], *pools), (*point.outputs[:-2], *pools)
            if problem := signature_problem(self._functions[name], *specs):
                raise StrixhloError(
                    f"{bundle.target_dir(target) / VMFB}: {name} {problem}, as {MANIFEST} has it;"
                    f" {_again(bundle, target)}"
                )

        if self._functions and all(map(is_queued, self._functions.values())):
            outputs = {name: point.outputs[:-2] for name, point in bundle.manifest.entry_points.items()}
            self._queue = DeviceQueue(self.device, self._functions, outputs)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clear_frames(trace)  # what an interrupted call holds must not outlive the device either: it would crash
        self.close()

    def close(self) -> None:
        """Let go of the program, then of its device."""
        if self._queue:
            self._queue.close()
        self.tables.close()
        self._functions.clear()
        self._context = self._queue = None
        self._weights.close()
        self.device.close()

    def new_pools(self) -> list[Any]:
        """KV pools on the device, their contents undefined; StrixhloError when there is no room."""
        try:
            return [self.device.empty(spec) for spec in self.kv_cache.pools()]
        except (RuntimeError, ValueError, MemoryError):
            raise StrixhloError(
                f"the device has no room for a KV cache of {size(self.kv_cache.bytes)}; choose a smaller"
                f" {'--ctx' if self.build.kv_rows_free else '--context when exporting'}"
            ) from None

    def peak(self) -> Peak:
        """The most memory that this process has held so far, all of its programs together."""
        return peak_memory(self.build.target.partition(":")[0], self.device.hal)

    @property
    def queues(self) -> bool:
        """`start` returns before the device is done."""
        return self._queue is not None

    def call(
        self, entry: str, host: Sequence[Any], device: Sequence[Any], fetch: str = "logits"
    ) -> tuple[np.ndarray, list[Any]]:
        """Call an entry point with host arrays, or buffers that already hold them on the device; then with the KV pools
        as device buffers, which are consumed.

        Returns a copy of the output named `fetch` ("logits" or "tokens") on the host, all that leaves the device, and
        the KV pools as device buffers.
        """
        started = self.start(entry, host, device, fetch)
        return started.read(), started.pools

    def start(self, entry: str, host: Sequence[Any], device: Sequence[Any], fetch: str | None = "logits") -> Started:
        """As `call`, which may go on when this returns; fetch None: for the KV pools alone. `tokens` is good as an
        input of this entry's next call only, which writes there too."""
        point = self.bundle.manifest.entry_points[entry]
        if len(host) + len(device) != len(point.inputs):
            raise ValueError(f"{entry} takes {len(point.inputs)} arguments, not {len(host) + len(device)}")
        names = [o.name for o in point.outputs]
        got: Fetched | np.ndarray | None = None
        with self.device.turn:
            views = self._call(entry, point, host, device)
            if fetch is not None:
                spec, view = point.outputs[names.index(fetch)], views[names.index(fetch)]
                got = self._queue.fetch(entry, spec, view) if self._queue else self.device.download(spec, view)
        return Started(got, views[names.index("tokens")] if "tokens" in names else None, views[-2:])

    def send(self, entry: str, spec: TensorSpec, array: np.ndarray) -> Any:
        """A buffer on the device that holds an input of later calls of an entry, until it is sent again."""
        return self._queue.send(entry, spec, array) if self._queue else self.device.upload(spec, array)

    def settle(self) -> None:
        """Wait until the device has done all that was started."""
        if self._queue:
            self._queue.wait()

    def call_for_all(
        self, entry: str, host: Sequence[Any], device: Sequence[Any]
    ) -> tuple[dict[str, np.ndarray], list[Any]]:
        """As `call`, with copies of all outputs, the KV pools too, by name."""
        point = self.bundle.manifest.entry_points[entry]
        with self.device.turn:
            views = self._call(entry, point, host, device)
            self.settle()
            outputs = (*point.outputs[:-2], *self.kv_cache.pools())  # the pools as they were made here
            found = {o.name: self.device.download(o, view) for o, view in zip(outputs, views, strict=True)}
            return found, views[-2:]

    def _call(self, entry: str, point: EntryPoint, host: Sequence[Any], device: Sequence[Any]) -> list[Any]:
        arguments = rt.VmVariantList(len(point.inputs))
        for spec, value in zip(point.inputs, host, strict=False):
            arguments.push_ref(self.send(entry, spec, value) if isinstance(value, np.ndarray) else value)
        for view in device:
            arguments.push_ref(view)
        if self._queue:
            self._queue.push_storage(entry, arguments)
            for fence in self._queue.fences():
                arguments.push_ref(fence)
        results = rt.VmVariantList(len(point.outputs))
        try:
            with patient_wait() if self.device.on_host else nullcontext():
                self._context.invoke(self._functions[entry], arguments, results)
        except (RuntimeError, ValueError, LookupError, MemoryError) as error:
            if self._queue:
                self._queue.withdraw()
            raise StrixhloError(f"{entry} failed on the device: {one_line(error)}") from None
        return [results.get_as_object(i, rt.HalBufferView) for i in range(len(point.outputs))]
