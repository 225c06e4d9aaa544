"""python tests/cuda_kit run FOLDER; `build FOLDER [TARGET]` is the second half of `make cuda-kit`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])


def main(arguments: list[str]) -> None:
    """The command line."""
    import cuda_kit
    from cuda_kit import device

    match arguments:
        case ["build", folder, *target]:
            from cuda_kit.programs import build

            print(f"{build(Path(folder), *target)} calls of kernels in {folder}")
        case ["run", folder]:
            raise SystemExit(1 if device.run(Path(folder)) else 0)
        case ["module", folder, name]:
            device.run_module(Path(folder), name)
        case _:
            raise SystemExit(cuda_kit.__doc__)


main(sys.argv[1:])
