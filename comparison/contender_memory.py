"""The most memory that one side of a comparison holds, measured in a process of its own.

`python -m strixhlo.comparison.contender_memory '{...}'` loads that side alone, lets it take a prompt and decode, and
prints what the kernel counted: both sides run in one process while they are compared, where nothing could tell them
apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle import open_bundle
from ..errors import StrixhloError
from ..runtime.child import ask
from ..runtime.peak import SidePeak, resident_memory

if TYPE_CHECKING:
    from ..runtime.native.contender import Contender

SECONDS = 1800


def side_peak(bundle: Path, native: str | None, **options: Any) -> SidePeak | str:
    """Of `native`, None: of our program for options["target"]; in words why it is not known.

    options: target, source, threads, ids (of a text), length (of the prompt that is made of them), decode (steps).
    """
    if native is not None and native.startswith(("http://", "https://")):
        return "not known of a server"
    request = json.dumps({"bundle": str(bundle), "native": native} | options, default=str)
    found, why = ask("contender_memory", request, timeout=SECONDS, package=__package__)
    return SidePeak(**found) if isinstance(found, dict) else f"not known: {why}"


def measured(request: dict[str, Any]) -> SidePeak:
    """Load, run, and read the kernel's count; in this process."""
    from .native_engine import open_native, open_target

    bundle, steps = open_bundle(Path(request["bundle"])), request["decode"]
    prompt = [request["ids"][i % len(request["ids"])] for i in range(request["length"])]
    before = resident_memory()[0]
    source = Path(request["source"]) if request["source"] else None
    side: Contender
    if request["native"] is None:
        side = open_target(request["target"], bundle, request["threads"])
    else:
        side = open_native(request["native"], source, bundle, request["threads"], len(prompt) + steps)
    side.run(prompt, steps)
    device = getattr(getattr(getattr(side, "engine", None), "program", None), "peak", lambda: None)()
    _, most = resident_memory()
    side.close()
    return SidePeak(most, None if most is None or before is None else most - before, device and device.device)


def main(arguments: Sequence[str]) -> None:
    """Prints one line of JSON, or on standard error why not."""
    try:
        print(json.dumps(vars(measured(json.loads(arguments[0])))))
    except StrixhloError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
