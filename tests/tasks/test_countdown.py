import json
import warnings
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from hashlib import blake2b
from itertools import islice, pairwise, permutations, product
from operator import add, mul, sub, truediv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.tasks import Problem, find_task
from oddlm.tasks.countdown import TASK, load, prompt, score, side, stream

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}
WORKED = Problem("worked", "86,28,13,31,96", 96)
SOLUTION = "86+28=114,31-13=18,114-18=96"


def solutions(
    numbers: tuple[Fraction, ...], target: int, so_far: tuple[str, ...] = ()
) -> Iterator[str]:
    """Brute force over all plays, in exact fractions."""
    if len(numbers) == 1:
        if numbers[0] == target:
            yield ",".join(so_far)
        return
    for i, j in permutations(range(len(numbers)), 2):
        rest = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
        for symbol, operation in OPERATIONS.items():
            if symbol == "/" and numbers[j] == 0:
                continue
            result = operation(numbers[i], numbers[j])
            if result >= 0 and result.denominator == 1:
                step = f"{numbers[i]}{symbol}{numbers[j]}={result}"
                yield from solutions((*rest, result), target, (*so_far, step))


def brute_force(text: str) -> Iterator[str]:
    *numbers, target = map(int, text.split(","))
    return solutions(tuple(map(Fraction, numbers)), target)


def right(problem: Problem, text: str) -> bool:
    return score(problem, text).correct


@pytest.mark.parametrize("text", ["1,2,3,6", "2,2,4,4"])
def test_checker_accepts_exactly_what_brute_force_finds(text: str) -> None:
    problem = Problem("small", text, int(text[-1]))
    operands, results = "01234", "0123456"
    steps = [f"{a}{o}{b}={c}" for a, o, b, c in product(operands, "+-*/", operands, results)]
    accepted = {
        f"{first},{second}"
        for first, second in product(steps, repeat=2)
        if right(problem, f"{first},{second}")
    }
    valid = set(brute_force(text))
    assert valid
    inside = {
        answer
        for answer in valid
        if set(answer) <= set("+-*/=,0123456") and all(s in steps for s in answer.split(","))
    }
    assert accepted == inside
    assert all(right(problem, answer) for answer in valid)


@pytest.mark.parametrize("numbers", [3, 4, 5])
@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_generated_solutions_pass_the_checker(numbers: int, split: str) -> None:
    for shown, answer in islice(stream(numbers=numbers, split=split, seed=3), 3000):
        problem = Problem("generated", shown.rstrip("\n"), None)
        *given_numbers, target = map(int, problem.prompt.split(","))
        assert len(given_numbers) == numbers
        assert all(1 <= number <= 99 for number in given_numbers)
        assert 10 <= target <= 100
        assert side(given_numbers, target) == split
        assert right(problem, answer), (shown, answer)


@pytest.mark.parametrize(("numbers", "count"), [(3, 300), (4, 100), (5, 8)])
def test_generated_problems_are_solved_by_brute_force(numbers: int, count: int) -> None:
    for problem in load(numbers=numbers, count=count, seed=5):
        answer = next(brute_force(problem.prompt), None)
        assert answer is not None, problem
        assert right(problem, answer)


@pytest.mark.parametrize("draws", [50_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_train_and_test_never_meet(draws: int) -> None:
    def keys(split: str, count: int, seed: int) -> set[tuple[tuple[int, ...], int]]:
        texts = (shown for shown, _ in islice(stream(numbers=3, split=split, seed=seed), count))
        return {
            (tuple(sorted(numbers)), target)
            for *numbers, target in (map(int, text.split(",")) for text in texts)
        }

    held_out = min(draws // 10, 10_000)
    train, tune, test = (
        keys("train", draws - 2 * held_out, 0),
        keys("tune", held_out, 1),
        keys("test", held_out, 1),
    )
    assert len(train) > draws // 5
    assert len(test) > held_out // 2
    assert not train & test
    assert not train & tune
    assert not tune & test


def test_side_is_the_published_function() -> None:
    digest = blake2b(b"13,28,31,86=96", digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % 100
    expected = "train" if bucket < 90 else "tune" if bucket < 95 else "test"
    assert {side(order, 96) for order in permutations([86, 28, 13, 31])} == {expected}
    shares = Counter(
        side([a, b, c], 50) for a in range(1, 40) for b in range(a, 40) for c in range(b, 40)
    )
    assert shares["train"] / shares.total() == pytest.approx(0.90, abs=0.01)
    assert shares["tune"] / shares.total() == pytest.approx(0.05, abs=0.01)


def test_side_of_known_problems_never_changes() -> None:
    held_out = {1: "tune", 12: "test", 24: "test", 27: "tune"}
    assert {
        a: side([a, 20, 30], 50) for a in range(1, 41) if side([a, 20, 30], 50) != "train"
    } == held_out


def test_stream_varies_operators_orders_and_shapes() -> None:
    answers = [answer for _, answer in islice(stream(seed=1), 20_000)]
    operators = Counter(c for answer in answers for c in answer if c in OPERATIONS)
    assert min(operators[o] for o in OPERATIONS) > 0.05 * operators.total()
    chains = sum(
        all(step.split("=")[1] in after for step, after in pairwise(answer.split(",")))
        for answer in answers
    )
    assert 0.3 < chains / len(answers) < 0.9
    assert len(set(answers)) > 19_000
    assert max(map(len, answers)) < TASK.length


def test_same_seed_same_problems_and_more_only_adds() -> None:
    assert load(count=20, seed=7) == load(count=40, seed=7)[:20] == load(count=40, seed=7, limit=20)
    assert load(count=20, seed=7) != load(count=20, seed=8)


def test_default_benchmark() -> None:
    problems = find_task("countdown").load()
    assert len(problems) == len({problem.id for problem in problems}) == 500
    assert (
        len({(*sorted(problem.prompt.split(",")[:-1]), problem.target) for problem in problems})
        == 500
    )
    assert prompt(WORKED) == "86,28,13,31,96\n"


@pytest.mark.parametrize("text", ["1,2,3,6", "86,28,13,31,96", "1,2,3,4,5,15", "1,2,3"])
def test_few_shot_prompt_shows_solved_training_problems(text: str) -> None:
    shown = TASK.under("few_shot").prompt(Problem("asked", text, None))
    *worked, asked = shown.split("\n\n")[1:]
    assert asked == f"Input: {text}\nOutput:"
    assert len(worked) == 4
    for example in worked:
        problem, answer = example.removeprefix("Input: ").split("\nOutput: ")
        *numbers, target = map(int, problem.split(","))
        assert side(numbers, target) == "train"
        assert right(Problem("worked", problem, None), answer)


@pytest.mark.parametrize(
    "text",
    [
        SOLUTION,
        f"  {SOLUTION}\n",
        f"\n{SOLUTION}\r\nand so on",
        f"{SOLUTION}<|endoftext|>junk",
        f"{SOLUTION} </s>",
        "31-13=18,86+28=114,114-18=96",
        "28+86=114,31-13=18,114-18=96",
    ],
)
def test_right_answers(text: str) -> None:
    assert right(WORKED, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "96",
        "86+28=114,31-13=18",
        "86+28=114,31-13=18,114-18=95",
        "86+28=115,31-13=18,115-18=97",
        "86+28=114,31-13=18,114-18=96,",
        ",86+28=114,31-13=18,114-18=96",
        "86+28=114,31-13=18,114-18=96,96*1=96",
        "86+28=114,31-13=18,114-18=96 is the answer",
        "Answer: 86+28=114,31-13=18,114-18=96",
        "86 + 28=114,31-13=18,114-18=96",
        "86+28=114, 31-13=18,114-18=96",
        "86+28=114.0,31-13=18,114-18=96",
        "86+28=+114,31-13=18,114-18=96",
        "86+28=1_14,31-13=18,114-18=96",
        "86+28=0114,31-13=18,114-18=96",
        "86+28=\uff11\uff11\uff14,31-13=18,114-18=96",
        "8\uff16+28=114,31-13=18,114-18=96",
        "86+28=114,13-31=-18,114+-18=96",
        "86+28=1.14e2,31-13=18,114-18=96",
        "86+28=114\x00,31-13=18,114-18=96",
        "86+28=114,31-13=18,114\u221218=96",
        "86+28==114,31-13=18,114-18=96",
        "86**28=114,31-13=18,114-18=96",
        "86+28=114,86+28=114,114-18=96",
        "96*1=96,96*1=96,96*1=96",
    ],
)
def test_wrong_answers(text: str) -> None:
    verdict = score(WORKED, text)
    assert not verdict.correct
    assert verdict.detail


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("20,21,32,32,41", "20+21=41,32-32=0,41+0=41"),
        ("14,14,60,99,39", "14-14=0,99-60=39,0+39=39"),
        ("84,76,89,84,89", "84-84=0,76*0=0,89+0=89"),
        ("45,54,81,66,81", "45*81=3645,54*66=3564,3645-3564=81"),
        ("86,38,71,64,96", "86*71=6106,38+6106=6144,6144/64=96"),
    ],
)
def test_gold_answers_of_the_public_four_number_file(text: str, answer: str) -> None:
    assert right(Problem("public", text, None), answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5,2,50,25", "5/2=2,50/2=25"),  # 5/2 is not exact
        ("7,20,7,27", "7-20=-13,7--13=20"),  # no negative numbers
        ("7,7,5,5,5", "7-7=0,5-5=0,0/0=5"),  # no division by 0
        ("7,7,5,10", "7-7=0,5/0=10"),
        ("2,3,4,20", "4+4=8,8*3=24"),  # 4 is available only once
        ("1,2,13,26", "2*13=26,26+0=26"),
    ],
)
def test_rules_of_the_game(text: str, answer: str) -> None:
    assert not right(Problem("rule", text, None), answer)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 1_000_000,
        "86+28=" + "1" * 1_000_000,
        "," * 1_000_000,
        "1+1=2," * 200_000,
        " " * 1_000_000,
        "\n" * 1_000_000,
        "\ud800" * 1000,
        "\x00" * 1000,
        "1e3+1=1001," * 3,
    ],
)
def test_hostile_text_is_a_scored_failure(text: str) -> None:
    verdict = score(WORKED, text)
    assert not verdict.correct
    assert len(verdict.detail) < 300
    assert verdict.answer is None or verdict.answer.encode()


@given(st.text(st.characters() | st.sampled_from("0123456789+-*/=,<\n "), max_size=60))
def test_checker_never_raises(text: str) -> None:
    assert score(WORKED, text).correct == (
        text.strip(" \t\r\n").partition("\n")[0].partition("<")[0].strip(" \t\r") == SOLUTION
    )


def test_reads_a_file_and_says_what_lies_on_the_training_side(tmp_path) -> None:
    trained = [shown.strip() for shown, _ in islice(stream(split="train"), 3)]
    held_out = [problem.prompt for problem in load(count=5)]
    path = tmp_path / "cd4.jsonl"
    path.write_text(
        "\n".join(json.dumps({"input": text, "output": ""}) for text in [*trained, *held_out])
        + "\n\n"
    )
    with pytest.warns(UserWarning, match=r"3 of the 8 .*kept; exclude_train"):
        problems = load(data=path)
    assert [problem.prompt for problem in problems] == [*trained, *held_out]
    assert [problem.id for problem in problems[:2]] == ["cd4.jsonl:1", "cd4.jsonl:2"]
    with pytest.warns(UserWarning, match=r"3 of the 8 .*left out"):
        assert [problem.prompt for problem in load(data=str(path), exclude_train=True)] == held_out


def test_silent_where_there_is_nothing_to_say(tmp_path) -> None:
    path = tmp_path / "cd.jsonl"
    path.write_text(json.dumps({"input": load(count=1)[0].prompt}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load(data=path, exclude_train=True)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"bad\.jsonl is empty"),
        (b"\n\n", r"bad\.jsonl is empty"),
        (b'{"input": "1,2,3,6"}\n{', "line 2: not JSON"),
        (b'{"input": "1,2,3,6"}\n\n\xff\xfe', "line 3: not JSON"),
        (b'{"question": "1,2,3,6"}', "line 1: .*missing: input"),
        (b"[1, 2, 3]", "line 1: .*missing: input"),
        (b'{"input": [1, 2, 3]}', "line 1: input is list"),
        (b'{"input": "1,2"}', "line 1: expected"),
        (b'{"input": "1,2,-3,6"}', "line 1: expected"),
        (b'{"input": "0,2,3,6"}', "line 1: expected"),
        (b'{"input": "1,2,3,' + b"9" * 10_000 + b'"}', "line 1: expected"),
        ('{"input": "1,2,\uff13,6"}'.encode(), "line 1: expected"),
        (b"[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_files(tmp_path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(data=path)


def test_nothing_left_of_a_training_file(tmp_path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"input": next(stream())[0].strip()}))
    with (
        pytest.warns(UserWarning, match="1 of the 1"),
        pytest.raises(ValueError, match=r"train\.jsonl .*training side"),
    ):
        load(data=path, exclude_train=True)


def test_bad_options(tmp_path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        load(data=tmp_path / "nowhere.jsonl")
    with pytest.raises(ValueError, match=r"numbers .*3, 4, 5, not 6"):
        load(numbers=6)
    with pytest.raises(ValueError, match=r"split 'dev'; known: train, tune, test"):
        load(split="dev")
    with pytest.raises(ValueError, match=r"count .*not 0"):
        load(count=0)
    with pytest.raises(ValueError, match=r"limit .*not -1"):
        load(limit=-1)
    with pytest.warns(UserWarning, match=r"limit 50 .*10 problems"):
        assert len(load(count=10, limit=50)) == 10


@pytest.mark.parametrize("numbers", [3, 5])
def test_protocols_ask_for_more_or_fewer_numbers(numbers: int) -> None:
    for split in ("test", "tune"):
        problems = TASK.under(f"{numbers}_numbers").problems(limit=4, split=split)
        assert [len(problem.prompt.split(",")) for problem in problems] == [numbers + 1] * 4
        assert problems == load(numbers=numbers, split=split, limit=4)
