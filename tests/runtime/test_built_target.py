"""Which build `--target` means."""

from __future__ import annotations

from pathlib import Path

import pytest

from strixhlo.bundle import BUILD, Build, Bundle, read_record, write_record
from strixhlo.errors import StrixhloError
from strixhlo.runtime.program import built_target


def add_build(bundle: Bundle, original: Build, target: str, flags: tuple[str, ...] = ()) -> None:
    folder = bundle.target_dir(target)
    folder.mkdir(parents=True)
    write_record(folder / BUILD, original.model_copy(update={"target": target, "flags": flags}))


def test_a_kind_means_its_only_build(tiny: Bundle, tmp_path: Path) -> None:
    original = read_record(tiny.path / "cpu" / BUILD, Build, "build")
    bundle = Bundle(tmp_path, tiny.manifest)
    assert built_target(bundle, "cuda") == "cuda"  # nothing there: the caller says how to compile it
    add_build(bundle, original, "cuda:sm_89")
    assert built_target(bundle, "cuda") == "cuda:sm_89"
    assert built_target(bundle, "cuda:sm_80") == "cuda:sm_80"
    add_build(bundle, original, "cuda:sm_80")
    with pytest.raises(StrixhloError, match="compiled for cuda:sm_80 and cuda:sm_89; name one"):
        built_target(bundle, "cuda")
    assert built_target(bundle, "cuda:sm_80") == "cuda:sm_80"


def test_a_chip_means_the_build_for_it(tiny: Bundle, tmp_path: Path) -> None:
    original = read_record(tiny.path / "cpu" / BUILD, Build, "build")
    bundle = Bundle(tmp_path, tiny.manifest)
    add_build(bundle, original, "rocm", ("--iree-rocm-target=gfx1151",))
    assert built_target(bundle, "rocm:gfx1151") == "rocm"
    assert built_target(bundle, "rocm:gfx1201") == "rocm:gfx1201"


def test_an_unknown_kind_is_named(tiny: Bundle) -> None:
    with pytest.raises(StrixhloError, match="target 'gpu' is not known; choose one of cpu, rocm, cuda, vulkan"):
        built_target(tiny, "gpu")
