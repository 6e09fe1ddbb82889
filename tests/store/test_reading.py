"""A part of a file is read as the whole would be: statistics without texts, queries without columns
that nobody names.
"""

import math

import numpy as np
import pytest

from oddlm.report.load import read_runs
from oddlm.store import SCORES, Statistics, StoreError, query
from oddlm.store.query import sql
from oddlm.text import visible

from .test_store import SPEC, add, drawn, finished, store  # noqa: F401


@pytest.fixture
def partly(store):  # noqa: F811
    """Two problems that are scored, and one with other texts that is only drawn."""
    with store.open(SPEC, 3) as run:
        add(run, "a", "b")
        run.draw(drawn("c", 'it\'s a\n"text"', seconds=2.0))
    return store


def test_statistics_are_those_of_the_scores(finished):  # noqa: F811
    whole, slim = list(finished.scores(SPEC.id)), list(finished.statistics(SPEC.id))
    names = Statistics.model_fields.keys()
    assert [one.model_dump() for one in slim] == [
        one.model_dump(include=set(names)) for one in whole
    ]
    assert names & {"answers", "details"} == set()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null"])
def test_what_is_not_finite_is_unknown(finished, value):  # noqa: F811
    path = finished.folder / SPEC.id / SCORES
    path.write_text(path.read_text().replace('"distinct":1.0', f'"distinct":{value}', 1))
    (run,), left_out = read_runs(finished)
    assert left_out == []
    np.testing.assert_array_equal(run.diversity["distinct"], [math.nan, 1.0])
    assert run.mean("distinct") == 1.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"schema', "{schema"),
        ('"schema_version":2', '"schema_version":3'),
        ('"problem":"b"', '"problem":5'),
        ('"problem":"b",', ""),
        ('"problem":"b"', '"problem":"a"'),
        ('"correct":[false,true]', '"correct":[false,"maybe"]'),
        ('"correct":[false,true]', '"correct":true'),
        ('"solutions":[null,0]', '"solutions":[null,0.5]'),
        ('"nfe":4', '"nfe":"many"'),
        ('"draw_seconds":0.5,', ""),
        ('"distinct":1.0', '"distinct":"all"'),
    ],
)
def test_damage_is_named_as_in_whole_lines(finished, old, new):  # noqa: F811
    path = finished.folder / SPEC.id / SCORES
    first, second = path.read_text().splitlines(keepends=True)
    assert old in second
    path.write_text(first + second.replace(old, new, 1))
    with pytest.raises(StoreError) as whole:
        list(finished.scores(SPEC.id))
    with pytest.raises(StoreError) as slim:
        list(finished.statistics(SPEC.id))
    assert str(slim.value) == str(whole.value)
    assert f"{path}, line 2" in str(slim.value)
    runs, (left_out,) = read_runs(finished)
    assert (runs, left_out.run, left_out.why) == ([], SPEC.id, str(slim.value))


NARROW = {
    "select run, avg(correct::int) from samples group by run": {"run", "correct"},
    "select count(*) from samples": set(),
    "select count(*) filter (where correct) from samples": {"correct"},
    'select s."Text" as t from samples as s order by t': {"text"},
    "select t, length from (select text as t, length from samples where not correct) order by 1, length": {
        "text",
        "length",
        "correct",
    },
    "with s as (select problem p, solution from samples) select p, max(s.solution) from s group by p order by p": {
        "problem",
        "solution",
    },
    "select problem, n, correct, n * 0.5 from problems order by 1 desc": {
        "problem",
        "n",
        "correct",
    },
    "select diversity->>'distinct', score_seconds from problems where seconds between 1 and 3": {
        "diversity",
        "score_seconds",
        "seconds",
    },
    "select a.problem, b.index from problems a join samples b using (run, problem) order by 1, b.index": {
        "problem",
        "index",
    },
    "select problem from problems where exists (select 1 from samples s where s.problem = problems.problem and s.correct)": {
        "problem",
        "correct",
    },
    "select problem from samples union select model from runs order by 1": {"problem", "model"},
    "select case when correct is null then 'open' else answer end x from samples order by x": {
        "correct",
        "answer",
    },
    "select rank() over (partition by problem order by seconds, index) from samples": {
        "problem",
        "seconds",
        "index",
    },
    "select task, alpha, drawn, scored, complete from runs": {
        "task",
        "alpha",
        "drawn",
        "scored",
        "complete",
    },
}
WHOLE = [
    "select * from samples order by all",
    "from samples limit 2",
    "table problems",
    "select s from samples s order by all",
    "select samples from samples order by all",
    "select columns('t.*') from samples order by all",
    "select #3, #4 from samples order by all",
    "select c, d from samples t(a, b, c, d) order by all",
    "select * exclude (text) from samples order by all",
    "select count(*) from samples natural join problems",
    "describe samples",
    "summarize problems",
    "pivot samples on correct using count(*) group by problem",
    "select x.name from query_table('samples') y, (select 'z' as name) x",
    "select list_transform(tokens, lambda one: one + 1) from samples",
    "select text from samples order by all",
    "create table mine as select text from samples; select text from mine order by all",
]


def answers(where, question, monkeypatch):
    """As it is, and with all columns."""
    found = sql(where, question)
    with monkeypatch.context() as patch:
        patch.setattr(query, "_used", lambda _: None)
        return found, sql(where, question)


@pytest.mark.parametrize("question", [*NARROW, *WHOLE])
def test_the_same_answer_from_fewer_columns(partly, monkeypatch, question):
    found, whole = answers(partly, question, monkeypatch)
    assert found == whole
    assert found.rows


@pytest.mark.parametrize(("question", "named"), NARROW.items())
def test_a_query_uses_the_columns_that_it_names(question, named):
    used = set().union(*query._used(question).values())
    assert named - {"run", "index"} <= used <= named | {"run", "index"}


def test_texts_that_nobody_names_are_not_read(partly):
    """Where they are no texts, only who names them minds."""
    path = partly.folder / SPEC.id / "drawn.jsonl"
    path.write_text(path.read_text().replace('"t1 0"', "[1, 2]"))
    assert sql(partly, "select count(*), count(correct) from samples").rows == ((6, 4),)
    assert ("[1,2]",) in [
        (row[0].replace(" ", ""),) for row in sql(partly, "select text from samples").rows
    ]


@pytest.mark.parametrize(
    "question", ["describe samples", "describe select text, n from samples, runs", "show tables"]
)
def test_who_describes_reads_nothing(partly, monkeypatch, question):
    found = sql(partly, question)
    monkeypatch.setattr(query, "_used", lambda _: None)
    assert found == sql(partly, question)
    monkeypatch.undo()
    (partly.folder / SPEC.id / "drawn.jsonl").write_text("no JSON\n")
    assert found == sql(partly, question)  # and nobody is warned


def test_samples_that_are_not_scored_are_rows(partly):
    assert sql(partly, "select problem, correct from samples where correct is null").rows == (
        ("c", None),
        ("c", None),
    )
    assert sql(partly, "select count(*), count(correct) from samples").rows == ((6, 4),)


@pytest.mark.parametrize(
    "question", ["select txt from samples", "select n from samples", "select text + from samples"]
)
def test_a_wrong_name_is_told_with_all_right_ones(partly, monkeypatch, question):
    with pytest.raises(StoreError) as found:
        sql(partly, question)
    monkeypatch.setattr(query, "_used", lambda _: None)
    with pytest.raises(StoreError) as whole:
        sql(partly, question)
    assert str(found.value) == str(whole.value)


def test_a_query_that_is_nested_deeply_is_answered_or_refused(partly):
    assert sql(partly, f"select {'(' * 200}1{')' * 200} from samples limit 1").rows == ((1,),)
    sums = "+".join(["1"] * 400)
    assert sql(partly, f"select {sums} from samples limit 1").rows == ((400,),)
    with pytest.raises(StoreError, match="depth"):
        sql(partly, f"select {'+'.join(['1'] * 5000)} from samples")


def test_a_text_is_shown_the_same_however_it_is_checked():
    for code in (*range(0x250), 0x200B, 0x2028, 0x202E, 0x3000, 0xE000, 0x1F600, 0x10FFFF):
        sign = chr(code)
        slow = "".join(visible(f"\x00{one}")[1] for one in f"a{sign}\n\tb")  # NUL: sign by sign
        assert visible(f"a{sign}\n\tb") == slow
