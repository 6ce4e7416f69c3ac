"""Schema cost: upper bounds of the work that a JSON Schema can cause.

The cost of a schema has two parts: steps per value of a payload, and states of regular expressions
per byte of its strings. The cost of subschemas that validate the same value is their sum. The cost
of subschemas that validate different values, such as those of `properties`, is that of the most
expensive one. The weights of the keywords are measured. The validator does about fifty million
steps per second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Keywords whose subschemas validate the same value as the schema itself.
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
#: Keywords whose subschemas validate every item or property of a value.
_EACH = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
#: Keywords for which the validator repeats the other keywords of the same schema. Nested keywords
#: of this kind multiply the repetitions.
REPEATING_WORDS = ("unevaluatedItems", "unevaluatedProperties")
#: Measured number of times that the validator then applies each keyword.
REPEATS = 3
#: Steps per item for `uniqueItems`, which compares the items with each other.
_UNIQUE = 200
#: Keywords of a lower or upper bound, and keywords that compare or divide a value. The validator
#: checks a bound in a third of the time of the others.
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_EQUALS = ("const", "multipleOf")
#: Cost of `format` in states. It reads a string about ten times, and a pattern reads it once per
#: state in the worst case.
_FORMAT_STATES = 10
_STATE_BYTES_PER_STEP = 5
#: States of a character class. It has several, because a character can have several bytes.
_CLASS_STATES = 4
_is_plain = re.compile(r"[^\\^.\[\x80-\U0010ffff]+").fullmatch
_REPETITION = re.compile(r"\{([0-9]{1,9})(,?)([0-9]{0,9})\}")
#: Factors by which long numbers slow down the validator, because it uses exact arithmetic.
_LONG, _LONG_STRAIN = 10**18, 5
_HUGE, _HUGE_STRAIN = 10**400, 600
_FAR, _NEAR, _FAR_STRAIN = 1e100, 1e-100, 20
_seems_long = re.compile(rb"[0-9]{19}|[0-9.][eE][+-]?[0-9]{3}").search
_seems_huge = re.compile(rb"[0-9]{400}").search


class Cost(NamedTuple):
    """Upper bound of the work that a schema causes."""

    #: Steps per value.
    value: int = 0
    #: States of all patterns, each of which can read each byte of a string.
    byte: int = 0

    def plus(self, other: Cost) -> Cost:
        """Return the sum of two costs, for schemas that validate the same value."""
        return Cost(self.value + other.value, self.byte + other.byte)

    def or_else(self, other: Cost) -> Cost:
        """Return the higher of two costs, for schemas that validate different values."""
        return Cost(max(self.value, other.value), max(self.byte, other.byte))

    def steps(self, data: bytes, decode: Callable[[bytes], object], most: int) -> int:
        """Return the number of steps to validate a payload.

        Decode the payload only if a first estimate from its bytes is above `most`.
        """
        values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
        strain = 1
        if _seems_long(data):
            strain = _HUGE_STRAIN if _seems_huge(data) else _FAR_STRAIN
        guess = self._steps(values, strain, len(data))
        # Count exactly before a rejection, because the estimate includes commas inside strings.
        return guess if guess <= most else self._steps(*_counted(decode(data)), len(data))

    def _steps(self, values: int, strain: int, size: int) -> int:
        return self.value * values * strain + self.byte * size // _STATE_BYTES_PER_STEP


def _counted(value: object) -> tuple[int, int]:
    """Return the number of values in a payload, and the highest slow-down factor of its numbers."""
    count, strain, left = 0, 1, [value]
    while left:
        each = left.pop()
        count += 1
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, int | float):
            strain = max(strain, _strain(each))
    return count, strain


def _strain(number: float) -> int:
    size = abs(number)
    if isinstance(number, int):
        return 1 if size < _LONG else _LONG_STRAIN if size < _HUGE else _HUGE_STRAIN
    return 1 if not size or _NEAR < size < _FAR else _FAR_STRAIN


class SchemaCosts:
    """Computes the cost of a schema and of its parts.

    `_Measure` must have accepted the schema: its references have targets and are not recursive.
    """

    def __init__(self, target: Callable[[str], object]) -> None:
        self._target = target
        #: `id` of a part of the schema -> its cost. Several references can have the same target.
        self._known: dict[int, Cost] = {}

    def of(self, schema: object) -> Cost:
        """Return the cost of a schema or of a part of it."""
        if not isinstance(schema, dict):
            return Cost(1)
        found = self._known.get(id(schema))
        if found is None:
            found = self._known[id(schema)] = self._inside(schema)
        return found

    def _inside(self, schema: dict[str, object]) -> Cost:
        beside = self._sum(schema[word] for word in _IN_PLACE if word in schema)
        for word in _IN_PLACE_LISTS:
            beside = beside.plus(self._sum(_listed(schema.get(word))))
        for word in _IN_PLACE_MAPS:
            beside = beside.plus(self._sum(_mapped(schema.get(word)).values()))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = beside.plus(self.of(self._target(reference)))
        if any(word in schema for word in REPEATING_WORDS):
            beside = Cost(beside.value * REPEATS, beside.byte * REPEATS)
        named = [*_mapped(schema.get("properties")).values(), *_listed(schema.get("prefixItems"))]
        # In older drafts `items` can be a list with the meaning of `prefixItems`.
        named += _listed(schema.get("items"))
        dearest = Cost()
        for each in named:
            dearest = dearest.or_else(self.of(each))
        return beside.plus(_own(schema).or_else(self._each(schema).plus(dearest)))

    def _each(self, schema: dict[str, object]) -> Cost:
        each = self._sum(
            schema[word] for word in _EACH if word in schema and not isinstance(schema[word], list)
        )
        for pattern, part in _mapped(schema.get("patternProperties")).items():
            each = each.plus(Cost(1, states_of(pattern))).plus(self.of(part))
        return each.plus(Cost(_UNIQUE)) if schema.get("uniqueItems") is True else each

    def _sum(self, schemas: Iterable[object]) -> Cost:
        total = Cost()
        for each in schemas:
            total = total.plus(self.of(each))
        return total


def _own(schema: dict[str, object]) -> Cost:
    """Return the cost of the keywords that check the value itself, not its items or properties."""
    steps, states = 1 + len(schema), 0
    for word in _BOUNDS:
        if word in schema:
            steps += _weight(schema[word]) // 3
    for word in _EQUALS:
        if word in schema:
            steps += _weight(schema[word])
    choices = _listed(schema.get("enum"))
    # One step is enough for strings or small integers, because the validator keeps them in a set.
    simple = all(isinstance(each, str) for each in choices) or all(
        type(each) is int and abs(each) < _LONG for each in choices
    )
    steps += 1 if simple else sum(map(_weight, choices))
    for word in ("required", "type"):
        steps += len(_listed(schema.get(word)))
    for word in ("dependentRequired", "dependencies"):
        for names in _mapped(schema.get(word)).values():
            steps += 1 + len(_listed(names))
    if isinstance(pattern := schema.get("pattern"), str):
        states += states_of(pattern)
    return Cost(steps, states + _FORMAT_STATES if "format" in schema else states)


def _weight(value: object) -> int:
    """Return the steps to compare a value of a payload with this value of the schema."""
    if isinstance(value, dict):
        return 1 + sum(map(_weight, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_weight, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    return (50 if isinstance(value, int) else 100) * _strain(value)


def states_of(pattern: str) -> int:
    """Estimate the states of a regular expression. `{n}` multiplies the states that it repeats."""
    groups: list[int] = []
    total, last, at = 0, 0, 0
    while at < len(pattern):
        letter, at = pattern[at], at + 1
        if letter == "(":
            groups.append(total)
            total = last = 0
        elif letter == ")" and groups:
            last, total = total, total + groups.pop()
        elif letter == "{" and (found := _REPETITION.match(pattern, at - 1)):
            least, comma, most = found.groups()
            times = int(most or least) + (comma != "" and not most)
            total, last = total + last * (times - 1), last * times
            at = found.end()
        else:
            begin = at
            if letter == "[":
                at = _class_end(pattern, at)
            elif letter == "\\":
                at += 1
            plain = _is_plain(letter) or (letter == "[" and _is_plain(pattern[begin:at]))
            last = 1 if plain else _CLASS_STATES
            total += last
    return total + sum(groups)


def _class_end(pattern: str, at: int) -> int:
    """Return the index after the first closing bracket of a character class.

    If the class itself contains a bracket, the index is too low. The estimate is then too high.
    """
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mapped(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
