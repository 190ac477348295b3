"""Chains of assignments among distractors, and a question for the last variable.

    <bos> x3 = 4 ;  x7 = 2 ;  x1 = x3 + 5 ;  x2 = x7 + 1 ;  x9 = x1 + 8 ;  ?  x9  7
          chain     other     chain          other          chain             answer (mod 10)

A chain starts with a number; each further step adds a digit to the variable before it. `others`
chains of the same shape stand between. Statements of a chain keep their order.
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import PAD, Examples, Role, Task, TaskOptions, named
from antiphase.tasks.counter_rng import Draw


@dataclass(frozen=True)
class ArithmeticOptions(TaskOptions):
    """`steps` a chain, `others` chains beside it, numbers modulo `modulus`."""

    steps: int = 3
    others: int = 2
    variables: int = 16
    modulus: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.modulus < 2:
            raise ValueError(
                f"steps, modulus: got {self.steps}, {self.modulus}, expected at least 1 and 2"
            )
        if self.statements > self.variables:
            raise ValueError(
                f"variables: {self.variables} are fewer than the {self.statements} statements of "
                f"steps={self.steps} and others={self.others}; raise variables"
            )
        if self.needed > self.length:
            raise ValueError(
                f"length: {self.length} tokens are fewer than the {self.needed} that steps="
                f"{self.steps} and others={self.others} need; raise length"
            )

    @property
    def statements(self) -> int:
        """Return the assignments of a text."""
        return self.steps * (1 + self.others)

    @property
    def needed(self) -> int:
        """Return the tokens of a text: first token, statements of six, question and answer."""
        return 1 + 6 * self.statements + 3


class Arithmetic(Task):
    """Values through chains of assignments."""

    name = "arithmetic"
    Options = ArithmeticOptions

    def vocabulary(self) -> list[str]:
        o = self.options
        signs = ["=", "+", ";", "?"]
        self.equals, self.plus, self.stop, self.question = range(2, 6)
        self.number, self.variable = 6, 6 + o.modulus
        return ["<pad>", "<bos>", *signs, *named("", o.modulus), *named("x", o.variables)]

    @property
    def chance(self) -> float:
        return 1 / self.options.modulus

    def draw(self, random: Draw) -> Examples:
        o, B = self.options, random.size
        L, n, rows = o.steps, o.statements, np.arange(random.size)[:, None]
        names = self.variable + random.permutations("names", o.variables)[:, :n]
        names = names.reshape(B, -1, L)  # [B, chains, steps]
        digits = random.integers("digits", n, o.modulus).reshape(B, -1, L)
        answer = self.number + digits[:, 0].sum(axis=1) % o.modulus
        # `x = y + 5 ;`, where the first step of a chain is padded: `x = 5 ; <pad> <pad>`
        say = np.full((B, 1 + o.others, L, 6), PAD, dtype=np.int64)
        say[..., 0], say[..., 1] = names, self.equals
        say[:, :, 0, 2], say[:, :, 0, 3] = self.number + digits[:, :, 0], self.stop
        say[:, :, 1:, 2], say[:, :, 1:, 3] = names[:, :, :-1], self.plus
        say[:, :, 1:, 4], say[:, :, 1:, 5] = self.number + digits[:, :, 1:], self.stop
        # Chains are woven: places are drawn, and each chain fills its own in order.
        chain = np.repeat(np.arange(1 + o.others), L)[random.permutations("weave", n)]
        step = np.zeros_like(chain)
        for c in range(1 + o.others):
            here = chain == c
            step = np.where(here, np.cumsum(here, axis=1) - 1, step)
        woven = say[rows, chain, step]  # [B, n, 6]
        out = Examples.blank(B, o.length, PAD)
        out.roles[:, 1:] = Role.PAD
        stop = o.length - 3
        start = stop - 6 * n
        out.tokens[:, start:stop] = woven.reshape(B, -1)
        main = (chain == 0)[..., None] & (woven != PAD)
        role = np.where(main, Role.KEY, np.where(woven == PAD, Role.PAD, Role.NOISE))
        numbers = (woven >= self.number) & (woven < self.variable)
        role = np.where(main & numbers, Role.ANSWER, role)
        out.roles[:, start:stop] = role.reshape(B, -1)
        out.needle[:, start:stop] = np.where(main, 0, -1).reshape(B, -1)
        out.tokens[:, stop] = self.question
        out.tokens[:, stop + 1], out.tokens[:, stop + 2] = names[:, 0, -1], answer
        out.roles[:, stop:] = (Role.QUERY, Role.QUERY, Role.TARGET)
        out.needle[:, stop:] = 0
        out.ask()
        return out
