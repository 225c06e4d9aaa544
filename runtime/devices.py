"""Lists the devices that IREE's driver for a kind of target finds, as JSON; a process of its own, since drivers crash.

python -m strixhlo.runtime.devices cpu|rocm|cuda|vulkan
"""

from __future__ import annotations

import json
import sys

import iree.runtime as rt

from .device import DRIVERS


def device_names(kind: str) -> list[str]:
    """Names of all devices; [] where the driver cannot start."""
    try:
        return [str(device["name"]) for device in rt.get_driver(DRIVERS[kind][0]).query_available_devices()]
    except (RuntimeError, ValueError, LookupError):
        return []


if __name__ == "__main__":
    print(json.dumps(device_names(sys.argv[1])))
