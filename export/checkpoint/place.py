"""Where bytes lie in a file, and reading them without mapping the file.

Data are read, not mapped: a file that is cut short while it is being exported is then an error in place of a SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import StrixhloError

PIECE = 16 << 20


@dataclass(frozen=True)
class Place:
    """A range of a file. what: whose bytes they are, for errors."""

    path: Path
    offset: int
    nbytes: int
    what: str

    def read(self) -> np.ndarray:
        """All bytes: uint8 [nbytes]. StrixhloError when the file has become shorter or cannot be read."""
        data = np.empty(self.nbytes, np.uint8)
        at = 0
        for piece in self.pieces():
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return data

    def pieces(self, size: int = PIECE) -> Iterator[bytes]:
        """The bytes in order, at most `size` at a time; errors as `read`."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StrixhloError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        try:
            at, end = self.offset, self.offset + self.nbytes
            while at < end:
                piece = os.pread(descriptor, min(size, end - at), at)
                if not piece:
                    raise StrixhloError(
                        f"{self.path}: ends at byte {at}, in the middle of {self.what} (it was longer before);"
                        f" download it again"
                    )
                at += len(piece)
                yield piece
        except OSError as error:
            raise StrixhloError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
