"""The operations of the language: what each does, its phrases in English, its code in Python.

In `phrases` and `code`, # stands for the parameter; in `code`, @ stands for the operand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["ints", "int", "str", "words"]

ANNOTATIONS: dict[Kind, str] = {
    "ints": "list[int]",
    "int": "int",
    "str": "str",
    "words": "list[str]",
}
NAMES: dict[Kind, str] = {"ints": "xs", "int": "n", "str": "s", "words": "ws"}
ELEMENTS = {"ints": "x", "words": "w"}
VOWELS = "aeiouAEIOU"


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # begins with what it takes: ints.sort, words.sort
    takes: Kind
    gives: Kind
    # (value, parameter) -> value: the meaning, written independently of `code`.
    run: Callable[[Any, Any], Any]
    phrases: tuple[str, ...]
    code: tuple[str, ...]  # expressions with the same meaning
    parameters: tuple[Any, ...] = (None,)
    each: tuple[str, ...] = ()  # if it maps a list: the new element
    when: tuple[str, ...] = ()  # if it filters a list: the condition


def _operations() -> Iterator[Operation]:
    yield from _arithmetic()
    yield from _filters()
    yield from _sequences("ints", "number", "int")
    yield from _sequences("words", "word", "str")
    yield from _lists_of_numbers()
    yield from _numbers()
    yield from _text()
    yield from _words()


def _arithmetic() -> Iterator[Operation]:
    """Yield operations on a number, each also as a map over a list of numbers."""
    small, factors = tuple(range(1, 10)), (2, 3, 4, 5)
    for name, run, code, alone, every, parameters in (
        ("add", lambda n, k: n + k, ("@ + #", "# + @"), ("add #", "increase it by #"),
         ("add # to each number", "increase every number by #"), small),
        ("subtract", lambda n, k: n - k, ("@ - #",), ("subtract #", "decrease it by #"),
         ("subtract # from each number", "decrease every number by #"), small),
        ("multiply", lambda n, k: n * k, ("@ * #", "# * @"), ("multiply by #", "multiply it by #"),
         ("multiply each number by #", "multiply every number by #"), factors),
        ("divide", lambda n, k: n // k, ("@ // #",),
         ("divide by # and round down", "divide it by #, rounding down"),
         ("divide each number by # and round down", "divide every number by #, rounding down"),
         factors),
        ("remainder", lambda n, k: n % k, ("@ % #",),
         ("take the remainder mod #", "reduce it modulo #"),
         ("take each number mod #", "reduce every number modulo #"), (3, 4, 5, 6, 7)),
        ("cap", min, ("min(@, #)", "min(#, @)"), ("cap it at #", "make it at most #"),
         ("cap each number at #", "make every number at most #"), (5, 6, 8, 10)),
        ("raise", max, ("max(@, #)", "max(#, @)"), ("raise it to at least #", "make it at least #"),
         ("raise each number to at least #", "make every number at least #"), (1, 2, 3, 4)),
        ("negate", lambda n, _: -n, ("-@", "0 - @"), ("negate it", "flip its sign"),
         ("negate each number", "flip the sign of every number"), (None,)),
        ("absolute", lambda n, _: abs(n), ("abs(@)", "max(@, -@)"),
         ("take its absolute value", "drop its sign"),
         ("take the absolute value of each number", "drop the sign of every number"), (None,)),
        ("square", lambda n, _: n * n, ("@ ** 2", "@ * @"), ("square it", "multiply it by itself"),
         ("square each number", "multiply every number by itself"), (None,)),
    ):  # fmt: skip
        yield Operation(f"int.{name}", "int", "int", run, alone, code, parameters)
        yield _map("ints", name, run, every, code, parameters)


def _filters() -> Iterator[Operation]:
    for name, test, conditions, phrases, parameters in (
        ("keep_even", lambda x, _: x % 2 == 0, ("@ % 2 == 0", "@ % 2 < 1"),
         ("keep the even numbers", "remove the odd numbers"),
         (None,)),
        ("keep_odd", lambda x, _: x % 2 == 1, ("@ % 2 == 1", "@ % 2 != 0"),
         ("keep the odd numbers", "remove the even numbers"),
         (None,)),
        ("keep_positive", lambda x, _: x > 0, ("@ > 0", "0 < @"),
         ("keep the positive numbers", "keep the numbers above zero"),
         (None,)),
        ("keep_negative", lambda x, _: x < 0, ("@ < 0", "0 > @"),
         ("keep the negative numbers", "keep the numbers below zero"),
         (None,)),
        ("keep_above", lambda x, k: x > k, ("@ > #", "# < @"),
         ("keep the numbers greater than #", "keep the numbers above #"), (2, 3, 4, 5)),
        ("keep_below", lambda x, k: x < k, ("@ < #", "# > @"),
         ("keep the numbers less than #", "keep the numbers below #"), (5, 6, 7, 8)),
        ("keep_multiples", lambda x, k: x % k == 0, ("@ % # == 0", "@ % # < 1"),
         ("keep the multiples of #", "keep the numbers divisible by #"), (3, 4, 5)),
        ("remove", lambda x, k: x != k, ("@ != #",),
         ("remove every #", "drop all numbers equal to #"), (0, 1, 2, 3)),
    ):  # fmt: skip
        yield _filter("ints", name, test, phrases, conditions, parameters)


def _map(
    kind: Kind,
    name: str,
    run: Any,
    phrases: Any,
    each: Any,
    parameters: Any = (None,),
    gives: Any = None,
) -> Operation:
    x = ELEMENTS[kind]
    code = [f"[{text.replace('@', x)} for {x} in @]" for text in each]
    code.append(f"list(map(lambda {x}: {each[0].replace('@', x)}, @))")
    return Operation(
        f"{kind}.{name}",
        kind,
        gives or kind,
        lambda values, k: [run(value, k) for value in values],
        phrases,
        tuple(code),
        parameters,
        each=each,
    )


def _filter(
    kind: Kind, name: str, test: Any, phrases: Any, when: Any, parameters: Any = (None,)
) -> Operation:
    x = ELEMENTS[kind]
    code = [f"[{x} for {x} in @ if {text.replace('@', x)}]" for text in when]
    code.append(f"list(filter(lambda {x}: {when[0].replace('@', x)}, @))")
    return Operation(
        f"{kind}.{name}",
        kind,
        kind,
        lambda values, k: [value for value in values if test(value, k)],
        phrases,
        tuple(code),
        parameters,
        when=when,
    )


def _sequences(kind: Kind, noun: str, element: Kind) -> Iterator[Operation]:
    """Yield the operations on lists of either kind."""
    x = ELEMENTS[kind]
    up, down = (
        ("from smallest to largest", "from largest to smallest")
        if kind == "ints"
        else ("from a to z", "from z to a")
    )

    def same(name: str, run: Any, phrases: Any, code: Any, parameters: Any = (None,)) -> Operation:
        return Operation(f"{kind}.{name}", kind, kind, run, phrases, code, parameters)

    yield same(
        "sort",
        lambda v, _: sorted(v),
        (f"sort the {noun}s", f"order the {noun}s {up}"),
        ("sorted(@)",),
    )
    yield same(
        "sort_down",
        lambda v, _: sorted(v, reverse=True),
        (f"sort the {noun}s in reverse", f"order the {noun}s {down}"),
        ("sorted(@, reverse=True)", "sorted(@)[::-1]"),
    )
    yield same(
        "reverse",
        lambda v, _: list(reversed(v)),
        (f"reverse the list of {noun}s", f"put the {noun}s in the opposite order"),
        ("@[::-1]", "list(reversed(@))"),
    )
    yield same(
        "unique",
        lambda v, _: [value for i, value in enumerate(v) if value not in v[:i]],
        (f"remove repeated {noun}s", f"keep only the first of equal {noun}s"),
        ("list(dict.fromkeys(@))", f"[{x} for i, {x} in enumerate(@) if {x} not in @[:i]]"),
    )
    yield same(
        "drop_first",
        lambda v, _: v[1:],
        (f"drop the first {noun}", f"remove the first {noun}"),
        ("@[1:]",),
    )
    yield same(
        "drop_last",
        lambda v, _: v[:-1],
        (f"drop the last {noun}", f"remove the last {noun}"),
        ("@[:-1]",),
    )
    yield same(
        "take",
        lambda v, k: v[:k],
        (f"keep the first # {noun}s", f"take the first # {noun}s"),
        ("@[:#]",),
        (2, 3, 4),
    )
    yield same(
        "take_last",
        lambda v, k: v[-k:],
        (f"keep the last # {noun}s", f"take the last # {noun}s"),
        ("@[-#:]",),
        (2, 3, 4),
    )
    yield same(
        "every_other",
        lambda v, _: [value for i, value in enumerate(v) if i % 2 == 0],
        (f"keep every other {noun}", f"keep every second {noun}, from the first on"),
        ("@[::2]",),
    )
    yield same(
        "twice",
        lambda v, _: [*v, *v],
        ("repeat the list twice", "append the list to itself"),
        ("@ * 2", "@ + @"),
    )
    yield Operation(
        f"{kind}.first",
        kind,
        element,
        lambda v, _: v[0],
        (f"take the first {noun}", f"find the first {noun}"),
        ("@[0]",),
    )
    yield Operation(
        f"{kind}.last",
        kind,
        element,
        lambda v, _: v[-1],
        (f"take the last {noun}", f"find the last {noun}"),
        ("@[-1]",),
    )
    yield Operation(
        f"{kind}.count",
        kind,
        "int",
        lambda v, _: len(v),
        (f"count the {noun}s", f"find how many {noun}s there are"),
        ("len(@)",),
    )


def _lists_of_numbers() -> Iterator[Operation]:
    for name, run, phrases, code, parameters in (
        ("running", lambda v, _: [sum(v[: i + 1]) for i in range(len(v))],
         ("take the running sums", "replace each number by the sum so far"),
         ("[sum(@[:i + 1]) for i in range(len(@))]",), (None,)),
        ("differences", lambda v, _: [v[i + 1] - v[i] for i in range(len(v) - 1)],
         ("take the differences of neighbours", "subtract from each number the one before it"),
         ("[b - a for a, b in zip(@, @[1:])]", "[@[i + 1] - @[i] for i in range(len(@) - 1)]"),
         (None,)),
        ("append", lambda v, k: [*v, k], ("append #", "put # at the end"), ("@ + [#]",),
         tuple(range(1, 10))),
        ("prepend", lambda v, k: [k, *v], ("prepend #", "put # at the front"), ("[#] + @",),
         tuple(range(1, 10))),
    ):  # fmt: skip
        yield Operation(f"ints.{name}", "ints", "ints", run, phrases, code, parameters)
    for name, reduce, phrases, code in (
        ("sum", lambda v, _: sum(v), ("sum the numbers", "find the sum"), ("sum(@)",)),
        ("largest", lambda v, _: max(v), ("take the largest number", "find the maximum"),
         ("max(@)", "sorted(@)[-1]")),
        ("smallest", lambda v, _: min(v), ("take the smallest number", "find the minimum"),
         ("min(@)", "sorted(@)[0]")),
        ("spread", lambda v, _: max(v) - min(v),
         ("take the maximum minus the minimum", "find the largest minus the smallest"),
         ("max(@) - min(@)",)),
    ):  # fmt: skip
        yield Operation(f"ints.{name}", "ints", "int", reduce, phrases, code)


def _numbers() -> Iterator[Operation]:
    yield Operation("int.count_up", "int", "ints", lambda n, _: [i + 1 for i in range(n)],
                    ("list the numbers from 1 up to it", "count from 1 up to it"),
                    ("list(range(1, @ + 1))",))  # fmt: skip
    yield Operation("int.digits", "int", "ints",
                    lambda n, _: [ord(c) - 48 for c in str(_natural(n))],
                    ("list its digits", "split it into digits"),
                    ("[int(d) for d in str(@)]", "list(map(int, str(@)))"))  # fmt: skip
    yield Operation("int.divisors", "int", "ints",
                    lambda n, _: [d for d in range(1, _natural(n) + 1) if not n % d],
                    ("list its divisors", "list the numbers that divide it"),
                    ("[d for d in range(1, @ + 1) if @ % d == 0]",))  # fmt: skip
    yield Operation(
        "int.text",
        "int",
        "str",
        lambda n, _: f"{n:d}",
        ("write it as a string", "turn it into text"),
        ("str(@)",),
    )


def _natural(n: int) -> int:
    """Raise ValueError below zero, where neither phrase nor code defines a result."""
    if n < 0:
        raise ValueError(n)
    return n


def _text() -> Iterator[Operation]:
    letters = ("a", "e", "o", "t")
    for name, run, phrases, code, parameters in (
        ("upper", lambda s, _: s.upper(), ("make it upper case", "turn it into capital letters"),
         ("@.upper()",), (None,)),
        ("lower", lambda s, _: s.lower(), ("make it lower case", "turn it into small letters"),
         ("@.lower()",), (None,)),
        ("swap_case", lambda s, _: s.swapcase(),
         ("swap upper and lower case", "swap the case of each letter"),
         ("@.swapcase()",), (None,)),
        ("reverse", lambda s, _: "".join(reversed(s)), ("reverse the string", "read it backwards"),
         ("@[::-1]", "''.join(reversed(@))"), (None,)),
        ("remove_vowels", lambda s, _: "".join(c for c in s if c not in VOWELS),
         ("remove the vowels", "drop all vowels"),
         (f"''.join(c for c in @ if c not in '{VOWELS}')",
          f"''.join([c for c in @ if c not in '{VOWELS}'])"), (None,)),
        ("keep_vowels", lambda s, _: "".join(c for c in s if c in VOWELS),
         ("keep the vowels", "keep only vowels"),
         (f"''.join(c for c in @ if c in '{VOWELS}')",
          f"''.join([c for c in @ if c in '{VOWELS}'])"), (None,)),
        ("star", lambda s, k: s.replace(k, "*"), ("replace # with *", "write * for every #"),
         ("@.replace(#, '*')",), letters),
        ("remove", lambda s, k: s.replace(k, ""), ("remove every #", "delete the letter #"),
         ("@.replace(#, '')", "''.join(c for c in @ if c != #)"), letters),
        ("squeeze", lambda s, _: s.replace(" ", ""), ("remove the spaces", "drop all spaces"),
         ("@.replace(' ', '')", "''.join(@.split())"), (None,)),
        ("sort", lambda s, _: "".join(sorted(s)),
         ("sort the characters", "put the characters in order"),
         ("''.join(sorted(@))",), (None,)),
        ("unique", lambda s, _: "".join(c for i, c in enumerate(s) if c not in s[:i]),
         ("remove repeated characters", "keep only the first of equal characters"),
         ("''.join(dict.fromkeys(@))", "''.join(c for i, c in enumerate(@) if c not in @[:i])"),
         (None,)),
        ("twice", lambda s, _: s + s, ("repeat the string twice", "write it twice"),
         ("@ * 2", "@ + @"), (None,)),
        ("take", lambda s, k: s[:k],
         ("keep the first # characters", "take the first # characters"), ("@[:#]",), (2, 3, 4, 5)),
        ("take_last", lambda s, k: s[-k:],
         ("keep the last # characters", "take the last # characters"), ("@[-#:]",),
         (2, 3, 4, 5)),
        ("drop_first", lambda s, _: s[1:],
         ("drop the first character", "remove the first character"), ("@[1:]",), (None,)),
        ("drop_last", lambda s, _: s[:-1],
         ("drop the last character", "remove the last character"), ("@[:-1]",), (None,)),
        ("every_other", lambda s, _: "".join(c for i, c in enumerate(s) if i % 2 == 0),
         ("keep every other character", "keep every second character, from the first on"),
         ("@[::2]",), (None,)),
        ("end", lambda s, k: s + k, ("add # at the end", "put # after it"), ("@ + #",),
         ("!", "?", ".")),
    ):  # fmt: skip
        yield Operation(f"str.{name}", "str", "str", run, phrases, code, parameters)
    yield Operation("str.count", "str", "int", lambda s, k: sum(c == k for c in s),
                    ("count the letter #", "find how often # occurs"), ("@.count(#)",),
                    letters)  # fmt: skip
    yield Operation(
        "str.length",
        "str",
        "int",
        lambda s, _: len(s),
        ("count the characters", "find its length"),
        ("len(@)",),
    )
    yield Operation(
        "str.split",
        "str",
        "words",
        lambda s, _: s.split(),
        ("split it into words", "list its words"),
        ("@.split()",),
    )


def _words() -> Iterator[Operation]:
    for name, run, phrases, each in (
        ("upper", lambda w, _: w.upper(),
         ("make each word upper case", "make every word upper case"), ("@.upper()",)),
        ("capitalize", lambda w, _: w[:1].upper() + w[1:].lower(),
         ("capitalize each word", "capitalize every word"),
         ("@.capitalize()",)),
        ("reverse_each", lambda w, _: "".join(reversed(w)),
         ("reverse each word", "spell every word backwards"), ("@[::-1]",)),
        ("initials", lambda w, _: w[0],
         ("take the first letter of each word", "replace every word by its first letter"),
         ("@[0]",)),
    ):  # fmt: skip
        yield _map("words", name, run, phrases, each)
    yield _map("words", "lengths", lambda w, _: len(w),
               ("take the length of each word", "replace every word by its length"),
               ("len(@)",), gives="ints")  # fmt: skip
    for name, test, phrases, when, parameters in (
        ("keep_long", lambda w, k: len(w) > k,
         ("keep the words longer than #", "keep words of more than # letters"),
         ("len(@) > #", "# < len(@)"), (2, 3, 4)),
        ("keep_short", lambda w, k: len(w) < k,
         ("keep the words shorter than #", "keep words of less than # letters"),
         ("len(@) < #", "# > len(@)"), (4, 5)),
        ("keep_with", lambda w, k: k in w,
         ("keep the words with #", "keep the words that contain #"),
         ("# in @",), ("a", "e", "o")),
        ("remove_with", lambda w, k: k not in w,
         ("remove the words with #", "drop the words that contain #"),
         ("# not in @",), ("a", "e", "o")),
    ):  # fmt: skip
        yield _filter("words", name, test, phrases, when, parameters)
    for name, run, phrases, code in (
        ("join", lambda v, _: " ".join(v), ("join the words with spaces", "join them with spaces"),
         ("' '.join(@)",)),
        ("dash", lambda v, _: "-".join(v), ("join the words with dashes", "join them with -"),
         ("'-'.join(@)",)),
        ("glue", lambda v, _: "".join(v),
         ("join the words without spaces", "glue the words together"), ("''.join(@)",)),
        ("longest", lambda v, _: max(v, key=len),
         ("take the longest word", "find the longest word"), ("max(@, key=len)",)),
        ("shortest", lambda v, _: min(v, key=len),
         ("take the shortest word", "find the shortest word"),
         ("min(@, key=len)",)),
    ):  # fmt: skip
        yield Operation(f"words.{name}", "words", "str", run, phrases, code)


OPERATIONS = tuple(_operations())
