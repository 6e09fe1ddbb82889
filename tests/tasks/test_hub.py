"""Datasets of the hub: the real client library against a local server, in a separate process."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from ..models.hub_server import Hub, serving

ROWS = [{"question": f"{i} + {i}?", "answer": f"#### {i + i}"} for i in range(5)]
UNREACHABLE = "http://127.0.0.1:9"
ASK = """
import sys
from oddlm.tasks.hub import hub_rows
try:
    print(repr(hub_rows(sys.argv[1], config=eval(sys.argv[2]), split=sys.argv[3])))
except ValueError as error:
    print("refused:", error)
assert "datasets" not in sys.modules and "torch" not in sys.modules
"""


def ask(
    home: Path,
    url: str,
    repo: str,
    config: str | None = "main",
    split: str = "test",
    code: str = ASK,
    **env: str,
) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **env}
    command = [sys.executable, "-W", "error", "-c", code, repo, repr(config), split]
    done = subprocess.run(
        command, env=clean | settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def rows(told: str) -> list[tuple[int, dict[str, str]]]:
    assert not told.startswith("refused"), told
    return ast.literal_eval(told)


def parquet(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, Path]:
    """Datasets by name, one in each of the hub's layouts."""
    folders = {
        f"datasets/{name}": tmp_path / name.replace("/", "-")
        for name in ("openai/gsm8k", "some/lines")
    }
    gsm8k, lines = folders.values()
    parquet(gsm8k / "main" / "test-00000-of-00002.parquet", ROWS[:3])
    parquet(gsm8k / "main" / "test-00001-of-00002.parquet", ROWS[3:])
    parquet(
        gsm8k / "main" / "train-00000-of-00001.parquet",
        [{"question": "of the other split", "answer": "#### 0"}],
    )
    parquet(
        gsm8k / "socratic" / "test-00000-of-00001.parquet",
        [{"question": "of the other config", "answer": "#### 0"}],
    )
    lines.mkdir()
    (lines / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folders


def test_shards_of_one_config_and_split(sets: dict[str, Path], tmp_path: Path) -> None:
    with serving(Hub(sets)) as hub:
        assert rows(ask(tmp_path / "home", hub.url, "openai/gsm8k")) == list(
            enumerate(ROWS, start=1)
        )
        fetched = [
            path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path
        ]
    assert sorted(Path(path).name for path in fetched) == [
        "test-00000-of-00002.parquet",
        "test-00001-of-00002.parquet",
    ]


def test_json_lines_without_a_config(sets: dict[str, Path], tmp_path: Path) -> None:
    with serving(Hub(sets)) as hub:
        assert rows(ask(tmp_path / "home", hub.url, "some/lines", config=None)) == list(
            enumerate(ROWS, start=1)
        )


@pytest.mark.parametrize("env", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_out_of_reach_the_cache_must_do(
    sets: dict[str, Path], tmp_path: Path, env: dict[str, str]
) -> None:
    home = tmp_path / "home"
    with serving(Hub(sets)) as hub:
        ask(home, hub.url, "openai/gsm8k")
    assert rows(ask(home, UNREACHABLE, "openai/gsm8k", **env)) == list(enumerate(ROWS, start=1))


def test_half_of_the_shards_is_not_the_split(sets: dict[str, Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(Hub(sets)) as hub:
        ask(home, hub.url, "openai/gsm8k")
    (shard,) = home.rglob("test-00001-of-00002.parquet")
    shard.unlink()
    told = ask(home, UNREACHABLE, "openai/gsm8k")
    assert told.startswith("refused:")
    assert "openai/gsm8k" in told


@pytest.mark.parametrize(
    ("repo", "config", "split", "named"),
    [
        ("openai/gsm8k", "main", "validation", ["openai/gsm8k", "'validation'", "'main'"]),
        ("openai/gsm8k", None, "test", ["openai/gsm8k", "'test'"]),
        ("nobody/nothing", "main", "test", ["nobody/nothing", "RepositoryNotFoundError"]),
    ],
)
def test_what_there_is_not(
    sets: dict[str, Path], tmp_path: Path, repo: str, config: str, split: str, named: list[str]
) -> None:
    with serving(Hub(sets)) as hub:
        told = ask(tmp_path / "home", hub.url, repo, config, split)
    assert told.startswith("refused:")
    assert all(name in told for name in [*named, "--data"]), told


GSM8K = """
from oddlm.tasks.gsm8k import TASK
print([problem.prompt for problem in TASK.load()])
"""


def test_gsm8k_comes_from_the_hub_or_its_cache(sets: dict[str, Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(Hub(sets)) as hub:
        assert rows(ask(home, hub.url, "", code=GSM8K)) == [row["question"] for row in ROWS]
    assert rows(ask(home, UNREACHABLE, "", code=GSM8K)) == [row["question"] for row in ROWS]


SVAMP = """
from oddlm.tasks.svamp import TASK
print([(problem.id, problem.target) for problem in TASK.load()])
"""


def test_svamp_is_both_splits_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "svamp"
    for part, number in (("train", 1), ("test", 2)):
        row = {"ID": f"chal-{number}", "Body": "One.", "Question": "Two?", "Answer": f"{number}.0"}
        parquet(folder / "data" / f"{part}-00000-of-00001.parquet", [row])
    with serving(Hub({"datasets/ChilleD/SVAMP": folder})) as hub:
        told = ask(tmp_path / "home", hub.url, "", code=SVAMP)
    assert ast.literal_eval(told) == [("svamp/chal-1", 1.0), ("svamp/chal-2", 2.0)]


WATCHED = """
import sys, types
changes = []

class Config(types.ModuleType):
    HF_HUB_OFFLINE, HF_ENDPOINT = False, "nowhere"

    def __setattr__(self, name, value):
        changes.append((name, value))

def load_dataset(*_, **__):
    raise OSError("out of reach")

library = types.ModuleType("datasets")
library.config, library.load_dataset = Config("datasets.config"), load_dataset
sys.modules |= {"datasets": library, "datasets.config": library.config}
from oddlm.tasks.gsm8k import TASK
try:
    TASK.load()
except ValueError as error:
    assert "openai/gsm8k" in str(error), error
print(changes)
"""


def test_a_hub_out_of_reach_changes_no_setting_that_other_threads_read(tmp_path: Path) -> None:
    assert ask(tmp_path, UNREACHABLE, "", code=WATCHED) == "[]"
