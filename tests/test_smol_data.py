"""The recipe that makes smol's training data: number variants of word problems, and who is kept
apart from whom.
"""

import importlib
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "smol"
DATA = ROOT / ".." / "shared" / "data" / "train_math"
MODULES = ("equations", "wording", "tracing", "sources", "variants", "data")


@pytest.fixture(scope="module")
def smol():
    """The scripts of the recipe as one namespace of modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPE))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        found = ModuleType("smol")
        for name in MODULES:
            setattr(found, name, importlib.import_module(name))
        yield found
        for name in MODULES:
            del sys.modules[name]


def exact(expression: str) -> Fraction:
    """The value of an expression, by Python's own parser."""
    assert re.fullmatch(r"[\d.+*/()-]+", expression)
    fractions = re.sub(r"[\d.]+", lambda found: f"Fraction('{found[0]}')", expression)
    return eval(fractions, {"Fraction": Fraction})


def assert_solved(answer: str) -> None:
    """All equations hold exactly, all numbers are short, and the answer is a result."""
    *lines, last = answer.split("\n")
    results = []
    for line in lines:
        left, right = line.split("=")
        assert exact(left) == Fraction(right), line
        assert re.fullmatch(r"(0|[1-9]\d*)(\.\d?[1-9])?", right), line
        results.append(right)
    assert last.removeprefix("#### ") in results


def row(smol, question: str, answer: str):
    return smol.sources.Row("tum_generated_eq", question, answer)


def problem(smol, question: str, *equations: str):
    found = tuple(map(smol.equations.read_equation, equations))
    return smol.tracing.Problem(question, found, found[-1].result)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("48/2=24", "48/2=24"),
        (" 2.50 * 4 = $10.00 ", "2.5*4=10"),
        ("1,000+.5=1000.5", "1000+0.5=1000.5"),
        ("20*30%=6", "20*0.3=6"),
        ("100%-30%=70%", "100-30=70"),
        ("2(3+4)=14", "2*(3+4)=14"),
        ("6x7=42", "6*7=42"),
        ("-5+8=3", "-5+8=3"),
        ("+6+3=9", "6+3=9"),
    ],
)
def test_equations_are_written_in_one_way(smol, written, normal):
    equation = smol.equations.read_equation(written)
    assert str(equation) == normal
    assert equation.exact


@pytest.mark.parametrize(
    "text",
    ["2+2=5", "(2+2=4", "2+2)=4", "2+=2", "2 2=4", "2**3=8", "x=3", "1/0=1", "4", "", "()=0"],
)
def test_what_is_no_true_equation_is_refused(smol, text):
    with pytest.raises(ValueError):  # noqa: PT011
        smol.equations.read_equation(text)


def test_expressions_are_evaluated_as_python_does(smol):
    rng = np.random.default_rng(0)

    def expression(depth: int) -> str:
        if depth == 0:
            return str(rng.integers(1, 99)) + ("" if rng.random() < 0.5 else ".25")
        parts = (expression(int(rng.integers(depth))) for _ in range(2))
        text = str(rng.choice(list("+-*/"))).join(parts)
        return f"({text})" if rng.random() < 0.5 else text

    for _ in range(300):
        text = expression(int(rng.integers(1, 5)))
        _, program, operands = smol.equations._parse(text)
        try:
            expected = exact(text)
        except ZeroDivisionError:
            with pytest.raises(ValueError, match="zero"):
                smol.equations.evaluate(program, operands)
        else:
            assert smol.equations.evaluate(program, operands) == expected, text


def test_a_row_becomes_equations_line_by_line(smol):
    answer = "She sold 48/2 = <<48/2=24>>24.\nThat is <<48+24=72>>72 in all.\n#### 72"
    parsed = smol.sources.parse(row(smol, "Student: Ann sold 48 clips, then half.", answer))
    assert parsed.question == "Ann sold 48 clips, then half."
    assert parsed.text() == "48/2=24\n48+24=72\n#### 72"


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("Ann has 3 pens.", "<<3+1=5>> #### 5", "wrong equation"),
        ("Ann has 3 pens.", "<<3+1=4>> #### 9", "no result"),
        ("Ann has 3 pens.", "#### 3", "no equations"),
        ("Ann has 3 pens.", "<<3=3>> #### 3", "no equations"),
        ("nn has 3 pens.", "<<3+1=4>> #### 4", "cut off"),
        ("How many does Ann have?", "<<3+1=4>> #### 4", "no numbers"),
        ("", "<<3+1=4>> #### 4", "malformed"),
    ],
)
def test_a_row_that_cannot_be_used(smol, question, answer, reason):
    with pytest.raises(smol.sources.Unusable, match=reason):
        smol.sources.parse(row(smol, question, answer))


def test_a_solution_without_all_annotations_is_read_from_its_text(smol):
    solution = "It weighs 6*2=<<6*2=12>>12 pounds.\nIn the end 12 + 30 = 42 pounds.\n#### 42"
    parsed = smol.sources.parse(smol.sources.Row("gsm8k_train", "A dog weighs 6 lbs.", solution))
    assert parsed.text() == "6*2=12\n12+30=42\n#### 42"


def test_rounded_problems_are_kept_without_variants(smol):
    parsed = smol.sources.parse(row(smol, "Share $10 among 3.", "<<10/3=3.33>> #### 3.33"))
    assert parsed.text() == "10/3=3.33\n#### 3.33"
    assert smol.data.vary(parsed, 5, 0, 0) == ([], "rounded")


@pytest.mark.parametrize(
    ("question", "equations", "varied"),
    [
        ("Ann has 48 clips and sells half.", ["48/2=24"], [48]),
        ("Ann buys 6 pens at $6 and a $50 bag.", ["6*6=36", "36+50=86"], [6, 50]),
        ("A 16-pack has 4 rows. Ann takes 6 rows.", ["16/4=4", "4*6=24"], [6]),  # 4: row or result
        ("Ann eats 5 of 46, then 8 more.", ["46-5=41", "41-8=33"], [5, 46, 8]),
        ("Ann fills 8 cups, and gives away 24.", ["8*6=48", "48/2=24", "24+24=48"], None),
        ("A $40 coat is 20% off.", ["40*0.2=8", "40-8=32"], [40, 20]),
        ("A $40 coat is 20% off.", ["40*0.8=32"], [40, 20]),
        ("A $40 coat costs 20% more now.", ["40*1.2=48"], [40, 20]),
        ("30% of 90 are red.", ["30/100=0.3", "0.3*90=27"], [30, 90]),
        ("Pens cost 50 cents. Ann buys 9.", ["9*0.5=4.5"], [50, 9]),
        ("Ann pays 80% of $70 and Bob the other 20%.", ["70*0.2=14"], [70]),
        ("All 30 chairs stand in 5 rows of 6. Bob takes 13.", ["5*6=30", "30-13=17"], [13]),
        ("Ann runs 7 miles each day of the week.", ["7*7=49"], None),
        ("Ann runs 9 miles each day of the week.", ["9*7=63"], [9]),
        ("Her 24” dog is 12” taller. In feet?", ["24+12=36", "36/12=3"], [24]),  # 12: a foot
        ("Ann ran 3/4 of 60 miles.", ["3/4*60=45"], [60]),
        ("In 1990 Ann came 5th of 47, at 9 am, and 8 left.", ["47-8=39"], [47, 8]),
        ("Ann scored 80, 85, and 90 in 3 tests.", ["80+85+90=255", "255/3=85"], [80, 85, 90]),
        ("Ann has 1 pen and 0 cards.", ["1+0=1"], None),
    ],
)
def test_only_numbers_of_a_clear_origin_may_change(smol, question, equations, varied):
    asked = problem(smol, question, *equations)
    if varied is None:
        with pytest.raises(smol.tracing.NotVariable):
            smol.tracing.trace(asked)
    else:
        found = smol.tracing.trace(asked)
        assert sorted(found.values[i][0].value for i in found.varied) == sorted(varied)


@pytest.mark.parametrize(
    ("question", "equations", "reason"),
    [
        ("Ann has 12 pens, 9 cards, and loses 5.", ["21-5=16"], "unknown constant"),
        ("Ann has 12 pens and 9 cards.", ["12*9=108", "12+9=21"], "without use"),
        ("Ann has seven pens.", ["7+1=8"], "nothing may change"),
    ],
)
def test_why_a_problem_has_no_variants(smol, question, equations, reason):
    with pytest.raises(smol.tracing.NotVariable, match=reason):
        smol.tracing.trace(problem(smol, question, *equations))


def test_a_result_that_one_operand_alone_can_be_is_that_operand(smol):
    question = "Ann gave 4 of 24 pigs to each of three men."
    found = smol.tracing.trace(problem(smol, question, "4*3=12", "24-12=12", "12/4=3"))
    assert [origin.slot for origin in found.origins[2]] == [3, 0]


VARIABLE = [
    ("A $1,250 TV is 20% off, and the $2.50 cable is not.", "1250*0.8=1000", "1000+2.5=1002.5"),
    ("Of 60 men, 18 left, and 1/2 of the rest sat on an 8-foot bench.", "60-18=42", "42*1/2=21"),
    ("Ann works 5 days a week for 6 weeks at $90 a day.", "5*6=30", "30*90=2700"),
    ("A tank of 150 gallons has 75. What percent is full?", "75/150=0.5", "0.5*100=50"),
    ("40% like tea and 25% like milk. There are 200 men.", "40+25=65", "200*65/100=130"),
    ("Ann rode 4.5 miles, an 8-mile lap and a 6-mile lap.", "4.5+8+6=18.5"),
]


@pytest.mark.parametrize("case", VARIABLE)
def test_variants_keep_the_wording_and_their_equations_hold(smol, case):
    asked = problem(smol, *case)
    made = smol.variants.variants(asked, 40, np.random.default_rng(1))
    assert len(made) == len(set(made)) >= 4
    blank = re.compile(r"\d[\d,]*(?:\.\d+)?")
    for question, answer in made:
        assert_solved(answer)
        assert blank.sub("#", question) == blank.sub("#", asked.question)
        assert blank.sub("#", answer) == blank.sub("#", asked.text())
        assert (question, answer) != (asked.question, asked.text())


def numbers(smol, case: tuple[str, ...]) -> list[list[str]]:
    """The numbers of the questions of all variants, as written."""
    made = smol.variants.variants(problem(smol, *case), 40, np.random.default_rng(2))
    return [re.findall(r"\d[\d,]*(?:\.\d+)?", question) for question, _ in made]


def test_new_numbers_are_written_like_the_old_ones(smol):
    tv, percent, cable = map(set, zip(*numbers(smol, VARIABLE[0]), strict=True))
    assert all(re.fullmatch(r"\d{3}|\d,\d{3}", price) for price in tv)
    assert any("," in price for price in tv)
    assert {int(share) % 5 for share in percent} == {0}
    assert {int(share) for share in percent} <= set(range(5, 96))
    assert all(re.fullmatch(r"\d\.(00|25|50|75)", price) for price in cable)


def test_new_numbers_make_sense_where_the_wording_says_so(smol):
    assert {found[-1] for found in numbers(smol, VARIABLE[1])} == {"8"}  # unused
    assert all(2 <= int(days) <= 7 for days, _, _ in numbers(smol, VARIABLE[2]))
    assert all(int(full) < int(tank) for tank, full in numbers(smol, VARIABLE[3]))
    assert all(int(tea) + int(milk) <= 100 for tea, milk, _ in numbers(smol, VARIABLE[4]))
    laps = [(found[1], found[2]) for found in numbers(smol, VARIABLE[5])]
    assert all(re.fullmatch(r"8|11|18", after_an) for after_an, _ in laps)
    assert all(not re.fullmatch(r"8|11|18", after_a) for _, after_a in laps)


def test_unused_numbers_stay_on_their_side(smol):
    found = numbers(smol, ("Ann filled 3 of the 8 jars, with 20 nuts each.", "3*20=60"))
    assert {jars for _, jars, _ in found} == {"8"}
    assert {int(filled) for filled, _, _ in found} == set(range(2, 8))


def test_fractions_have_the_last_word(smol):
    found = smol.tracing.trace(problem(smol, "Ann puts 48 pens in 6 boxes.", "48/6=8"))
    assert smol.variants.solve(found, [Fraction(30), Fraction(5)]) == "30/5=6\n#### 6"
    assert smol.variants.solve(found, [Fraction(30), Fraction(4)]) is None


def test_names_and_numbers_do_not_tell_questions_apart(smol):
    text = "{} walks {} miles each day while {} walks {} miles each day. How far do they walk?"
    one, other = text.format("Ann", 2, "Bob", 1.5), text.format("Eve", 1000, "Joe", "1,000")
    assert smol.sources.grams(one) & smol.sources.grams(other)
    assert not smol.sources.grams(one) & smol.sources.grams(made_up(1)[0])


def word(i: int) -> str:
    return "zo" + "".join(chr(ord("a") + i // 26**k % 26) for k in range(3))


def made_up(i: int, a: int = 12, b: int = 5) -> tuple[str, str]:
    """A problem of words that no other has."""
    thing, place = word(2 * i), word(2 * i + 1)
    question = (
        f"Ann had {a} {thing} and bought {b} more {thing} at the {place} shop in town. "
        f"How many {thing} does Ann have in the {place} shop now?"
    )
    return question, f"<<{a}+{b}={a + b}>>{a + b} #### {a + b}"


@pytest.fixture(scope="module")
def source(tmp_path_factory, smol) -> Path:
    """A small source, with relatives of its tune side and of a test question in another file."""
    folder = tmp_path_factory.mktemp("source")
    rows = [made_up(i) for i in range(120)]
    lines = [json.dumps({"question": q, "answer": a}) for q, a in rows]
    (folder / "gsm8k_train.jsonl").write_text("\n".join(lines) + "\n")
    tune = [i for i, (q, _) in enumerate(rows) if smol.sources.residue(q, 16) == 0]
    assert 2 < len(tune) < 20
    relatives = [made_up(i, 31, 7) for i in (*tune, 500)]
    relatives += [(q.replace("Ann", "Zoë"), a) for q, a in relatives]
    fresh = [made_up(i) for i in range(200, 320)]
    held_out = [i for i in range(200, 320) if smol.sources.residue(made_up(i)[0], 64) == 1]
    assert held_out
    cousins = [made_up(i, 31, 7) for i in held_out]
    text = [f"{q}||{a}" for q, a in (*relatives, *fresh, *cousins, rows[-1])]
    (folder / "tum_generated_eq.txt").write_text("\n".join([*text, "no bars", "a||b||c"]))
    for name in ("gsm8k_rephrased_eq", "tinygsm_filter_eq"):
        (folder / f"{name}.txt").write_text("")
    question, answer = made_up(500)
    (folder / "test.jsonl").write_text(json.dumps({"question": question, "answer": answer}))
    return folder


def run(source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RECIPE / "data.py"), "--source", str(source), "--out", str(out)]
    return subprocess.run([*command, *options], capture_output=True, text=True)


def lines_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = re.sub(r"\d+", "#", text.lower()).replace("?", " ").replace(".", " ").split()
    return {tuple(words[i : i + 13]) for i in range(len(words) - 12)}


def test_the_files_do_not_depend_on_the_workers_and_keep_the_sides_apart(source, tmp_path):
    options = ("--test", str(source / "test.jsonl"), "--variants", "3", "--seed", "4")
    for name, workers in (("one", "1"), ("two", "2")):
        done = run(source, tmp_path / name, *options, "--workers", workers)
        assert done.returncode == 0, done.stderr
    for file in ("train.jsonl", "held_out.jsonl", "tune.jsonl"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    table = dict(re.findall(r"^\| ([\w: ]+?) \|.* ([\d,]+) \|$", done.stdout, re.MULTILINE))
    train, held_out, tune = (
        lines_of(tmp_path / "one" / f"{name}.jsonl") for name in ("train", "held_out", "tune")
    )
    assert tune[0].keys() == {"question", "answer"}
    assert "<<" in tune[0]["answer"]
    apart = set().union(*(runs_of_words(row["question"]) for row in tune))
    apart |= runs_of_words(made_up(500)[0])
    prompts = [row["prompt"] for row in (*train, *held_out)]
    assert all(prompt.endswith("now?\n") for prompt in prompts)
    assert not any(runs_of_words(prompt) & apart for prompt in prompts)
    wordings = {re.sub(r"\d+", "#", row["prompt"]) for row in train}
    assert not wordings & {re.sub(r"\d+", "#", row["prompt"]) for row in held_out}
    assert int(table["dropped: like one held out"]) >= 1
    assert len(held_out) + len(wordings) == 240 - len(tune)
    assert len(train) == 4 * len(wordings)
    for row in train:
        assert_solved(row["answer"])
    assert table["to tune on"] == str(len(tune))
    assert table["dropped: like one to tune on"] == str(2 * len(tune))
    assert table["dropped: like a test question"] == "2"
    assert table["dropped: seen before"] == "1"
    assert table["dropped: malformed"] == "2"
    assert table["variants"] == str(3 * len(wordings))


def test_a_shard_has_other_variants(source, tmp_path):
    for options in ((), ("--shard", "1")):
        assert run(source, tmp_path, "--variants", "2", *options).returncode == 0
    first, second = (
        {row["prompt"] for row in lines_of(tmp_path / name)}
        for name in ("train.jsonl", "train-1.jsonl")
    )
    originals = {prompt for prompt in first if " 12 " in prompt and " 5 " in prompt}
    assert originals <= second
    assert len(first & second) < 1.5 * len(originals)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--workers", "0"), "--workers 0"),
        (("--variants", "-1"), "--variants -1"),
        (("--source", "nowhere"), "nowhere/gsm8k_train.jsonl"),
        (("--test", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_bad_options(source, tmp_path, options, told):
    done = run(source, tmp_path, *options)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_real_problems(smol):
    if not DATA.exists():
        pytest.skip("the word problems are not at ../shared/data/train_math beside the repository")
    rows = list(smol.sources.read_rows(DATA))[::16]
    sides = smol.data.divide(rows)
    assert 15 < len(sides.tune) < 60
    assert len(sides.train) > 0.85 * len(rows)
    varied = 0
    for _, asked in sides.train[::6]:
        made, _ = smol.data.vary(asked, 8, 0, 0)
        varied += bool(made)
        for _, answer in made:
            assert_solved(answer)
    assert varied > 0.6 * len(sides.train[::6])
