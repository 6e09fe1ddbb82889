"""reasoning-gym: its problems and its scorers by name; answers are never run as programs."""

from pathlib import Path

import pytest

from oddlm.lm import check_vote
from oddlm.tasks import reasoning_gym, reasoning_gym_judge
from oddlm.tasks.base import Problem, Task, find_task, task_identity
from oddlm.tasks.judges import Judges

# Their scorers evaluate the answer: by eval(), or by SymPy.
EVALUATING = (
    *("spiral_matrix", "string_insertion", "binary_matrix", "n_queens"),
    *("puzzle24", "countdown", "polynomial_multiplication", "simple_integration"),
    "intermediate_integration",
)
# Whether texts are made in the order of a set differs by process; not every answer is unique.
OTHERS = ("isomorphic_strings", "acre", "rush_hour", "bitwise_arithmetic")


def one(name: str) -> tuple[Task, Problem]:
    task = find_task(f"reasoning_gym:{name},size=1")
    (problem,) = task.problems()
    return task, problem


def test_problems_are_seeded_and_sized_and_the_same_in_every_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = find_task("reasoning_gym:ransom_note,seed=3,size=4")
    found = task.problems()
    assert len(found) == len({problem.id for problem in found}) == 4
    assert task.problems(limit=2) == found[:2]
    with pytest.warns(UserWarning, match=r"limit 9 .*4 problems"):
        assert task.problems(limit=9) == found
    others = Judges(reasoning_gym.JUDGES.module, reasoning_gym.JUDGES.name)
    monkeypatch.setattr(reasoning_gym, "JUDGES", others)
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    assert task.problems() == found
    others.end()
    assert {one.prompt for one in task.problems(split="tune")}.isdisjoint(
        one.prompt for one in found
    )
    assert find_task("reasoning_gym:ransom_note,seed=4,size=4").problems() != found


def test_options_are_those_of_the_generator() -> None:
    task = find_task("reasoning_gym:chain_sum,min_terms=6,max_terms=6,size=3")
    assert all(
        problem.prompt.count(" + ") + problem.prompt.count(" - ") == 5
        for problem in task.problems()
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chansum", "no generator 'chansum'; did you mean chain_sum"),
        ("composite", "no generator 'composite'"),
        ("chain_sum,terms=3", "no option 'terms'; options: seed, size, min_terms"),
        ("chain_sum,seed=x", "seed of generator 'chain_sum' .*'x'"),
        ("chain_sum,size=0", "size of generator 'chain_sum' .*0"),
        ("chain_sum,size", "key=value"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_task(f"reasoning_gym:{name}")


def test_wrong_options_name_the_generator() -> None:
    with pytest.raises(ValueError, match=r"'chain_sum' .*\"min_terms\": 9.*AssertionError: max"):
        find_task("reasoning_gym:chain_sum,min_terms=9").problems()
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        find_task("reasoning_gym:chain_sum").problems(split="dev")
    with pytest.raises(ValueError, match="reasoning_gym:chain_sum"):
        find_task("reasoning_gym").problems()
    with pytest.raises(ValueError, match="--protocol"):
        find_task("gsm8k:paper")


def test_it_is_no_dotted_path() -> None:
    task = find_task("reasoning_gym:chain_sum,size=2")
    identity = task_identity(task.name, task, None, None)
    assert "+" not in identity["scorer_version"]
    assert identity["data_digest"] == task_identity(task.name, task, None, "test")["data_digest"]
    read = check_vote("majority", "reasoning_gym:chain_sum")
    assert read is not None
    assert read("so <answer> 7 </answer>") == "7"


@pytest.mark.parametrize("name", [*EVALUATING, *OTHERS])
def test_right_answers_are_right_and_others_are_not(name: str) -> None:
    task, problem = one(name)
    if problem.target.answer is not None:
        score = task.score(problem, f"I think <answer>{problem.target.answer}</answer>.")
        assert score.correct, score.detail
        assert score.answer == problem.target.answer.strip()
        assert task.score(problem, problem.target.answer).correct
    for text in ("<answer></answer>", "", "no idea", "(" * 300, "\0"):
        assert not task.score(problem, text).correct


@pytest.mark.soak
def test_every_generator_makes_problems_and_knows_the_answer() -> None:
    failed = {}
    for name in reasoning_gym.generators():
        task, problem = one(name)
        if problem.target.answer is not None:
            score = task.score(problem, problem.target.answer)
            if not score.correct:
                failed[name] = score.detail
    assert failed == {}


HOSTILE = (
    "__import__('os').system('touch {path}')",
    "open('{path}', 'a').close()",
    "[open('{path}', 'a') for _ in '1']",
    "(lambda: open('{path}', 'a'))()",
    "exec(\"open('{path}', 'a')\")",
    "sympify(\"__import__('os').system('touch {path}')\")",
    "Symbol('x').func.__init__.__globals__['sys'].modules['os'].system('touch {path}')",
    "().__class__.__base__.__subclasses__()",
    "entry['answer'].split()",
    "entry['metadata']['valid_answers'][0]",
)


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    task, problem = one(name)
    for text in HOSTILE:
        score = task.score(problem, f"<answer>{text.format(path=path)}</answer>")
        assert not score.correct, text
        assert not path.exists(), text


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("[[0, 1], [-1, 'a']]", True),
        ("Symbol('x')**Integer(2)/Integer(3) + exp(Symbol('x'))", True),
        ("(3 + 4) * 0x5 << 2", True),
        ("f(3)", False),
        ("x.y", False),
        ("x[0]", False),
        ("[y for y in x]", False),
        ("lambda: 1", False),
        ("exp(x, evaluate=False)", False),
        ("Symbol('x')(1)", False),
        ("f'{x}'", False),
    ],
)
def test_what_a_scorer_may_evaluate(text: str, passes: bool) -> None:
    doors = reasoning_gym_judge._Doors()
    if passes:
        doors.check(text)
    else:
        with pytest.raises(reasoning_gym_judge.RefusedError):
            doors.check(text)
    assert doors.closed, "it stays closed while the scorer runs"


def test_an_endless_answer_is_wrong_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    task, problem = one("spiral_matrix")
    monkeypatch.setattr(reasoning_gym, "SCORE_S", 1.0)
    score = task.score(problem, "9**9**9**9")
    assert not score.correct
    assert "1 s" in score.detail
    monkeypatch.undo()
    assert task.score(problem, problem.target.answer).correct
    assert str(reasoning_gym.LONGEST) in task.score(problem, "1 " * reasoning_gym.LONGEST).detail
