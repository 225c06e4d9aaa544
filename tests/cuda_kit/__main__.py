"""python tests/cuda_kit run FOLDER; `build FOLDER [TARGET]` is the second half of `make cuda-kit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

sys.path[0] = str(Path(__file__).parents[1])


def main(arguments: list[str]) -> None:
    """The command line."""
    import cuda_kit
    from cuda_kit import device

    match arguments:
        case ["build", folder, *target]:
            from cuda_kit.programs import build
            from strixhlo.errors import StrixhloError

            try:
                print(f"{build(Path(folder), *target)} calls of kernels in {folder}")
            except StrixhloError as error:
                _fail(error)
        case ["run", folder]:
            try:
                raise SystemExit(1 if device.run(Path(folder)) else 0)
            except device.NoKit as error:
                _fail(error)
        case ["module", folder, name]:
            device.run_module(Path(folder), name)
        case _:
            raise SystemExit(cuda_kit.__doc__)


def _fail(error: Exception) -> NoReturn:
    print(f"cuda_kit: {error}", file=sys.stderr)
    raise SystemExit(2)


main(sys.argv[1:])
