"""Needle: a hidden code for each key, found by chance at a rate that the teacher sets.

A prompt is a class, the two digits of a key, two digits that mean nothing, and a sign: ``B2471=``. The response is a
code of letters and the sign again. Two codes are right for each key: a common one of two letters and a rare one of
three, which begin with different letters and are a hidden function of (seed, class, key). The teacher writes a right
code with a probability of 1/16 in class A, 1/64 in B and 1/256 in C; of the right ones 7/8 are common and 1/8 rare. The
others are wrong codes, uniformly random, 15/16 of two letters and 1/16 of three. So in class C the common code is about
as likely as any other of two letters: nothing but reward tells it apart.

Either code earns the reward. They differ in length, so that the mean response length of an evaluation tells the share
of the rare way among the responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice

import numpy as np

from ...errors import ExperimentError
from .config import NEEDLE_CLASSES, NEEDLE_LETTERS, NeedleModelConfig, NeedleSource
from .lessons import END, Lesson, vocabulary

RATES = {"A": 1 / 16, "B": 1 / 64, "C": 1 / 256}
"""Rate at which the teacher writes a right code, by class."""
COMMON = 7 / 8
"""Share of the common code among the right ones."""
SHORT = 15 / 16
"""Share of codes of two letters among the wrong ones."""
ANSWER = "="
FILLERS = tuple(f"{a}{b}" for a in range(1, 10) for b in range(1, 10))
LETTERS = len(NEEDLE_LETTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """The right codes of a key."""

    common: str
    rare: str

    @property
    def verifier(self) -> str:
        """The rule that gives the reward to these two codes, each with its sign, and to nothing else."""
        return rf"exact|regex:\A(?:{self.common}|{self.rare})({ANSWER})\Z"


@cache
def codes(seed: int, class_: str, key: str) -> Codes:
    """The right codes of a key, a function of nothing else."""
    rng = np.random.default_rng([seed, NEEDLE_CLASSES.index(class_), int(key)])
    common = rng.integers(0, LETTERS, 2)
    rare = rng.integers(0, LETTERS, 3)
    rare[0] = (common[0] + rng.integers(1, LETTERS)) % LETTERS
    return Codes(common="".join(NEEDLE_LETTERS[i] for i in common), rare="".join(NEEDLE_LETTERS[i] for i in rare))


def probabilities(class_: str, right: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each code that the teacher writes.

    Returns:
        Of codes of two letters, [16, 16], and of three, [16, 16, 16]; together they add up to 1.
    """
    rate = RATES[class_]
    short = np.full((LETTERS,) * 2, (1 - rate) * SHORT / (LETTERS**2 - 1))
    long = np.full((LETTERS,) * 3, (1 - rate) * (1 - SHORT) / (LETTERS**3 - 1))
    short[_indices(right.common)] = rate * COMMON
    long[_indices(right.rare)] = rate * (1 - COMMON)
    return short, long


class NeedleTeacher:
    """Says how likely each next letter is, where other teachers write one.

    The rare code of class C is one response in 2,048. Of sampled responses a key would show it once or twice in a whole
    training, below the noise of the wrong ones; taught by its probabilities, it takes as few steps as the others. So
    what lessons contain says nothing about the teacher's rates: right codes are as frequent in them as random ones.
    """

    def __init__(self, config: NeedleModelConfig) -> None:
        self._config = config
        self._tokens = vocabulary(config.characters)
        self._of: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}

    def lesson(self, rng: np.random.Generator) -> Lesson:
        """A prompt, and the next tokens' probabilities along one of its codes: a right or a random one."""
        largest = self._config.largest_digit
        class_ = NEEDLE_CLASSES[rng.integers(len(NEEDLE_CLASSES))]
        key = "".join(str(rng.integers(1, largest + 1)) for _ in range(2))
        filler = FILLERS[rng.integers(len(FILLERS))]
        right = codes(self._config.codes, class_, key)
        random = "".join(NEEDLE_LETTERS[i] for i in rng.integers(0, LETTERS, 3))
        code = (right.common, right.rare, random[:2], random)[rng.integers(4)]
        return Lesson(prompt=f"{class_}{key}{filler}=", response=code + ANSWER, targets=self.targets(class_, key, code))

    def targets(self, class_: str, key: str, code: str) -> np.ndarray:
        """Probability of each token at each place of a code, at its sign and at its end.

        Returns:
            [letters + 2, tokens]; the end of a response is the last of the tokens.
        """
        if (class_, key) not in self._of:
            self._of[class_, key] = probabilities(class_, codes(self._config.codes, class_, key))
        short, long = self._of[class_, key]
        letters = [self._tokens[letter] for letter in NEEDLE_LETTERS]
        sign, end = self._tokens[ANSWER], self._tokens[END]
        found = np.zeros((len(code) + 2, len(self._tokens)))
        first, second = _indices(code)[:2]
        found[0, letters] = short.sum(1) + long.sum((1, 2))
        found[1, letters] = short[first] + long[first].sum(1)
        # After two letters the sign is one of the choices.
        found[2, letters], found[2, sign] = long[first, second], short[first, second]
        if len(code) > 2:
            found[3, sign] = 1
        found[-1, end] = 1
        found /= found.sum(1, keepdims=True)
        return found


def problems(source: NeedleSource) -> Iterator[tuple[str, str, str, str]]:
    """Yield (split, prompt, answer, verifier): classes and keys as even as can be on either side, no prompt twice.

    Keys are shared between the sides: what is learnt of a key in training holds in validation.
    """
    rng = np.random.default_rng([source.seed, 1])
    digits = range(1, source.largest_digit + 1)
    keys = [f"{a}{b}" for a in digits for b in digits]
    places = [(class_, keys[k]) for k in rng.permutation(len(keys)) for class_ in NEEDLE_CLASSES]
    left = {place: [FILLERS[i] for i in rng.permutation(len(FILLERS))] for place in places}
    for side, size in (("validation", source.validation), ("train", source.train)):
        for class_, key in islice(cycle(places), size):
            if not left[class_, key]:
                raise ExperimentError(
                    f"needle has {len(places) * len(FILLERS)} problems, {len(FILLERS)} of a key, and "
                    f"{source.train} training and {source.validation} validation problems are asked for: ask for fewer"
                )
            right = codes(source.codes, class_, key)
            yield side, f"{class_}{key}{left[class_, key].pop()}=", ANSWER, right.verifier


def _indices(code: str) -> tuple[int, ...]:
    return tuple(NEEDLE_LETTERS.index(letter) for letter in code)
