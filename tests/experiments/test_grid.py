"""Grids: what they expand to, and how errors in them are reported."""

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.config import checked
from oddlm.experiments.grid import expand, read_grid, variants
from oddlm.spec import RunSpec
from oddlm.tasks.base import task_names

from .test_run import ENV, ROOT

FILES = ROOT / "grids"


def wanted_of(text):
    return expand(tomllib.loads(text), "grid.toml", {})


def specs_of(*given):
    return [one.spec for one in read_grid(*given)]


def grid(text: str) -> list[RunSpec]:
    return [one.spec for one in expand(tomllib.loads(text), "grid.toml", {})]


@pytest.fixture
def gsm8k(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    return path


def test_the_paper():
    """13 settings x 5 temperatures x 8 runs x 2 tasks."""
    specs = specs_of(FILES / "paper.toml")
    assert len(specs) == len({spec.id for spec in specs}) == 13 * 5 * 8 * 2
    settings = Counter((spec.params.objective, spec.params.alpha) for spec in specs)
    alphas = (2, 8, 16, 32, 64, 128)
    assert settings == {("none", 0): 80} | {
        (objective, alpha): 80 for objective in ("dpp", "odd") for alpha in alphas
    }
    assert {spec.params.temperature for spec in specs} == {0, 0.5, 1, 1.5, 2}
    assert {spec.seed for spec in specs} == set(range(8))
    assert {(spec.task, spec.protocol, spec.n) for spec in specs} == {
        ("gsm8k", "paper", 16),
        ("humaneval", "paper", 16),
    }
    assert {(spec.params.length, spec.params.steps, spec.params.eos) for spec in specs} == {
        (64, 32, "free")
    }
    assert {(spec.model, str(spec.loading.options())) for spec in specs} == {
        ("GSAI-ML/LLaDA-8B-Instruct", "{'quantize': 'nf4'}"),
    }


def test_a_protocol_fixes_what_no_table_names():
    text = 'model = "toy"\ntask = {name = "sudoku", protocol = "d1"}\n[params]\ntop_p = 0.5\n'
    fixed, own = grid(text), grid(text + "block_length = 64\nsteps = 256\n")
    assert [(s.params.length, s.params.steps, s.params.block_length) for s in fixed + own] == [
        (256, 128, 32),
        (256, 256, 64),
    ]
    assert {(s.params.temperature, s.params.top_p) for s in fixed} == {(0.0, 0.5)}


def test_mini():
    wanted = read_grid(FILES / "mini.toml")
    specs = [one.spec for one in wanted]
    assert {
        (s.task, s.params.length, s.params.steps, s.params.eos, limit) for s, limit in wanted
    } == {
        ("countdown", 24, 12, "late", 200),
        ("minicode", 64, 16, "free", 200),
    }
    assert {s.seed for s in specs} == set(range(8))
    plain = [s.params for s in specs if s.params.plain]
    assert {(p.order_temperature, p.fork) for p in plain} == {
        (0.0, False),
        (1.0, False),
        (0.0, True),
    }
    assert {s.params.objective for s in specs} == {"none", "dpp", "odd", "odd_sequential"}
    assert len(specs) == (1 + 6 + 6 + 1 + 1 + 1) * 5 * 8 * 2


def test_features_and_generalisation():
    shapes = {(s.params.steps, s.params.length) for s in specs_of(FILES / "generalisation.toml")}
    assert shapes == {(steps, length) for steps in (16, 32, 64) for length in (64, 128, 256)}
    features = [s.params.feature for s in specs_of(FILES / "features.toml") if not s.params.plain]
    tables = [feature for feature in features if isinstance(feature, dict)]
    assert {f["name"] for f in tables} == {"max_pool", "mean_pool", "positional"}
    assert {(f["space"], f.get("top_k")) for f in tables} == {
        (s, k) for s in ("probs", "embedding") for k in (None, 1, 4, 16, 64)
    }


def test_alpha_0_of_every_objective_is_one_run():
    push = 'objective = ["odd", "dpp", "none"], alpha = [0, 8], feature = ["max_pool", "mean_pool"]'
    specs = grid(f'model = "toy"\ntask = "countdown"\nparams = {{{push}}}')
    told = [(spec.params.objective, spec.params.alpha, spec.params.feature) for spec in specs]
    pushed = {
        (objective, 8, feature)
        for objective in ("odd", "dpp")
        for feature in ("max_pool", "mean_pool")
    }
    assert Counter(told) == Counter({("none", 0, "max_pool"): 1} | dict.fromkeys(pushed, 1))


def test_grids_are_united_and_what_they_share_is_said_once():
    shared = 'model = "toy"\ntask = "countdown"\nseed = [0, 1]\n'
    shared += "[params]\ntemperature = [0, 1]\nalpha = 0\n"
    both = grid(shared + "[[grid]]\n[[grid]]\nparams = {alpha = [0, 8]}\n[[grid]]\nseed = 5\n")
    assert len(both) == 4 + 4 + 2
    assert {spec.seed for spec in both} == {0, 1, 5}


def test_tasks_have_settings_of_their_own():
    wanted = wanted_of("""
model = "toy"
limit = 3
task = ["minicode", {name = "countdown", limit = 5, params = {length = [24, 32], eos = "late"}}]
params = {eos = "never", steps = 8}
""")
    found = [(s.task, limit, s.params.length, s.params.steps, s.params.eos) for s, limit in wanted]
    assert found == [
        ("minicode", 3, 64, 8, "never"),
        ("countdown", 5, 24, 8, "late"),
        ("countdown", 5, 32, 8, "late"),
    ]


def test_a_run_has_the_id_that_eval_gives_it():
    settings = 'params = {objective = "odd", alpha = 8, temperature = 1}'
    (spec,) = grid(f'model = "toy"\ntask = "countdown"\n{settings}')
    params = {"length": 48, "alpha": 8.0, "temperature": 1.0, "objective": "odd"}
    assert (
        spec.id
        == checked(RunSpec, {"model": "toy", "task": "countdown", "n": 16, "params": params}).id
    )


def test_options_of_the_model_make_another_run():
    ids = [
        grid(f'model = {model}\ntask = "countdown"')[0].id
        for model in (
            '"toy"',
            '{name = "toy"}',
            '{name = "toy", cache = "dual"}',
            '{name = "toy", dtype = "fp64"}',
        )
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_ids_are_the_same_in_every_process():
    code = "from pathlib import Path; from oddlm.experiments.grid import read_grid; "
    code += "print(*(spec.id for spec, _ in read_grid(Path(PATH))))"
    command = [sys.executable, "-c", code.replace("PATH", repr("grids/smoke.toml"))]
    told = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={**ENV, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert (
        told[0].split() == told[1].split() == [spec.id for spec in specs_of(FILES / "smoke.toml")]
    )


def test_problems_from_a_file_count_by_what_it_holds(gsm8k):
    specs = specs_of(FILES / "paper.toml", {"gsm8k": gsm8k})
    assert {spec.data for spec in specs if spec.task == "gsm8k"} == {str(gsm8k)}
    assert {spec.data for spec in specs if spec.task == "humaneval"} == {None}
    assert not {s.id for s in specs if s.task == "gsm8k"} & {
        s.id for s in specs_of(FILES / "paper.toml")
    }
    with pytest.raises(
        ValueError, match=r"has no task 'gsm' to read from x; its tasks: gsm8k, humaneval"
    ):
        read_grid(FILES / "paper.toml", {"gsm": Path("x")})


@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.lists(st.integers(), min_size=1, max_size=3, unique=True),
        max_size=4,
    )
)
def test_a_grid_is_a_product(table):
    found = variants(table)
    count = 1
    for values in table.values():
        count *= len(values)
    assert len(found) == len({tuple(sorted(one.items())) for one in found}) == count
    assert all(one[key] in values for one in found for key, values in table.items())


HEAD = 'model = "toy"\ntask = "countdown"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "[params]\ntemprature = 1",
            "grid.toml: unknown field 'params.temprature'; known: length, steps",
        ),
        (
            HEAD + "sed = 1",
            "grid.toml: unknown field 'sed'; known: model, task, n, seed, limit, params",
        ),
        (
            HEAD + "[[grid]]\n[[grid]]\nsed = 1",
            "grid.toml, grid 2: unknown field 'sed'; known: model, task",
        ),
        (
            'model = "toy"\ntask = {name = "countdown", protokol = "x"}',
            "unknown field 'task.protokol'; known: name, protocol",
        ),
        (
            'model = "toy"\ntask = {name = "countdown", params = {eso = "late"}}',
            "unknown field 'task.params.eso'; known: length",
        ),
        (
            HEAD + "[params]\nalpha = [0, -1]",
            "params.alpha: Input should be greater than or equal to 0, not -1",
        ),
        (HEAD + "[params]\nalpha = nan", "params.alpha: Input should be a finite number, not nan"),
        (HEAD + '[params]\nalpha = "much"', "params.alpha: Input should be a valid number"),
        (
            HEAD + "[params]\nalpha = []",
            "grid.toml: params: alpha: an empty list leaves nothing to run",
        ),
        (HEAD + "[params]\nseed = 1", "seed belongs beside params"),
        (HEAD + "n = 0", "n: Input should be greater than or equal to 1, not 0"),
        (HEAD + "limit = 0", "limit: Input should be greater than or equal to 1, not 0"),
        (HEAD + "params = 3", "params must be a table, not 3"),
        (
            HEAD + f"seed = {list(range(1000))}\nn = {list(range(1, 200))}",
            "199000 combinations",
        ),
        (HEAD + "grid = 3", "grid must be a list of tables, [[grid]]"),
        (HEAD + "grid = []", "grid.toml holds no runs"),
        (
            "",
            "grid.toml holds no runs: it needs keys of a grid (model, task, n, seed, limit,",
        ),
        ('task = "countdown"', "model: Field required"),
        ('model = "toy"', "task: Field required"),
        (
            'model = "toy"\ntask = "contdown"',
            f"unknown task 'contdown'; known: {', '.join(task_names())}",
        ),
        ('model = "toy"\ntask = "no.such.Task"', "task 'no.such.Task' cannot be imported"),
        (
            'model = "toy"\ntask = {name = "gsm8k", protocol = "papr"}',
            "task 'gsm8k' has no protocol 'papr'; known: 4-shot, d1, dream, equations, llada",
        ),
        ('model = "toy"\ntask = {name = "own.jsonl"}', "there is no file own.jsonl"),
        ('model = "toy"\ntask = {name = "own.jsonl", scorer = "exat"}', "unknown scorer 'exat'"),
        (
            HEAD + "[params]\nlength = 10\nblock_length = 4",
            "block_length 4 does not divide length 10",
        ),
    ],
)
def test_a_grid_that_makes_no_sense(text, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 : the whole message is compared below
        grid(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*grid.toml: No such file"),
        (b"a = ", "is not TOML"),
        (b"\xff", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, content, message):
    if content is not None:
        (tmp_path / "grid.toml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_grid(tmp_path / "grid.toml")
