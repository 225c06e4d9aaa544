"""What a lowering rule may choose, and the one place where a table of measurements decides it in the rule's stead.

A rule asks a `Question` with the answer that it would give and all that the kernel can do. `strixhlo tune` collects the
questions of a program, measures the options, and writes a table (choice_table.py) of the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Names and numbers, such as {"lanes": 8, "workgroups": 40}.
Option = Mapping[str, int | str]


@dataclass(frozen=True)
class Question:
    """choice: what is chosen ("gemv", ...); kernel: of which weights or cache; rows: of the activations, 0 where the
    answer must be the same for any number of rows (then each is summed in the same order); shape: of the weights."""

    choice: str
    kernel: str
    rows: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Choices:
    """The answers of a table; without an entry, a rule's own. refused: those that no kernel has, written down when
    they are asked for."""

    entries: Mapping[Question, Option] = field(default_factory=dict)
    refused: dict[Question, Option] = field(default_factory=dict, compare=False)

    def pick(self, question: Question, rule: Option, options: Sequence[Option]) -> Option:
        """The table's answer, else the rule's. options: all that is possible; an answer that is none of them is of
        other kernels or made up, and the rule's takes its place."""
        found = self.entries.get(question)
        if found is None or found in options:
            return rule if found is None else found
        self.refused[question] = found
        return rule


@dataclass(frozen=True)
class Asked(Choices):
    """Writes down what is asked: question -> (the rule's answer, all options). Answers as `Choices` does."""

    asked: dict[Question, tuple[Option, tuple[Option, ...]]] = field(default_factory=dict)

    def pick(self, question: Question, rule: Option, options: Sequence[Option]) -> Option:
        self.asked.setdefault(question, (rule, tuple(options)))
        return super().pick(question, rule, options)


RULES_ONLY = Choices()
