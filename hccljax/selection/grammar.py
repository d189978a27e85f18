"""The text of HCCL_ALGO: which algorithm each operator shall use on each level of the cluster.

    value  := levels | item ("/" item)*         # the two forms do not mix
    item   := operator "=" levels
    levels := algorithm | level (";" level)*    # an algorithm alone stands for every level
    level  := ("level0" | "level1" | "level2" | "level3") ":" algorithm

``level0`` is inside a server, ``level1`` between servers, ``level2`` between super pods. Upper and lower case
differ, blanks do not count, and the empty text leaves everything to the automatic choice.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from hccljax.errors import ArgumentError, SettingError, nearest

#: Algorithm words of HCCL's environment variable HCCL_ALGO that choose something.
HCCL_WORDS = ("ring", "pipeline", "fullmesh", "H-D_R", "pairwise", "NHR", "NHR_V1", "AHC", "AHC_BROKE", "NB")
#: Algorithm names that HCCL_ALGO takes in hccljax beyond HCCL's own.
EXTRA_WORDS = ("NHR_pipeline", "tree", "double_tree", "mesh", "bruck", "star", "double_ring", "native", "hierarchical")
#: HCCL's two words for "not chosen": the level is automatic.
UNCHOSEN = ("NA", "null")
#: The operator words of HCCL_ALGO and the operators they name; ``gather`` is hccljax's own.
OPERATOR_WORDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "gather": "gather",
}
#: The levels of HCCL_ALGO.
LEVEL_WORDS = ("level0", "level1", "level2", "level3")

_WORD_OF = {operator: word for word, operator in OPERATOR_WORDS.items()}
_OPERATORS = (*_WORD_OF, "send_recv", "barrier")
_SEPARATORS = "/=;:"
# All eight operators with four levels each stay under 1000 characters: a longer text is an accident.
_MAX_TEXT = 4096
# A longer text is shown in an error as this many characters around the offending piece.
_SHOWN = 160


@dataclass(frozen=True)
class Levels:
    """The algorithm of each level, as one operator's part of HCCL's environment variable HCCL_ALGO says it.

    ``names[i]`` is the algorithm of level i, None where the choice is automatic. Levels beyond the last are
    automatic too, so a None at the end is dropped. With ``every_level`` the one name stands for all levels.
    """

    names: tuple[str | None, ...]
    every_level: bool = False

    def __post_init__(self) -> None:
        names = tuple(self.names)
        most = 1 if self.every_level else len(LEVEL_WORDS)
        if not 1 <= len(names) <= most:
            raise SettingError(
                f"Levels got {len(names)} names with every_level={self.every_level}, expected 1 to {most}; "
                "give one name for every level, or one for each of level0 to level3"
            )
        for name in names:
            if name is not None and not _is_algorithm_word(name):
                raise SettingError(
                    f"Levels got the algorithm name {reprlib.repr(name)}, expected a word without blanks and "
                    f"without any of {_SEPARATORS}; use such a word, or None for an automatic level"
                )
        while len(names) > 1 and names[-1] is None:
            names = names[:-1]
        object.__setattr__(self, "names", names)

    def at(self, level: int) -> str | None:
        """The algorithm of the level (0 = inside a server), None where it is automatic."""
        if level < 0:
            raise ArgumentError(f"level is {level}, expected 0 or more; count levels from 0, inside a server")
        if self.every_level:
            return self.names[0]
        return self.names[level] if level < len(self.names) else None

    @property
    def automatic(self) -> bool:
        """True if no level is chosen."""
        return not any(self.names)

    def __str__(self) -> str:
        words = [name or "NA" for name in self.names]
        if self.every_level:
            return words[0]
        return ";".join(f"{LEVEL_WORDS[i]}:{word}" for i, word in enumerate(words))


@dataclass(frozen=True)
class AlgoSetting:
    """What HCCL's environment variable HCCL_ALGO chooses: one choice for all operators, or one each for some.

    ``per_operator`` holds (operator, levels) pairs, whose order has no meaning and is made canonical.
    ``str`` gives the canonical text, which parses back to an equal setting.
    """

    every_operator: Levels | None = None
    per_operator: tuple[tuple[str, Levels], ...] = ()

    def __post_init__(self) -> None:
        operators = [operator for operator, _ in self.per_operator]
        if self.every_operator is not None and operators:
            raise SettingError(
                f"AlgoSetting got levels for every operator ({self.every_operator}) and for "
                f"{', '.join(map(str, operators))}, expected one form or the other; drop one of them"
            )
        for i, operator in enumerate(operators):
            if operator not in _WORD_OF:
                raise SettingError(
                    f"AlgoSetting got the operator {reprlib.repr(operator)}, expected one of "
                    f"{', '.join(_WORD_OF)}; name one of them{nearest(operator, _WORD_OF)}"
                )
            if operator in operators[:i]:
                raise SettingError(f"AlgoSetting got {operator} twice, expected it once; drop one of the two")
        order = {operator: i for i, operator in enumerate(_WORD_OF)}
        object.__setattr__(self, "per_operator", tuple(sorted(self.per_operator, key=lambda e: order[e[0]])))

    def for_operator(self, operator: str) -> Levels | None:
        """The levels chosen for an operator such as ``all_reduce``, None if the setting does not name it.

        ``all_gather_v``, ``all_to_all_vc`` and their like follow the operator without the suffix. One choice
        for all operators names every operator.
        """
        base = operator.removesuffix("_v").removesuffix("_vc")
        if base not in _OPERATORS:
            raise ArgumentError(
                f"operator is {reprlib.repr(operator)}, expected one of {', '.join(_OPERATORS)} or a V form "
                f"such as all_gather_v; name one of them{nearest(operator, _OPERATORS)}"
            )
        if self.every_operator is not None:
            return self.every_operator
        return next((levels for named, levels in self.per_operator if named == base), None)

    @property
    def automatic(self) -> bool:
        """True if no operator has a level chosen."""
        return all(levels.automatic for _, levels in self._parts())

    def _parts(self) -> list[tuple[str, Levels]]:
        """(what stands before the levels, levels) of each part of the canonical text."""
        if self.every_operator is not None:
            return [("", self.every_operator)]
        return [(f"{_WORD_OF[operator]}=", levels) for operator, levels in self.per_operator]

    def __str__(self) -> str:
        return "/".join(f"{start}{levels}" for start, levels in self._parts())


def parse_algo(text: str, extra: Collection[str] = ()) -> AlgoSetting:
    """Reads the text of HCCL's environment variable HCCL_ALGO, in HCCL's own form or in a short one.

    Args:
      text: such as ``ring``, ``level0:ring;level1:tree`` or ``allreduce=level1:ring/allgather=level1:NHR``.
      extra: algorithm names to accept beside ``HCCL_WORDS`` and ``EXTRA_WORDS``; a frozenset is
        cheapest where the same names are passed again and again.

    Returns:
      The setting; for an empty text an empty one, which leaves everything to the automatic choice.

    Raises:
      SettingError: the text is not a setting; the message marks the offending piece and says how to mend it.

    >>> parse_algo("allreduce = level0:NA; level1:ring").for_operator("all_reduce")
    Levels(names=(None, 'ring'), every_level=False)
    """
    # Ahead of the cache, which would meet an unhashable value with an error of its own.
    if not isinstance(text, str):
        raise SettingError(
            f"HCCL_ALGO is {reprlib.repr(text)} of type {type(text).__name__}, expected a text; "
            "pass a str such as 'ring' or 'level0:NA;level1:NHR'"
        )
    if len(text) > _MAX_TEXT:
        raise SettingError(
            f"HCCL_ALGO has {len(text)} characters and starts with {text[:40]!a}, expected at most "
            f"{_MAX_TEXT}, far more than all operators with all levels need; drop what is repeated"
        )
    return _parse(text, frozenset(extra))


def strict_problems(setting: AlgoSetting) -> list[str]:
    """What HCCL itself would reject in a setting that hccljax takes, one sentence each; empty if nothing.

    HCCL's environment variable HCCL_ALGO takes HCCL's algorithm words only, wants a level before each, and
    documents ``level0`` (chosen by the hardware) as ``NA`` only.
    """
    problems = []
    for start, levels in setting._parts():
        first = levels.names[0]
        if start == "gather=":
            problems.append("HCCL has no operator gather, so its HCCL_ALGO cannot name one.")
        if levels.every_level:
            fix = f"{start}level0:NA;level1:{first if first in HCCL_WORDS else 'NA'}"
            problems.append(f"{start}{levels} is a short form that HCCL does not know; write {fix}.")
        elif first is not None:
            problems.append(f"{start}level0:{first} is not HCCL's: inside a server it takes only level0:NA.")
        for name in dict.fromkeys(levels.names):
            if name is not None and name not in HCCL_WORDS:
                words = ", ".join((*UNCHOSEN, *HCCL_WORDS))
                problems.append(f"{name} in {start}{levels} is not an algorithm word of HCCL's ({words}).")
    return problems


@dataclass(frozen=True)
class _Piece:
    """text[start:stop]: a piece of the user's text that knows where it stands, for errors to mark it."""

    text: str
    start: int
    stop: int

    @property
    def word(self) -> str:
        """The piece without blanks."""
        return "".join(self.text[self.start : self.stop].split())

    def split(self, separator: str) -> list[_Piece]:
        """The pieces between the separators, none of them empty."""
        pieces, start = [], self.start
        for part in self.text[self.start : self.stop].split(separator):
            pieces.append(_Piece(self.text, start, start + len(part)))
            start += len(part) + 1
        for i, piece in enumerate(pieces):
            if len(pieces) > 1 and not piece.word:
                # The separator is marked, because an empty piece has nothing to mark.
                at, side = (piece.stop, "before") if i == 0 else (piece.start - 1, "after")
                raise _Piece(self.text, at, at + 1).error(
                    f"has nothing {side} a {separator!r}",
                    f"expected {separator!r} only between two entries; drop it or write the missing entry",
                )
        return pieces

    def error(self, problem: str, expected: str) -> SettingError:
        """The error with the user's text and the piece underlined; ``expected`` ends with the fix."""
        raw = self.text[self.start : self.stop]
        start = self.start + len(raw) - len(raw.lstrip()) if raw.strip() else self.start
        left = max(0, start - _SHOWN // 2) if len(self.text) > _SHOWN else 0
        right = min(len(self.text), left + _SHOWN)
        marks = max(1, min(len(raw.strip()), right - start))
        # One column for each character, whatever it is, keeps the marks under the piece.
        shown = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in self.text[left:right])
        before, after = "... " * (left > 0), " ..." * (right < len(self.text))
        under = " " * (len(before) + start - left) + "^" * marks
        return SettingError(f"HCCL_ALGO {problem}\n    {before}{shown}{after}\n    {under}\n{expected}")


@lru_cache(maxsize=256)
def _parse(text: str, extra: frozenset[str]) -> AlgoSetting:
    whole = _Piece(text, 0, len(text))
    if not whole.word:
        return AlgoSetting()
    algorithms = tuple(dict.fromkeys((*UNCHOSEN, *HCCL_WORDS, *EXTRA_WORDS, *sorted(extra))))
    items = whole.split("/")
    if len(items) == 1 and "=" not in text:
        return AlgoSetting(every_operator=_levels(whole, algorithms))
    chosen: dict[str, Levels] = {}
    for item in items:
        sides = item.split("=")
        if len(sides) == 1:
            raise item.error(
                f"has {reprlib.repr(item.word)} without an operator",
                "expected operator=levels in every part, as one choice for all operators does not mix with "
                "choices for some; put an operator such as allreduce= before it",
            )
        if len(sides) > 2:
            raise _Piece(text, sides[1].stop, sides[1].stop + 1).error(
                "has a second '=' in one part", "expected one operator=levels; separate operators by '/'"
            )
        operator = _operator(sides[0])
        if operator in chosen:
            raise sides[0].error(
                f"names the operator {sides[0].word} twice", "expected it once; drop or merge one of the two"
            )
        chosen[operator] = _levels(sides[1], algorithms)
    return AlgoSetting(per_operator=tuple(chosen.items()))


def _operator(piece: _Piece) -> str:
    word = piece.word
    if word not in OPERATOR_WORDS:
        # Elsewhere the operators are written with underscores, which HCCL_ALGO does without.
        raise piece.error(
            f"has the unknown operator {reprlib.repr(word)}",
            f"expected one of {', '.join(OPERATOR_WORDS)}, each for its V forms too; "
            f"name one of them{nearest(word.replace('_', ''), OPERATOR_WORDS)}",
        )
    return OPERATOR_WORDS[word]


def _levels(piece: _Piece, algorithms: Collection[str]) -> Levels:
    if not any(c in piece.word for c in ";:") and piece.word not in LEVEL_WORDS:
        return Levels((_algorithm(piece, algorithms),), every_level=True)
    parts = piece.split(";")
    if len(parts) > len(LEVEL_WORDS):
        raise parts[len(LEVEL_WORDS)].error(
            f"has {len(parts)} levels", "expected at most 4, level0 to level3; drop the rest"
        )
    chosen: dict[str, str | None] = {}
    for part in parts:
        sides = part.split(":")
        level = sides[0].word
        if level not in LEVEL_WORDS:
            raise sides[0].error(
                f"has {reprlib.repr(level)} where a level belongs",
                f"expected level:algorithm with one of {', '.join(LEVEL_WORDS)}; "
                f"write for instance level1:ring{nearest(level, LEVEL_WORDS)}",
            )
        if len(sides) != 2:
            raise part.error(
                f"has {len(sides) - 1} algorithms for {level}",
                f"expected {level}:algorithm; write for instance {level}:NA, and ';' between two levels",
            )
        if level in chosen:
            raise sides[0].error(f"names {level} twice", "expected each level once; drop one of the two")
        chosen[level] = _algorithm(sides[1], algorithms)
    return Levels(tuple(chosen.get(level) for level in LEVEL_WORDS))


def _algorithm(piece: _Piece, algorithms: Collection[str]) -> str | None:
    word = piece.word
    if word not in algorithms:
        raise piece.error(
            f"has the unknown algorithm {reprlib.repr(word)}",
            f"expected one of {', '.join(algorithms)} in this very case; "
            f"name one of them, or NA for the automatic choice{nearest(word, algorithms)}",
        )
    return None if word in UNCHOSEN else word


def _is_algorithm_word(name: object) -> bool:
    """True for a text that can stand in HCCL_ALGO as an algorithm and is read back unchanged."""
    if not isinstance(name, str) or not name or name in UNCHOSEN:
        return False
    return not any(c in _SEPARATORS or c.isspace() for c in name)
