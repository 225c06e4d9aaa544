"""Asks the HIP runtime what it sees, and prints it as JSON. In a process of its own, since a broken driver crashes.

python -m strixhlo.runtime.hip_probe [LIBRARY]
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

LIBRARY = "libamdhip64.so"  # the name that IREE 3.13 looks for: one with a version, as .so.7, is not found
# What IREE 3.13's HIP driver takes from it.
SYMBOLS = (Path(__file__).parent / "data" / "hip_symbols.txt").read_text().split()


def probe(library: str = LIBRARY) -> dict[str, Any]:
    """loads, missing symbols, version, devices (name, free and total bytes as HIP says), and error codes."""
    try:
        hip = ctypes.CDLL(library)
    except OSError as error:
        return {"error": str(error)}
    found: dict[str, Any] = {"missing": [name for name in SYMBOLS if not hasattr(hip, name)], "devices": []}
    version, count = ctypes.c_int(), ctypes.c_int()
    if hasattr(hip, "hipRuntimeGetVersion") and hip.hipRuntimeGetVersion(ctypes.byref(version)) == 0:
        found["version"] = version.value
    if code := hip.hipGetDeviceCount(ctypes.byref(count)):
        return found | {"code": code}
    for index in range(count.value):
        name = ctypes.create_string_buffer(256)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        hip.hipDeviceGetName(name, len(name), index)
        hip.hipSetDevice(index)
        if hasattr(hip, "hipMemGetInfo"):
            hip.hipMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        found["devices"].append({"name": name.value.decode(errors="replace"), "free": free.value, "total": total.value})
    return found


if __name__ == "__main__":
    print(json.dumps(probe(*sys.argv[1:])))
