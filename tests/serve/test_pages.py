"""The routes of the pages: tasks and verdicts, stored runs, static files."""

import shutil
from pathlib import Path

import httpx
import pytest

from oddlm.serve.pages import POLICY
from oddlm.serve.schema import ErrorAnswer
from oddlm.serve.scoring_process import MOST_PROBLEMS
from oddlm.tasks import find_task

from ..waiting import WAIT_S
from .conftest import running

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def http(site):
    with httpx.Client(base_url=site.url, timeout=120) as client:
        yield client


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return ErrorAnswer.model_validate_json(answer.text).error.message


def test_pages_come_under_a_strict_policy(http):
    files = {
        "/": "html",
        "/runs": "html",
        "/static/rows.js": "javascript",
        "/static/style.css": "css",
    }
    for path, kind in files.items():
        answer = http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"text/{kind}; charset=utf-8"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    for path in ("/static/nothing.js", "/static/..%2fapi.py", "/static/__init__.py", "/static/%00"):
        refused(http.get(path), 404)


def test_problems_and_verdicts(http):
    assert [task["name"] for task in http.get("/v1/tasks").json()["data"]] == [
        "countdown",
        "minicode",
    ]
    found = http.get("/v1/tasks/countdown/problems", params={"offset": 1, "limit": 2}).json()
    assert found["total"] == MOST_PROBLEMS
    task = find_task("countdown")
    problems = task.problems(limit=3)
    assert [(one["id"], one["prompt"]) for one in found["data"]] == [
        (p.id, task.prompt(p)) for p in problems[1:]
    ]
    assert found["data"][0]["question"].startswith("Reach ")
    body = {
        "problem": "countdown/4,9,68,38,34",
        "texts": ["9*4=36,38-36=2,68/2=34", "4+9=13", "9*4=36,38-36=2,68/2=34"],
    }
    verdicts = http.post("/v1/tasks/countdown/score", json=body).json()["data"]
    assert [one["correct"] for one in verdicts] == [True, False, True]
    assert "3 steps" in verdicts[1]["detail"]


def test_code_is_judged_in_the_sandbox(http):
    problem = find_task("minicode").problems(limit=1)[0]
    body = {"problem": problem.id, "texts": [problem.target.solution, "    raise SystemExit(0)\n"]}
    verdicts = http.post("/v1/tasks/minicode/score", json=body).json()["data"]
    assert [one["correct"] for one in verdicts] == [True, False]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (
            "nothing/score",
            {"problem": "x", "texts": ["a"]},
            404,
            "unknown task 'nothing'; this server has: countdown, minicode",
        ),
        ("countdown/score", {"problem": "x", "texts": ["a"]}, 404, "has no problem 'x'"),
        ("countdown/score", {"problem": "countdown/4,9,68,38,34", "texts": []}, 400, "texts"),
        (
            "countdown/score",
            {"problem": "countdown/4,9,68,38,34", "texts": ["a"] * 65},
            400,
            "at most 64",
        ),
        (
            "countdown/score",
            {"problem": "countdown/4,9,68,38,34", "texts": ["a" * 40_000]},
            400,
            "texts",
        ),
        ("countdown/score", {"problem": 5, "texts": ["a"]}, 400, "problem"),
        (
            "countdown/score",
            {"problem": "x", "texts": ["a"], "unsafe": True},
            400,
            "unknown field 'unsafe'",
        ),
    ],
)
def test_scores_that_are_refused(http, path, body, status, words):
    assert words in refused(http.post(f"/v1/tasks/{path}", json=body), status)


def test_without_a_sandbox_code_tasks_say_so(toy_lm, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with running(toy_lm) as server:
        answer = httpx.get(f"{server.url}/v1/tasks/minicode/problems", timeout=WAIT_S)
        assert "bubblewrap" in refused(answer, 409)


def test_stored_runs(http, store):
    found = http.get("/v1/runs").json()
    assert found["total"] == 5
    by_kind = {(run["task"], run["complete"], bool(run["damage"])): run for run in found["data"]}
    assert set(by_kind) == {
        ("countdown", True, False),
        ("countdown", False, False),
        (None, True, False),
        (None, False, True),
    }
    assert by_kind["countdown", False, False]["done"] == 1
    (bench,) = http.get("/v1/curves").json()["data"]
    assert [cell["label"] for cell in bench["cells"]] == ["plain T1", "odd α8 T1"]
    assert [share["k"] for share in bench["cells"][0]["passed"]] == [1, 2, 3, 4]
    run = bench["cells"][1]["runs"][0]
    problems = http.get(f"/v1/runs/{run}/problems", params={"limit": 2}).json()
    assert (problems["total"], len(problems["data"]), problems["data"][0]["n"]) == (3, 2, 4)
    row = http.get(f"/v1/runs/{run}/samples", params={"problem": problems["data"][0]["id"]}).json()
    assert len(row["samples"]) == 4
    unscored = by_kind[None, True, False]["id"]
    how = {
        run["id"]: (run["objective"], run["method"]) for run in found["data"] if not run["damage"]
    }
    assert how[run] == ("odd", "odd")
    assert how[bench["cells"][0]["runs"][0]] == ("none", "plain")
    assert how[unscored] == ("odd", "odd (enough 0.5) + fork + alpha_end=0.25")
    assert http.get(f"/v1/runs/{unscored}/problems").json()["data"] == [
        {"id": "prompt", "right": None, "n": 4}
    ]
    for name in ("nothing", "%2e%2e", f"damaged%2f..%2f{run}"):
        refused(http.get(f"/v1/runs/{name}/problems"), 404)
    assert "has no problem" in refused(
        http.get(f"/v1/runs/{run}/samples", params={"problem": "x"}), 404
    )


def test_nothing_tells_where_the_store_is(toy_lm, store, tmp_path):
    """An error in a run is reported with the id, file and line, but without the folder."""
    folder = tmp_path / "kept" / "somewhere"
    shutil.copytree(store, folder)
    with (
        running(toy_lm, store=folder) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        found = client.get("/v1/runs")
        ids = [run["id"] for run in found.json()["data"] if not run["damage"]]
        (damage,) = [run["damage"] for run in found.json()["data"] if run["damage"]]
        assert damage.startswith("damaged/spec.json: ")
        (folder / ids[0] / "drawn.jsonl").write_text("{}\n")
        torn = client.get(f"/v1/runs/{ids[0]}/problems")
        assert refused(torn, 409).startswith(f"{ids[0]}/drawn.jsonl, line 1: ")
        answers = [found, torn, client.get("/v1/runs"), client.get("/v1/curves")]
        shutil.rmtree(folder)
        answers += [
            client.get(path) for path in ("/v1/runs", "/v1/curves", f"/v1/runs/{ids[0]}/problems")
        ]
        assert {answer.status_code for answer in answers[-3:]} == {409}
    for answer in answers:
        assert str(tmp_path) not in answer.text


def test_a_run_that_goes_on_is_read_again(site, http, store):
    run = next(
        run
        for run in http.get("/v1/runs").json()["data"]
        if run["done"] == 1 and not run["complete"]
    )
    known = http.get(f"/v1/runs/{run['id']}/problems").json()["total"]
    rows = store / run["id"] / "drawn.jsonl"
    before = rows.read_text()
    rows.write_text(before + before.replace('"problem":"countdown/', '"problem":"other/'))
    try:
        assert http.get(f"/v1/runs/{run['id']}/problems").json()["total"] == 2 * known
    finally:
        rows.write_text(before)


def test_no_store(served):
    assert "oddlm serve --store DIR" in refused(
        httpx.get(f"{served.url}/v1/runs", timeout=WAIT_S), 404
    )
