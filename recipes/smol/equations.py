"""Equations such as 48/2=24: read once, evaluated exactly, and written again."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

LONGEST = 200  # characters of an equation
TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|[-+*/()]")
SAME = str.maketrans("\u00d7xX\u00f7\u2212\u2013[]", "***/--()")  # signs that people use
LEVEL = {"+": 1, "-": 1, "*": 2, "/": 2}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@dataclass(frozen=True)
class Equation:
    """An expression, in the order it is written and as a postfix program, and its stated result."""

    tokens: tuple[str, ...]  # numbers and operators as written, numbers in plain decimals
    program: tuple[int | str, ...]  # the index of an operand, or an operator
    operands: tuple[Fraction, ...]
    result: Fraction
    exact: bool  # or else the result is rounded

    def text(self, operands: Sequence[Fraction], result: Fraction) -> str:
        """The equation with other numbers."""
        numbers = iter(operands)
        left = [token if token in "+-*/()" else decimal(next(numbers)) for token in self.tokens]
        return "".join(left) + "=" + decimal(result)

    def __str__(self) -> str:
        return self.text(self.operands, self.result)


def decimal(value: Fraction) -> str:
    """A number in plain decimals without trailing zeros; ValueError if it has no end."""
    whole, places, rest = value.numerator, 0, value.denominator
    while rest != 1:
        whole, places = whole * 10, places + 1
        if places > 12:
            raise ValueError(f"{value} has no short decimal form")
        shared = Fraction(whole, rest)
        whole, rest = shared.numerator, shared.denominator
    if not places:
        return str(whole)
    digits = str(abs(whole)).rjust(places + 1, "0")
    return f"{'-' if whole < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def number(text: str) -> Fraction:
    """The value of a number as people write it: $1,450.50, 20%, .5."""
    plain = re.sub(r"[\s$€£,%]", "", text).rstrip(".")
    if len(plain) > 20 or not re.fullmatch(r"-?(\d+(\.\d+)?|\.\d+)", plain):
        raise ValueError(f"{text[:40]!r} is not a number")
    return Fraction(plain)


def read_equation(text: str) -> Equation:
    """An equation of + - * / and parentheses whose result is right, or right but for rounding.

    A percent sign counts where the equation is right only with it: 20*30%=6 becomes 20*0.3=6.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an equation of {len(text)} characters")
    plain = re.sub(r"[\s$€£,]", "", text).translate(SAME)
    readings = [plain.replace("%", "")]
    if "%" in plain:
        readings.append(re.sub(r"(\d*\.?\d+)%", lambda m: decimal(Fraction(m[1]) / 100), plain))
    wrong = ValueError(f"{text[:40]!r} is not a true equation")
    for reading in readings:
        left, *rest = reading.lstrip("+").split("=")
        if not rest:
            raise wrong
        tokens, program, operands = _parse(left)
        result = number(rest[-1])
        true = evaluate(program, operands)
        if true == result or _rounded(true, result):
            return Equation(tokens, program, operands, result, exact=true == result)
    raise wrong


def evaluate(
    program: Sequence[int | str], operands: Sequence[Any], partial: list[Any] | None = None
) -> Any:
    """The value of a program for numbers of any kind; `partial` takes the result of each operator.

    Division by zero of fractions is a ValueError.
    """
    stack: list[Any] = []
    for step in program:
        if isinstance(step, int):
            stack.append(operands[step])
            continue
        if step == "neg":
            stack.append(-stack.pop())
            continue
        right = stack.pop()
        try:
            stack.append(OPERATORS[step](stack.pop(), right))
        except ZeroDivisionError:
            raise ValueError("division by zero") from None
        if partial is not None:
            partial.append(stack[-1])
    return stack[0]


def _rounded(true: Fraction, stated: Fraction) -> bool:
    """Whether a result is rounded to its decimals, or cut off after two or more."""
    places = len(decimal(stated).partition(".")[2])
    error = abs(true - stated) * 10**places
    return error <= Fraction(1, 2) or (places >= 2 and error < 1)


def _parse(text: str) -> tuple[tuple[str, ...], tuple[int | str, ...], tuple[Fraction, ...]]:
    """Tokens, postfix program and operands of an expression (the shunting-yard way)."""
    raw = TOKEN.findall(text)
    if "".join(raw) != text or not raw:
        raise ValueError(f"{text[:40]!r} is not an expression")
    tokens: list[str] = []
    program: list[int | str] = []
    operands: list[Fraction] = []
    waiting: list[str] = []
    value_next = True  # an operand or an opening parenthesis, not an operator, is due

    def release(level: int) -> None:
        while waiting and waiting[-1] != "(" and LEVEL.get(waiting[-1], 3) >= level:
            program.append(waiting.pop())

    for token in raw:
        starts_value = token == "(" or token[0].isdigit() or token[0] == "."
        if starts_value and not value_next and (token == "(" or tokens[-1] == ")"):
            release(LEVEL["*"])  # 44(.5) is a product
            tokens.append("*")
            waiting.append("*")
        elif starts_value != value_next and not (value_next and token == "-"):
            raise ValueError(f"{text[:40]!r} is not an expression")
        value_next = not starts_value or token == "("
        if token == "(":
            waiting.append(token)
        elif token == ")":
            value_next = False
            release(0)
            if not waiting:
                raise ValueError(f"{text[:40]!r} has a parenthesis too many")
            waiting.pop()
        elif starts_value:
            program.append(len(operands))
            operands.append(number(token))
            token = decimal(operands[-1])
        elif not tokens or tokens[-1] in "+-*/(":
            waiting.append("neg")
        else:
            release(LEVEL[token])
            waiting.append(token)
        tokens.append(token)
    release(0)
    if value_next or waiting:
        raise ValueError(f"{text[:40]!r} is not finished")
    return tuple(tokens), tuple(program), tuple(operands)
