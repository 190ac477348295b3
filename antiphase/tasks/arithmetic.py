"""Chains of variable assignments among distractor chains; the last variable is queried.

    <bos> x3 = 4 ;  x7 = 2 ;    x1 = x3 + 5 ;  x2 = x7 + 1 ;  x9 = x1 + 8 ;  ?  x9  7
          chain     distractor  chain          distractor     chain          query, target (mod 10)

A chain starts with a number; each further step adds a digit to the previous variable. `others`
chains of the same form are interleaved with it. The statements of a chain keep their order. With
`asked` above 1, variables of all chains are queried before the last one: more targets per sequence,
for training.
"""

from dataclasses import dataclass

import numpy as np

from antiphase.tasks.base import PAD, Array, Examples, Role, Task, TaskOptions, numbered
from antiphase.tasks.counter_rng import CounterRNG

STATEMENT = 6  # tokens: `x = y + 5 ;`
QUERY = 3  # tokens: `? x 7`


@dataclass(frozen=True)
class ArithmeticOptions(TaskOptions):
    """The chains and queries of a sequence.

    Attributes:
        steps: assignments per chain.
        others: distractor chains.
        variables: number of different variables in the vocabulary.
        modulus: of all numbers.
        asked: number of queries; the last one is that of the chain's last variable.
    """

    steps: int = 3
    others: int = 2
    variables: int = 16
    modulus: int = 10
    asked: int = 1

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
        if not 1 <= self.asked <= self.statements:
            raise ValueError(
                f"asked: got {self.asked}, expected 1 to the {self.statements} variables of steps="
                f"{self.steps} and others={self.others}"
            )
        if self.needed > self.length:
            raise ValueError(
                f"length: {self.length} tokens are fewer than the {self.needed} that steps="
                f"{self.steps}, others={self.others} and asked={self.asked} need; raise length"
            )

    @property
    def statements(self) -> int:
        """Return the number of assignments per sequence."""
        return self.steps * (1 + self.others)

    @property
    def needed(self) -> int:
        """Return the tokens that a sequence needs: first token, statements, queries, targets."""
        return 1 + STATEMENT * self.statements + QUERY * self.asked


class Arithmetic(Task):
    """Values through chains of assignments."""

    name = "arithmetic"
    Options = ArithmeticOptions
    unkeyed_options = ("asked",)  # a single query gives the examples that it always gave

    def build_vocabulary(self) -> list[str]:
        options = self.options
        self.equals, self.plus, self.stop, self.question = range(2, 6)
        self.first_number, self.first_variable = 6, 6 + options.modulus
        numbers, variables = numbered("", options.modulus), numbered("x", options.variables)
        return ["<pad>", "<bos>", "=", "+", ";", "?", *numbers, *variables]

    @property
    def chance(self) -> float:
        return 1 / self.options.modulus

    def generate(self, rng: CounterRNG) -> Examples:
        options, B = self.options, rng.size
        L, n, chains = options.steps, options.statements, 1 + options.others
        names = self.first_variable + rng.permutations("names", options.variables)[:, :n]
        names = names.reshape(B, chains, L)
        digits = rng.integers("digits", n, options.modulus).reshape(B, chains, L)
        statements = self._statements(names, digits)  # [B, chains, L, 6]
        # Interleave: the chain of each position is drawn, and each chain fills its own in order.
        chain = np.repeat(np.arange(chains), L)[rng.permutations("weave", n)]  # [B, n]
        step = np.zeros_like(chain)
        for c in range(chains):
            here = chain == c
            step = np.where(here, np.cumsum(here, axis=1) - 1, step)
        body = statements[np.arange(B)[:, None], chain, step]  # [B, n, 6]
        values = self.first_number + digits.cumsum(axis=2) % options.modulus
        asked = self._asked(rng)  # [B, asked], numbers of statements, chain by chain
        queries = np.full((B, options.asked, QUERY), self.question, dtype=np.int64)
        queries[..., 1] = np.take_along_axis(names.reshape(B, n), asked, axis=1)
        queries[..., 2] = np.take_along_axis(values.reshape(B, n), asked, axis=1)
        return self._assemble(chain, body, queries)

    def _asked(self, rng: CounterRNG) -> Array:
        """Return the queried variables [B, asked]: any other ones, then the last of the chain."""
        options = self.options
        last = np.full((rng.size, 1), options.steps - 1)
        if options.asked == 1:
            return last
        others = rng.permutations("asked", options.statements - 1)[:, : options.asked - 1]
        return np.concatenate([others + (others >= last), last], axis=1)

    def _statements(self, names: Array, digits: Array) -> Array:
        """Return `x = y + 5 ;` per step, the first of a chain padded: `x = 5 ; <pad> <pad>`."""
        out = np.full((*names.shape, STATEMENT), PAD, dtype=np.int64)
        out[..., 0], out[..., 1] = names, self.equals
        out[:, :, 0, 2], out[:, :, 0, 3] = self.first_number + digits[:, :, 0], self.stop
        out[:, :, 1:, 2], out[:, :, 1:, 3] = names[:, :, :-1], self.plus
        out[:, :, 1:, 4], out[:, :, 1:, 5] = self.first_number + digits[:, :, 1:], self.stop
        return out

    def _assemble(self, chain: Array, body: Array, queries: Array) -> Examples:
        """Return the sequences: padding, the statements, then the queries with their targets.

        Args:
            chain: of each statement, [B, n].
            body: tokens of each statement, [B, n, 6].
            queries: tokens of each query and its target, [B, asked, 3].
        """
        B, n = chain.shape
        out = Examples.blank(B, self.options.length, PAD)
        out.roles[:, 1:] = Role.PAD
        stop = self.options.length - QUERY * self.options.asked
        start = stop - STATEMENT * n
        out.tokens[:, start:stop] = body.reshape(B, -1)
        relevant = (chain == 0)[..., None] & (body != PAD)
        roles = np.where(relevant, Role.KEY, np.where(body == PAD, Role.PAD, Role.NOISE))
        is_number = (body >= self.first_number) & (body < self.first_variable)
        roles = np.where(relevant & is_number, Role.ANSWER, roles)
        out.roles[:, start:stop] = roles.reshape(B, -1)
        out.needle[:, start:stop] = np.where(relevant, 0, -1).reshape(B, -1)
        out.tokens[:, stop:] = queries.reshape(B, -1)
        out.roles[:, stop:] = (Role.QUERY, Role.QUERY, Role.TARGET) * self.options.asked
        out.needle[:, -QUERY:] = 0  # where the answers to the other queries are is not marked
        out.label_targets()
        return out
