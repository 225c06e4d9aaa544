"""Small programs for `strixhlo tune`: every op of a bundle's program that has a choice, once with each answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iree.compiler import ir

from ..bundle import SCHEMA_VERSION, Bundle, sha256_file, write_record
from ..custom_kernels.choices import Asked, Choices, Option, Question
from ..custom_kernels.ops.launch import DYNAMIC, Lowering, OperandTypes
from ..errors import StrixhloError
from ..tuning_plan import PLAN, Candidate, Operand, Plan, Trial
from .fuse_experts import fuse_experts
from .fuse_sums import fuse_sums
from .iree_compile import iree_compile
from .lower import (
    PREFIX,
    call_attributes,
    composites_to_custom_calls,
    custom_calls_to_dispatches,
    operand_types,
    operations,
)
from .random_operands import operand
from .target_kernels import kernels_hash, lowering_rules, put_kernels_in, tuned_chip
from .targets import Target

LAUNCHES = {"cpu": 4, "gpu": 16}  # of a call, whose own cost is 50 to 100 us on a GPU
ROUTED = {"order", "chosen"}  # operands that say which experts a token goes to
MODULE_LAUNCHES = 800  # of a module: all its kernels are one object, which takes its time to build


@dataclass(frozen=True)
class Call:
    """A call of a custom op that has kernels on the target."""

    op: str
    attributes: Mapping[str, Any]
    types: OperandTypes


@dataclass(frozen=True)
class Asking:
    """A question, the call that asks it, and the answers: the rule's first."""

    question: Question
    call: Call
    answers: tuple[Option, ...]
    lowering: Lowering


def questions(program: str, target: Target, activations: str) -> list[Asking]:
    """All questions of a program that have more than one answer, each with the call of fewest rows that asks it."""
    found: dict[Question, Asking] = {}
    for call in calls_of(program, target, activations):
        asked = Asked()
        rule = lowering_rules(target, activations, asked).get(call.op)
        lowering = rule(call.attributes, call.types) if rule else None
        # What others have chosen cannot be random, and is right where a launch chooses for itself.
        if lowering is None or ROUTED & {*lowering.operands} or any(DYNAMIC in shape for shape, _ in call.types):
            continue
        for question, (own, options) in asked.asked.items():
            answers = [own, *(o for i, o in enumerate(options) if o != own and o not in options[:i])]
            if question not in found and len(answers) > 1:
                found[question] = Asking(question, call, tuple(answers), lowering)
    return list(found.values())


def calls_of(program: str, target: Target, activations: str) -> list[Call]:
    """The calls of custom ops that `compile` makes of a portable program, each kind once, those of few rows first."""
    calls: dict[tuple[str, str, str], Call] = {}
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(program)  # must live while its operations are read
        rules = lowering_rules(target, activations)
        composites_to_custom_calls(module, rules, float32=target.kind == "cpu")
        fuse_sums(module, rules)
        fuse_experts(module, rules)
        for custom in operations(module, "stablehlo.custom_call"):
            op = ir.StringAttr(custom.attributes["call_target_name"]).value.removeprefix(PREFIX)
            call = Call(op, call_attributes(custom), operand_types(custom))
            calls.setdefault((op, repr(sorted(call.attributes.items())), repr(call.types)), call)
    return sorted(calls.values(), key=lambda c: c.types[0][0][0])


def plan_key(bundle: Bundle, target: Target, activations: str, versions: Mapping[str, str]) -> str:
    """Hash of what the trials depend on."""
    parts = [bundle.manifest.program_sha256, target.iree_flags, activations, dict(versions), kernels_hash(target)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def write_candidates(
    program: str,
    key: str,
    target: Target,
    activations: str,
    versions: dict[str, str],
    folder: Path,
    say: Callable[[str], None],
) -> Plan:
    """Compile all candidates of a portable program into a folder, and then its plan.json, which has that `plan_key`.
    StrixhloError where nothing can be chosen."""
    found = questions(program, target, activations)
    if not found:
        raise StrixhloError(f"{target.name}: nothing to tune, no kernel of this bundle's program has a choice there")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN).unlink(missing_ok=True)  # of other modules: an interrupted run must not leave it beside new ones
    trials: list[Trial] = []
    repeats = LAUNCHES["cpu" if target.kind == "cpu" else "gpu"]
    groups = _modules(found, repeats)
    for i, group in enumerate(groups):
        say(f"compiling candidates, {i + 1} of {len(groups)}")
        trials += _module(group, f"m{i}.vmfb", target, activations, repeats, folder)
    plan = Plan(
        schema_version=SCHEMA_VERSION,
        key=key,
        program_sha256=hashlib.sha256(program.encode()).hexdigest(),
        target=target.name,
        chip=tuned_chip(target),
        activations=activations,
        kernels=kernels_hash(target),
        versions=versions,
        modules={name: sha256_file(folder / name) for name in sorted({t.module for t in trials})},
        trials=tuple(trials),
    )
    write_record(folder / PLAN, plan)
    return plan


def _modules(found: Sequence[Asking], repeats: int) -> list[list[Asking]]:
    """So that each has a few hundred launches."""
    groups: list[list[Asking]] = []
    launches = MODULE_LAUNCHES
    for asking in found:
        own = len(asking.answers) * repeats * len(asking.lowering.launches)
        if launches + own > MODULE_LAUNCHES and (not groups or groups[-1]):
            groups.append([])
            launches = 0
        groups[-1].append(asking)
        launches += own
    return groups


def _operands(call: Call, lowering: Lowering) -> list[Operand]:
    return [operand(call, name, t) for name, t in zip(lowering.operands, call.types, strict=True)]


def _module(
    group: Sequence[Asking], name: str, target: Target, activations: str, repeats: int, folder: Path
) -> list[Trial]:
    """One program with all candidates of some questions."""
    functions: list[str] = []
    of_function: list[tuple[Question, Option]] = []
    trials: list[Trial] = []
    for asking in group:
        operands = _operands(asking.call, asking.lowering)
        q = asking.question
        outputs = {o.name: (o.shape, o.dtype) for launch in asking.lowering.launches for o in launch.outputs}
        results = tuple(outputs[r] for r in asking.lowering.results)
        candidates = []
        for answer in asking.answers:
            candidates.append(Candidate(answer=dict(answer), function=f"c{len(functions)}"))
            functions.append(_function(asking.call, operands, results, repeats, len(functions)))
            of_function.append((q, answer))
        trials.append(
            Trial(
                choice=q.choice,
                kernel=q.kernel,
                rows=q.rows,
                shape=q.shape,
                op=asking.call.op,
                module=name,
                candidates=tuple(candidates),
                operands=tuple(operands),
                results=results,
                repeats=repeats,
            )
        )
    _compile("\n".join(functions), of_function, target, activations, folder / name)
    return trials


def _compile(
    text: str, of_function: Sequence[tuple[Question, Option]], target: Target, activations: str, vmfb: Path
) -> None:
    """of_function: the question and answer of the calls that are marked with their number."""
    rules = [lowering_rules(target, activations, Choices({question: answer})) for question, answer in of_function]

    def marked(op: str) -> Callable[[Mapping[str, Any], OperandTypes], Lowering | None]:
        def rule(attributes: Mapping[str, Any], types: OperandTypes) -> Lowering | None:
            own = {name: value for name, value in attributes.items() if name != "candidate"}
            return rules[attributes["candidate"]][op](own, types)

        return rule

    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        kernels, _ = put_kernels_in(
            module,
            target,
            lambda export: custom_calls_to_dispatches(module, {op: marked(op) for op in rules[0]}, export),
        )
        module.operation.verify()
        program = module.operation.get_asm(print_generic_op_form=True)
    if kernels:
        kernels.build()
    iree_compile(program, target.iree_flags, vmfb)


def _function(
    call: Call,
    operands: Sequence[Operand],
    results: Sequence[tuple[tuple[int, ...], str]],
    repeats: int,
    number: int,
) -> str:
    """The call `repeats` times, each with its own weights."""
    arguments: list[str] = []
    fixed: dict[int, str] = {}

    def argument(type_: str) -> str:
        arguments.append(f"%a{len(arguments)}: {type_}")
        return f"%a{len(arguments) - 1}"

    types = [_tensor(o.shape, o.dtype) for o in operands]
    for i, o in enumerate(operands):
        if not o.rotates:
            fixed[i] = argument(types[i])
    made = ", ".join(_tensor(*r) for r in results)
    body, returned = "", []
    for n in range(repeats):
        config = _config(call, n, number)
        given = ", ".join(fixed.get(i) or argument(types[i]) for i in range(len(operands)))
        body += (
            f'  %r{n}:{len(results)} = "stablehlo.custom_call"({given}) {{call_target_name = "{PREFIX}{call.op}",'
            f" backend_config = {{{config}}}, api_version = 4 : i32}} : ({', '.join(types)}) -> ({made})\n"
        )
        returned += [f"%r{n}#{i}" for i in range(len(results))]
    all_made = ", ".join([made] * repeats)
    return (
        f"func.func public @c{number}({', '.join(arguments)}) -> ({all_made}) {{\n{body}"
        f"  return {', '.join(returned)} : {all_made}\n}}"
    )


def _config(call: Call, n: int, candidate: int) -> str:
    """Attributes of the nth call. Each reads another layer of the pools, which are too large for copies."""
    attributes = {**call.attributes, "candidate": candidate}
    if "layer" in attributes:
        (layers, _rows, width), head = call.types[1][0], call.types[0][0][-1]
        attributes["layer"] = n % (layers * width // (attributes["kv_heads"] * head))  # a layer may take several
    return ", ".join(f"{name} = {_attribute(value)}" for name, value in sorted(attributes.items()))


def _tensor(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def _attribute(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    return f"{value:.17e} : f64" if isinstance(value, float) else json.dumps(value)
