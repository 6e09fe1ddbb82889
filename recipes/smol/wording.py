"""What the wording of a problem says: its numbers, the constants it implies, and their bounds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from equations import number

NUMBER = re.compile(r"(?P<sign>[$€£]\s?)?(?P<digits>\d+(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+)")
PERCENT = re.compile(r"\s?(?:%|percent\b)", re.IGNORECASE)
CENTS = re.compile(r"\s?(?:¢|cents?\b)|-cents?\b", re.IGNORECASE)
GLUED = re.compile(  # units that may follow a number without a space
    r"(?:km|kg|g|mg|m|cm|mm|ml|l|lbs?|oz|ft|mph|kmph|hrs?|mins?|k?w|gb|mb)\b", re.IGNORECASE
)
CLOCK = re.compile(r"\s?(?:[ap]\.?m\b|o'?clock)", re.IGNORECASE)
MONTHS = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
)
LABELS = (  # what stands before a number that is a name
    "number|no|room|grade|chapter|page|pages|route|problem|question|size|level|day|week|month|year"
    "|round|step|stage|phase|part|section|unit|type|team|class|group|option|plan|lane|gate|bus"
    "|flight|apartment|house|lesson|quarter|hour|game|set|box|bag|jar|container|store|box"
)
LABELLED = re.compile(rf"(?:\b(?:{LABELS})\s|#|\b(?:{MONTHS})\.?\s)$", re.IGNORECASE)
DATED = re.compile(rf"\s(?:of\s)?(?:{MONTHS})\b")
YEAR_BEFORE = re.compile(
    r"\b(?:in|since|year|by|from|until|till|before|after|during|of|to|and"
    rf"|(?:{MONTHS})(?: \d+)?,?)\s$",
    re.IGNORECASE,
)
BODY = re.compile(  # parts whose number nature fixes
    r"[\s-](?:\w+[\s-])?(?:legs?|legged|wheels?|wheeled|sides?|sided|corners?|faces?|ears?|eyes?"
    r"|fingers?|toes?|paws?|wings?|arms?|hands?|horns?|tentacles?|edges?|vertices|pointers?"
    r"|degrees? angle|dimensional|innings?)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
ONES = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen",
)
TENS = re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety")
COUNTED = {word: i for i, word in enumerate(ONES)} | {w: 20 + 10 * i for i, w in enumerate(TENS)}
LARGE = {"dozen": 12, "score": 20, "hundred": 100, "thousand": 1000, "million": 1_000_000}
PARTS = re.findall(r"\w+", "half third fourth fifth sixth seventh eighth ninth tenth")
SAID: dict[str, str] = {  # the numbers that a word stands for
    "half": "2 0.5 1.5", "halve": "2 0.5", "halved": "2 0.5", "halfway": "2 0.5", "twice": "2",
    "double": "2", "doubled": "2", "doubling": "2", "both": "2", "couple": "2", "pair": "2",
    "twin": "2", "duplicate": "2", "triple": "3", "tripled": "3", "thrice": "3", "triplet": "3",
    "quadruple": "4", "quadrupled": "4", "quintuple": "5", "weekday": "5", "weekend": "2",
    "fortnight": "14 2", "workweek": "5", "decade": "10", "century": "100", "gross": "144",
    "biweekly": "2", "nickel": "5 0.05", "dime": "10 0.1", "quarter": "25 0.25 4",
    "penny": "0.01", "pennies": "0.01", "percent": "100 0.01", "percentage": "100 0.01",
    "leap": "366 29", "february": "28",
}  # fmt: skip
TOGETHER = (  # the numbers that two words bring along where both are there
    ("week", "day", "7 5 6"), ("month", "day", "30 31 28"), ("year", "day", "365"),
    ("month", "week", "4"), ("year", "week", "52"), ("year", "month", "12 6"),
    ("year", "quarter", "4"), ("month", "quarter", "3"), ("day", "hour", "24"),
    ("week", "hour", "7 24"), ("hour", "minute", "60"), ("minute", "second", "60"),
    ("hour", "second", "3600"), ("day", "minute", "24 60"), ("hour", "half", "30 60"),
    ("foot", "inch", "12"), ("yard", "foot", "3"), ("yard", "inch", "36"), ("mile", "foot", "5280"),
    ("pound", "ounce", "16"), ("ton", "pound", "2000"), ("kg", "gram", "1000"),
    ("ton", "kg", "1000"), ("km", "meter", "1000"), ("meter", "cm", "100"), ("cm", "mm", "10"),
    ("meter", "mm", "1000"), ("liter", "ml", "1000"), ("gallon", "quart", "4"),
    ("gallon", "ounce", "128"), ("gallon", "cup", "16"), ("gallon", "pint", "8"),
    ("quart", "pint", "2"), ("quart", "cup", "4"), ("pint", "cup", "2"), ("cup", "ounce", "8"),
    ("cup", "tablespoon", "16"), ("tablespoon", "teaspoon", "3"), ("dollar", "cent", "100 0.01"),
    ("year", "season", "4"), ("rectangle", "perimeter", "2"), ("square", "perimeter", "4"),
    ("triangle", "area", "2 0.5"), ("triangle", "perimeter", "3"), ("deck", "card", "52"),
)  # fmt: skip
ALIKE = {  # words that count as another one
    "daily": "day", "night": "day", "nightly": "day", "today": "day", "morning": "day",
    "evening": "day", "afternoon": "day", "everyday": "day", "weekly": "week", "monday": "week",
    "tuesday": "week", "wednesday": "week", "thursday": "week", "friday": "week",
    "saturday": "week", "sunday": "week", "monthly": "month", "yearly": "year", "annual": "year",
    "annually": "year", "hourly": "hour", "min": "minute", "hr": "hour", "feet": "foot",
    "lb": "pound", "oz": "ounce", "kilogram": "kg", "kilo": "kg", "g": "gram", "kilometer": "km",
    "kilometre": "km", "metre": "meter", "m": "meter", "centimeter": "cm", "millimeter": "mm",
    "litre": "liter", "l": "liter", "milliliter": "ml", "millilitre": "ml",
    "rectangular": "rectangle", "triangular": "triangle", "border": "perimeter",
    "fence": "perimeter", "fencing": "perimeter",
    "around": "perimeter", "january": "month", "march": "month", "april": "month", "june": "month",
    "july": "month", "august": "month", "september": "month", "october": "month",
    "november": "month", "december": "month",
}  # fmt: skip
HINTED: dict[str, str] = {  # the numbers that a word may bring along
    "either": "2", "another": "2", "back": "2", "trip": "2", "way": "2", "return": "2",
    "other": "2", "and": "2", "brother": "2", "sister": "2", "friend": "2", "parent": "2",
    "equal": "2", "side": "2 4", "perimeter": "2 4", "rectangle": "2 4", "square": "2 4",
    "triangle": "3 2 0.5 180", "pentagon": "5", "hexagon": "6", "octagon": "8", "cube": "6 3 12",
    "circle": "2 360 3.14", "radius": "2", "diameter": "2", "angle": "90 180 360", "room": "4",
    "wall": "2 4", "bike": "2", "bicycle": "2", "tricycle": "3", "car": "4", "season": "4 3",
    "second": "2 60", "week": "7 4 5 52", "day": "7 24 30 31 365 5", "hour": "60 24",
    "minute": "60", "month": "12 30 31 4", "year": "12 52 365 4", "foot": "12 3 2",
    "inch": "12 36", "yard": "3 36", "mile": "5280", "pound": "16", "ounce": "16 8 32",
    "ton": "2000 1000", "kg": "1000", "gram": "1000", "km": "1000", "meter": "1000 100",
    "cm": "100 10", "mm": "1000 10", "liter": "1000", "ml": "1000", "gallon": "4 16 128 8",
    "quart": "4 2 32", "pint": "2 8 16", "cup": "16 2 8 4", "tablespoon": "3 16", "teaspoon": "3",
    "cent": "100 0.01", "coin": "100", "spider": "8", "octopus": "8",
    "insect": "6", "ant": "6", "cow": "4", "dog": "4", "cat": "4", "horse": "4", "sheep": "4",
    "goat": "4", "pig": "4", "chicken": "2", "hen": "2", "bird": "2", "duck": "2", "leg": "2 4",
    "byte": "8 1024", "mb": "1000 1024", "gb": "1000 1024", "child": "2", "bilingual": "2",
}  # fmt: skip
BOUNDS = (  # a number of these, in a text with a word of those, is at most so much if it was so
    ("day", r"week|weekly", 7),
    ("day", r"month|monthly", 30),
    ("hour", r"day|daily|night|morning|evening|afternoon|work|sleep", 16),
    ("hour", r"week|weekly", 100),
    ("week", r"month|monthly", 4),
    ("week", r"year|yearly", 52),
    ("month", r"year|yearly|annual", 12),
    ("minute", r"hour|hourly", 59),
    ("second", r"minute", 59),
    ("time", r"day|daily|week|weekly", 14),
    ("year", r"", 95),
    ("inch", r"foot|feet|tall|height", 90),
)
AGE = re.compile(r"\b(?:old|age|ages|aged|older|younger|birthday)\b")


@dataclass(frozen=True)
class Number:
    """A number of the question that an operand may stand for."""

    start: int
    end: int  # of its digits, without $ or %
    value: Fraction
    kind: str  # plain, money, percent or cents
    decimals: int
    comma: bool
    fixed: bool  # a label, a date, a fraction, and whatever else must not change
    article: str  # "a" or "an" before it, or ""
    unit: str  # the word after it, or its sign
    most: int | None


def numbers_of(question: str) -> list[Number]:
    """The numbers that a question writes with digits, in order; fractions count as fixed ones."""
    words = set(WORD.findall(question.lower()))
    return [_number(question, match, words) for match in NUMBER.finditer(question)]


def _number(question: str, match: re.Match[str], words: set[str]) -> Number:
    digits, before, after = match["digits"], question[: match.start()], question[match.end() :]
    value = number(digits)
    if match["sign"]:
        kind = "money"
    elif PERCENT.match(after):
        kind = "percent"
    else:
        kind = "cents" if CENTS.match(after) else "plain"
    found = re.match(r"[%\s-]*(?:more |less |fewer |full |whole )?([a-zA-Z]+)", after)
    unit = single(found[1].lower()) if found else ""
    article = re.search(r"(?:^|\s)(an?)\s(?:whole |full )?$", before.lower())
    return Number(
        match.start("digits"),
        match.end("digits"),
        value,
        kind,
        len(digits.partition(".")[2]),
        "," in digits,
        _is_fixed(match, before, after, kind),
        article[1] if article else "",
        kind if kind in ("money", "percent") else unit,
        _most(value, kind, unit, words),
    )  # fmt: skip


def _is_fixed(match: re.Match[str], before: str, after: str, kind: str) -> bool:
    glued = after[:1].isalpha() and not GLUED.match(after)
    odd = re.match(r"0\d|\.|0$", match["digits"])
    if glued or odd or re.search(r"[\w/:.]$|\d,$|\w-$|\d\s?-\s?$|[:/^*+=]\s?$|\d\s?x\s?$", before):
        return True
    if re.match(
        r"[/:^]|\s?[-*+=/]\s?\d|\.\d|,\d|\s\d+/\d|-\s?in-|\s?x\s?\d|\s(?:and\s)?a half", after
    ):
        return True
    if kind != "plain":
        return False
    year = re.fullmatch(r"1[5-9]\d\d|20\d\d", match["digits"]) and YEAR_BEFORE.search(before)
    return bool(
        year
        or any(rule.search(before) for rule in (LABELLED,))
        or any(rule.match(after) for rule in (CLOCK, DATED, BODY))
    )


def _most(value: Fraction, kind: str, unit: str, words: set[str]) -> int | None:
    if kind != "plain":
        return None
    bounds = [
        most
        for of, beside, most in BOUNDS
        if of == unit
        and value <= most
        and (not beside or any(re.fullmatch(beside, single(w)) for w in words))
    ]
    if value <= 95 and any(AGE.fullmatch(word) for word in words):
        bounds.append(95)
    return min(bounds, default=None)


def single(word: str) -> str:
    """A noun without its plural."""
    if word in ("inches", "boxes", "dishes", "glasses", "classes"):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def constants_of(question: str) -> tuple[set[Fraction], set[Fraction]]:
    """The numbers that the words and fractions of a question bring into its equations.

    The first ones are said, the second ones may be meant.
    """
    words = [single(word) for word in WORD.findall(question.lower())]
    topics = {ALIKE.get(word, word) for word in words} | ({"dollar"} if "$" in question else set())
    said: set[Fraction] = {Fraction(1)}
    meant: set[Fraction] = set()
    if re.search(r'\d\s?[”″"]', question):
        topics.add("inch")
    for word in words:
        said.update(map(Fraction, SAID.get(word, "").split()))
    for one, other, values in TOGETHER:
        if one in topics and other in topics:
            said.update(map(Fraction, values.split()))
    for word in topics:
        meant.update(map(Fraction, HINTED.get(word, "").split()))
    if "%" in question:
        said |= {Fraction(100), Fraction(1, 100)}
    said.update(_counted(words))
    for top, bottom in re.findall(r"(\d+)\s?/\s?(\d+)", question):
        said.update(_parts(int(top), int(bottom)))
    for whole, top, bottom in re.findall(r"(\d+)[\s-](?:and )?(\d+)/(\d+)", question):
        if int(bottom):
            said.add(int(whole) + Fraction(int(top), int(bottom)))
    for whole in re.findall(r"(\d+) and a half", question):
        said.add(int(whole) + Fraction(1, 2))
    return said, meant


def _counted(words: list[str]) -> Iterator[Fraction]:
    """Number words, alone and with the word before: twenty-five, two dozen, three fifths."""
    for before, word in zip(["", *words], words, strict=False):
        if word in COUNTED or word in LARGE:
            value = COUNTED.get(word) or LARGE.get(word, 0)
            yield Fraction(value)
            if before in TENS:
                yield Fraction(COUNTED[before] + value)
            elif word in LARGE and before in ("half", "a"):
                yield Fraction(value, 2)
            elif word in LARGE and before in COUNTED:
                yield Fraction(COUNTED[before] * value)
        if word in PARTS or word == "quarter":
            bottom = 4 if word == "quarter" else PARTS.index(word) + 2
            yield from _parts(1, bottom)
            if before in COUNTED:
                yield from _parts(COUNTED[before], bottom)


def _parts(top: int, bottom: int) -> Iterator[Fraction]:
    yield from map(Fraction, (top, bottom))
    if 0 < top < bottom:
        yield from (Fraction(bottom - top), Fraction(top, bottom), Fraction(bottom - top, bottom))
        yield 1 + Fraction(top, bottom)
