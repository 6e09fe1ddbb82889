"""The store: nothing is lost, nothing is counted twice, and what is wrong is said."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oddlm.config import checked
from oddlm.spec import RunSpec
from oddlm.store import Drawn, DrawnSample, Record, Scored, Store, StoreError, Summary, Writer
from oddlm.store.query import sql

SPEC = checked(RunSpec, {"model": "toy", "task": "own", "n": 2, "params": {"objective": "odd"}})


def drawn(name: str, text: str = "t1", **changes) -> Drawn:
    shape = {
        "length": 2,
        "size": 2,
        "ends": 0,
        "finish_reason": "length",
        "nfe": 4,
        "logprob": -1.5,
    }
    samples = tuple(DrawnSample(index=i, text=f"{text} {i}", **shape) for i in range(2))
    fields = {
        "problem": name,
        "digest": "d",
        "prompt": "p",
        "seed": 2**63 - 1,
        "nfe": 4,
        "seconds": 0.5,
    }
    return Drawn(**{**fields, "samples": samples, **changes})


def scored(name: str, **changes) -> Scored:
    fields = {
        "problem": name,
        "correct": (False, True),
        "solutions": (None, 0),
        "nfe": 4,
        "draw_seconds": 0.5,
        "seconds": 0.1,
    }
    columns = {
        "answers": (None, "x"),
        "details": ("d", "d"),
        "diversity": {"distinct": 1.0, "nothing": float("nan")},
    }
    return Scored(**{**fields, **columns, **changes})


def record(name: str, text: str = "t1", *, prompt: str = "p", **changes) -> Record:
    return Record.of(drawn(name, text, prompt=prompt), scored(name, **changes), Path())


def add(run: Writer, *names: str) -> None:
    for name in names:
        run.draw(drawn(name))
        run.score(scored(name))


SUMMARY = Summary(
    id=SPEC.id,
    problems=2,
    samples=4,
    seconds=1.2,
    passed={"pass@1": 0.5, "pass@2": 1.0},
    diversity={},
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def finished(store):
    with store.open(SPEC, 2) as run:
        run.start({"python": "3"})
        add(run, "a", "b")
        run.finish(SUMMARY)
    return store


def test_what_is_written_is_read_back(finished):
    run = finished.read(SPEC.id)
    assert run.spec == SPEC
    assert run.records == (record("a"), record("b"))
    assert (run.summary, run.starts, run.problems) == (SUMMARY, ({"python": "3"},), 2)
    assert run.records[0].diversity == {"distinct": 1.0, "nothing": None}
    assert finished.read(SPEC.id[:4]).id == SPEC.id


@given(st.text(st.characters(), max_size=30), st.text(max_size=10))
def test_any_text_survives(tmp_path_factory, text, problem):
    store = Store(tmp_path_factory.mktemp("store"))
    with store.open(SPEC, 1) as run:
        run.draw(drawn(problem, text))
    stored = store.read(SPEC.id).records[0]
    assert stored.problem == problem.encode("utf-8", "backslashreplace").decode()
    assert stored.samples[0].text == f"{text} 0".encode("utf-8", "backslashreplace").decode()
    assert stored == Record.of(drawn(problem, text), None, Path())


def test_a_run_resumes(store):
    with store.open(SPEC, 2) as run:
        add(run, "a")
    with store.open(SPEC, 2) as run:
        assert (list(run.digests), run.scored) == (["a"], {"a"})
        with pytest.raises(StoreError, match=r"problem 'a' is in .*drawn\.jsonl already"):
            run.draw(drawn("a"))
        with pytest.raises(StoreError, match=r"problem 'a' is in .*scores\.jsonl already"):
            run.score(scored("a"))
        with pytest.raises(StoreError, match=r"problem 'b' .* has scores and no samples"):
            run.score(scored("b"))
        add(run, "b")
        assert run.drawn(["b", "a"]) == [drawn("b"), drawn("a")]
    assert [r.problem for r in store.read(SPEC.id).records] == ["a", "b"]


@pytest.mark.parametrize("file", ["drawn.jsonl", "scores.jsonl"])
def test_a_line_torn_at_any_byte_is_dropped_and_written_again(finished, file):
    (finished.folder / SPEC.id / "summary.json").unlink()
    scores = whole_lines(finished, "scores.jsonl", 1 if file == "drawn.jsonl" else 2)
    (finished.folder / SPEC.id / "scores.jsonl").write_bytes(scores)
    path = finished.folder / SPEC.id / file
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        with finished.open(SPEC, 2) as run:
            if file == "drawn.jsonl":
                assert list(run.digests) == ["a"]
                run.draw(drawn("b"))
            else:
                assert run.scored == {"a"}
                run.score(scored("b"))
        assert path.read_bytes() == whole


def whole_lines(store: Store, file: str, count: int) -> bytes:
    return b"".join((store.folder / SPEC.id / file).read_bytes().splitlines(keepends=True)[:count])


@pytest.mark.parametrize("file", ["drawn.jsonl", "scores.jsonl"])
@pytest.mark.parametrize("lines", [None, 0, 1])
def test_a_folder_that_was_copied_in_part_is_refused_and_left_alone(finished, file, lines):
    path = finished.folder / SPEC.id / file
    left = None if lines is None else whole_lines(finished, file, lines) + b'{"sch'
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(StoreError) as told, finished.open(SPEC, 2):
        pass
    assert f"{path} holds {lines or 0} of the 2 problems" in str(told.value)
    assert (path.read_bytes() if path.exists() else None) == left
    (path.parent / "summary.json").unlink()
    if file == "drawn.jsonl":
        with (
            pytest.raises(StoreError, match=rf"{path} holds .* and scores.jsonl"),
            finished.open(SPEC, 2),
        ):
            pass
    else:
        with finished.open(SPEC, 2) as run:
            assert len(run.scored) == (lines or 0), "who says so may go on from what is there"


def test_a_folder_whose_spec_was_not_copied_is_refused(finished):
    (finished.folder / SPEC.id / "spec.json").unlink()
    before = sorted(
        (path.name, path.read_bytes())
        for path in (finished.folder / SPEC.id).iterdir()
        if path.name != "lock"
    )
    with pytest.raises(StoreError, match=r"spec\.json is gone"), finished.open(SPEC, 2):
        pass
    after = sorted(
        (path.name, path.read_bytes())
        for path in (finished.folder / SPEC.id).iterdir()
        if path.name != "lock"
    )
    assert after == before


def test_another_scorer_takes_over_what_is_drawn(finished):
    other = SPEC.model_copy(update={"scorer_version": "2"})
    assert (other.id == SPEC.id, other.draw_id == SPEC.draw_id) == (False, True)
    digests = finished.digests(SPEC.id)
    with finished.open(other, 3, {**digests, "c": "0"}) as run:
        assert (run.digests, run.scored) == (digests, set())
        assert run.drawn(["a"]) == [drawn("a")]
    head = finished.head(other.id)
    assert (head.drawn, head.scored, head.complete, head.starts) == (
        2,
        0,
        False,
        ({"python": "3"},),
    )
    assert finished.read(SPEC.id).complete


def test_an_opening_that_comes_to_nothing_leaves_nothing(store):
    with store.open(SPEC, 2):
        pass
    assert list(store.folder.iterdir()) == []


def test_a_run_that_died_before_its_spec_begins_anew(store):
    (store.folder / SPEC.id).mkdir(parents=True)
    (store.folder / SPEC.id / "spec.json.1.part").write_text('{"sch')
    assert store.ids() == []
    with store.open(SPEC, 2) as run:
        add(run, "a")
    assert store.ids() == [SPEC.id]


def edit(store: Store, file: str, change) -> None:
    path = store.folder / SPEC.id / file
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    "file", ["spec.json", "drawn.jsonl", "scores.jsonl", "summary.json", "environment.json"]
)
@pytest.mark.parametrize(
    ("version", "age"), [("1", "an older"), ("3", "a newer"), ("null", "an older")]
)
def test_another_schema_is_refused_and_left_alone(finished, file, version, age):
    edit(
        finished,
        file,
        lambda text: text.replace('"schema_version":2', f'"schema_version":{version}'),
    )
    before = (finished.folder / SPEC.id / file).read_bytes()
    with pytest.raises(
        StoreError, match=rf"{file}.*: schema \w+, from {age} oddlm \(this one reads 2\)"
    ):
        finished.read(SPEC.id)
    if file in ("spec.json", "drawn.jsonl", "scores.jsonl"):
        with pytest.raises(StoreError, match=f"from {age} oddlm"), finished.open(SPEC, 2):
            pass
    assert (finished.folder / SPEC.id / file).read_bytes() == before
    if version != "null":
        with pytest.warns(UserWarning, match=rf"{SPEC.id}.*{file}.*schema {version}"):
            assert sql(finished, "select count(correct) from samples, runs").rows == ((0,),)


def test_a_damaged_line_in_the_middle_is_named(finished):
    edit(finished, "drawn.jsonl", lambda text: text.replace('{"schema', "{schema", 1))
    with pytest.raises(StoreError, match=r"drawn\.jsonl, line 1: damaged, not JSON"):
        finished.read(SPEC.id)
    with pytest.warns(UserWarning, match=r"left out 1 unfinished or damaged lines of drawn\.jsonl"):
        assert sql(finished, "select problem from problems").rows == (("b",),)


def test_a_problem_that_is_there_twice_is_named(finished):
    edit(finished, "drawn.jsonl", lambda text: text + text.split("\n")[0] + "\n")
    with pytest.raises(StoreError, match="line 3: problem 'a' is there twice"):
        finished.read(SPEC.id)


def test_a_spec_with_a_typo_is_named(finished):
    edit(finished, "spec.json", lambda text: text.replace('"temperature"', '"temprature"'))
    with pytest.raises(
        StoreError, match=r"spec\.json: .*unknown field 'spec\.params\.temprature'; known: length"
    ):
        finished.read(SPEC.id)


def test_a_spec_that_was_edited_is_refused(finished):
    edit(finished, "spec.json", lambda text: text.replace('"n":2', '"n":3'))
    with pytest.raises(StoreError, match="describes another run"), finished.open(SPEC, 2):
        pass


def test_one_writer_at_a_time(store):
    with (
        store.open(SPEC, 2),
        pytest.raises(
            StoreError, match=f"run {SPEC.id} is being written by process {os.getpid()} on"
        ),
        store.open(SPEC, 2),
    ):
        pass
    with store.open(SPEC, 2) as run:
        add(run, "a")


def test_a_lock_dies_with_its_process(store):
    code = f"""
import os, signal
from pathlib import Path
from oddlm.spec import RunSpec
from oddlm.store import Store
with Store(Path({str(store.folder)!r})).open(RunSpec.model_validate_json({SPEC.model_dump_json()!r}), 2):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with store.open(SPEC, 2) as run:
        add(run, "a")


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(StoreError, match=r"runs is a file"):
        Store(tmp_path / "runs").check()
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "runs").ids()
    assert (tmp_path / "runs").read_text() == "mine"


READ_ONLY = """
from pathlib import Path
from oddlm.store import Store, StoreError
from tests.store.test_store import SPEC
for attempt in (lambda s: s.check(), lambda s: s.open(SPEC, 2).__enter__()):
    try:
        attempt(Store(Path("{folder}")))
    except StoreError as error:
        print(error)
"""


def test_a_folder_that_cannot_be_written(finished):
    folder = finished.folder
    command = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--ro-bind",
        str(folder),
        str(folder),
        sys.executable,
        "-c",
    ]
    done = subprocess.run(
        [*command, READ_ONLY.format(folder=folder)], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == f"cannot write {folder}: Read-only file system; what was finished is kept"
    assert (
        second
        == f"cannot write {folder}/{SPEC.id}/lock: Read-only file system; what was finished is kept"
    )


FULL = """
import shutil
from pathlib import Path
from oddlm.store import Store, StoreError
from tests.store.test_store import SPEC, drawn
store = Store(Path("{disk}"))
with store.open(SPEC, 1000) as run:
    try:
        for i in range(1000):
            run.draw(drawn(str(i), "x" * 3000))
    except StoreError as error:
        print(i, error)
records = store.read(SPEC.id).records
assert [r.problem for r in records] == [str(j) for j in range(i)]
shutil.copytree(store.folder, "{saved}")
"""


def test_a_full_disk_keeps_every_finished_problem(tmp_path):
    disk, saved = tmp_path / "disk", tmp_path / "saved"
    disk.mkdir()
    command = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--size",
        str(1 << 18),
        "--tmpfs",
        str(disk),
        sys.executable,
        "-c",
    ]
    done = subprocess.run(
        [*command, FULL.format(disk=disk, saved=saved)], capture_output=True, text=True, check=True
    )
    count, message = done.stdout.strip().split(" ", 1)
    assert int(count) > 10
    assert (
        message
        == f"cannot write {disk}/{SPEC.id}/drawn.jsonl: No space left on device; what was finished is kept"
    )
    with Store(saved).open(SPEC, 1000) as run:
        assert len(run.digests) == int(count)
        run.draw(drawn(count))


def test_files_are_for_everybody_to_read(finished):
    for file in (finished.folder / SPEC.id).iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o400, file
    assert {f.name for f in (finished.folder / SPEC.id).iterdir()} == {
        "spec.json",
        "environment.json",
        "drawn.jsonl",
        "scores.jsonl",
        "summary.json",
        "lock",
    }


def test_queries(finished):
    assert sql(
        finished, "select run, task, n, objective, problems, drawn, scored, complete from runs"
    ).rows == ((SPEC.id, "own", 2, "odd", 2, 2, 2, True),)
    assert sql(
        finished, "select problem, n, correct, seed from problems order by problem"
    ).rows == (
        ("a", 2, 1, 2**63 - 1),
        ("b", 2, 1, 2**63 - 1),
    )
    answer = sql(finished, "select problem, index, text, correct from samples order by all limit 2")
    assert answer.columns == ("problem", "index", "text", "correct")
    assert answer.rows == (("a", 0, "t1 0", False), ("a", 1, "t1 1", True))
    assert sql(finished, "select passed->>'pass@2' from runs").rows == (("1.0",),)


def test_a_run_that_is_being_written_can_be_asked(store):
    with store.open(SPEC, 2) as run:
        add(run, "a")
        assert sql(store, "select drawn, scored, problems, complete from runs").rows == (
            (1, 1, 2, False),
        )


@pytest.mark.parametrize(
    "attack",
    [
        "copy (select 1) to '{folder}/out.csv'",
        "copy (select 1) to '{rows}'",
        "select * from read_text('/etc/passwd')",
        "select * from read_json('{rows}')",
        "select * from '{rows}'",
        "select * from glob('/*')",
        "attach '{folder}/other.db'",
        "export database '{folder}/export'",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "install httpfs",
        "load httpfs",
        "load '{folder}/evil.duckdb_extension'",
    ],
)
def test_a_query_reaches_no_file(finished, attack):
    rows = finished.folder / SPEC.id / "drawn.jsonl"
    before = sorted(finished.folder.rglob("*")), rows.read_bytes()
    with pytest.raises(StoreError, match=r"disabled|locked"):
        sql(finished, attack.format(folder=finished.folder, rows=rows))
    assert (sorted(finished.folder.rglob("*")), rows.read_bytes()) == before


def test_a_query_changes_nothing(finished):
    before = (finished.folder / SPEC.id / "drawn.jsonl").read_bytes()
    with pytest.raises(StoreError, match="base table"):
        sql(finished, "delete from samples; drop table problems")
    sql(finished, "delete from stored.drawn")
    assert (finished.folder / SPEC.id / "drawn.jsonl").read_bytes() == before
    assert sql(finished, "select count(*) from samples").rows == ((4,),)


@pytest.mark.parametrize("name", ["ru[n]s", "r*", "run?"])
def test_a_folder_that_reads_as_a_pattern_is_refused(tmp_path, name):
    store = Store(tmp_path / name)
    with store.open(SPEC, 1) as run:
        add(run, "a")
    assert store.read(SPEC.id).scored == 1
    with pytest.raises(StoreError, match="for a pattern; move the store"):
        sql(store, "select 1")


def test_a_quote_in_the_path_is_only_a_quote(tmp_path):
    store = Store(tmp_path / 'it\'s "mine"; drop')
    with store.open(SPEC, 1) as run:
        add(run, "a")
    assert sql(store, "select run, problem from problems").rows == ((SPEC.id, "a"),)


def test_a_wrong_query_is_said(finished):
    with pytest.raises(StoreError, match="Table with name sample does not exist"):
        sql(finished, "select * from sample")
    with pytest.raises(StoreError, match="syntax error"):
        sql(finished, "selct")


def test_runs_are_found_by_the_beginning_of_their_id(finished):
    shutil.copytree(finished.folder / SPEC.id, finished.folder / f"{SPEC.id[:5]}zzz")
    with pytest.raises(StoreError, match=f"several runs begin with '{SPEC.id[:5]}'"):
        finished.read(SPEC.id[:5])
    with pytest.raises(StoreError, match="there is no run 'nothing'"):
        finished.read("nothing")
    with pytest.raises(StoreError, match=r"there is no run '\.\./secret'"):
        finished.read("../secret")


def test_numbers_that_json_does_not_have_are_null(store):
    with store.open(SPEC, 1) as run:
        run.draw(drawn("a"))
        run.score(scored("a", diversity={"x": float("inf")}))
    line = (store.folder / SPEC.id / "scores.jsonl").read_text()
    assert json.loads(line)["diversity"] == {"x": None}
