"""The code of tasks runs in its own process, with limits, and leaves nothing behind."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from oddlm.serve.schema import ErrorAnswer
from oddlm.serve.scoring import WORKERS
from oddlm.tasks import find_task

from ..waiting import WAIT_S, wait_gone, wait_until
from .conftest import Served, descendants, limits, running, send

HERE = "tests.serve.slow_task"
SLOW = {"tasks": (f"{HERE}.TASK",)}


def score(server: Served, *texts: str) -> list[dict]:
    body = {"problem": "one", "texts": texts}
    answer = httpx.post(f"{server.url}/v1/tasks/slow/score", json=body, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return ErrorAnswer.model_validate_json(answer.text).error.message


@pytest.fixture
def nothing_left():
    before = descendants(os.getpid())
    yield
    wait_until(lambda: descendants(os.getpid()) <= before)


@pytest.mark.usefixtures("nothing_left")
def test_a_scorer_starts_when_it_is_needed_and_stays(toy_lm):
    before = descendants(os.getpid())
    with running(toy_lm, **SLOW) as server:
        assert (
            httpx.get(f"{server.url}/v1/tasks", timeout=WAIT_S).json()["data"][0]["name"] == "slow"
        )
        assert descendants(os.getpid()) <= before
        pids = {score(server, "quick")[0]["answer"] for _ in range(5)}
        assert len(pids) <= WORKERS
        assert str(os.getpid()) not in pids
        assert {one["detail"] for one in score(server, "quick")} == {"no torch"}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("endless", "longer than 0.5 s"),
        ("backtracks", "longer than 0.5 s"),
        ("stubborn /nowhere", "raised FileNotFoundError"),
        ("hungry", "more than 300 MB"),
        ("dies", "exit status 3"),
        ("crashes", "SIGSEGV"),
        ("fails", "raised LookupError"),
        ("talks", "bytes"),
    ],
)
def test_a_text_that_cannot_be_scored_spoils_no_other(toy_lm, text, words):
    bounds = (
        limits(score_timeout_s=0.5, score_memory_mb=300)
        if "0.5 s" in words
        else limits(score_memory_mb=300)
    )
    with running(toy_lm, **SLOW, limits=bounds) as server:
        verdicts = score(server, "quick", text, "quick 2", "quick 3", text)
        assert [one["correct"] for one in verdicts] == [True, None, True, True, None]
        assert verdicts[1]["detail"].startswith("not scored: ")
        assert words in verdicts[1]["detail"]
        assert score(server, "quick")[0]["correct"] is True


def test_what_a_task_prints_is_no_verdict(toy_lm):
    with running(toy_lm, **SLOW) as server:
        (verdict,) = score(server, "prints")
        assert verdict == {"correct": False, "answer": "\\ud800", "detail": "printed"}


def test_others_are_served_while_a_text_is_scored(toy_lm):
    """It holds Python's global lock for as long as it may run."""
    with (
        running(toy_lm, **SLOW, limits=limits(score_timeout_s=3)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        score(server, "quick")
        slow = pool.submit(score, server, "backtracks")
        answers = 0
        while not slow.done():
            assert httpx.get(f"{server.url}/health", timeout=WAIT_S).status_code == 200
            answers += 1
        assert slow.result()[0]["correct"] is None
        assert answers >= 10


def test_few_texts_need_not_wait_for_many(toy_lm, tmp_path):
    with running(toy_lm, **SLOW) as server, ThreadPoolExecutor(1) as pool:
        folders = [tmp_path / str(i) for i in range(4 * WORKERS)]
        for folder in folders:
            folder.mkdir()
        many = pool.submit(score, server, *(f"waits {folder}" for folder in folders))
        wait_until(lambda: sum((folder / "begun").exists() for folder in folders) == WORKERS)
        few = ThreadPoolExecutor(1)
        with few:
            one = few.submit(score, server, "quick")
            wait_until(lambda: len(server.scorers._room._waiters or ()) == 1)
            (folders[0] / "let").touch()
            assert one.result()[0]["correct"] is True
        assert not many.done()
        for folder in folders:
            (folder / "let").touch()
        assert {verdict["detail"] for verdict in many.result()} == {"waited"}


@pytest.mark.usefixtures("nothing_left")
def test_scoring_has_a_deadline(toy_lm, tmp_path):
    with running(toy_lm, **SLOW, limits=limits(timeout_s=1)) as server:
        score(server, "quick")
        body = {"problem": "one", "texts": [f"waits {tmp_path}", "endless"]}
        answer = httpx.post(f"{server.url}/v1/tasks/slow/score", json=body, timeout=WAIT_S)
        assert "took longer" in refused(answer, 408)
        wait_gone(int((tmp_path / "begun").read_text()))
        assert score(server, "quick")[0]["correct"] is True


def test_scoring_has_a_queue(toy_lm, tmp_path):
    body = {"problem": "one", "texts": [f"waits {tmp_path}"]}
    with (
        running(toy_lm, **SLOW, limits=limits(max_queue=1)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(
            httpx.post, f"{server.url}/v1/tasks/slow/score", json=body, timeout=WAIT_S
        )
        wait_until((tmp_path / "begun").exists)
        full = httpx.post(f"{server.url}/v1/tasks/slow/score", json=body, timeout=WAIT_S)
        assert "the queue is full" in refused(full, 429)
        (tmp_path / "let").touch()
        assert asked.result().status_code == 200


@pytest.mark.usefixtures("nothing_left")
def test_a_client_that_vanishes_is_not_scored_for(toy_lm, tmp_path):
    with running(toy_lm, **SLOW) as server:
        raw = send(
            server.port,
            "/v1/tasks/slow/score",
            {"problem": "one", "texts": [f"waits {tmp_path}", "endless"]},
        )
        wait_until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
        raw.close()
        wait_gone(int((tmp_path / "begun").read_text()))
        assert score(server, "quick")[0]["correct"] is True


@pytest.mark.usefixtures("nothing_left")
def test_a_scorer_that_does_not_end_is_killed(toy_lm, tmp_path):
    with running(toy_lm, **SLOW) as server:
        raw = send(
            server.port,
            "/v1/tasks/slow/score",
            {"problem": "one", "texts": [f"stubborn {tmp_path}"]},
        )
        wait_until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
        raw.close()
        wait_gone(int((tmp_path / "begun").read_text()))


@pytest.mark.usefixtures("nothing_left")
def test_a_program_that_does_not_end_leaves_nothing_behind(toy_lm):
    """The scorer ends before the sandbox's limit, together with bubblewrap and its processes."""
    problem = find_task("minicode").problems(limit=1)[0]
    endless = [f"    while {i}: pass\n" for i in (1, 2, 3)]
    with running(toy_lm, limits=limits(score_timeout_s=1)) as server:
        before = descendants(os.getpid())
        body = {"problem": problem.id, "texts": [problem.target.solution, *endless]}
        answer = httpx.post(f"{server.url}/v1/tasks/minicode/score", json=body, timeout=WAIT_S)
        assert [one["correct"] for one in answer.json()["data"]] == [True, None, None, None]
        wait_until(lambda: len(descendants(os.getpid()) - before) <= WORKERS)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("ENDLESS", 408, "took longer"),
        ("HUGE", 409, "task huge"),
        ("BROKEN", 500, "server log"),
    ],
)
@pytest.mark.usefixtures("nothing_left")
def test_problems_that_cannot_be_had(toy_lm, name, status, words):
    tasks = (f"{HERE}.{name}", f"{HERE}.TASK")
    bounds = limits(timeout_s=0.5) if status == 408 else limits()
    with running(toy_lm, tasks=tasks, limits=bounds) as server, ThreadPoolExecutor(2) as pool:
        path = f"{server.url}/v1/tasks/{name.lower()}"
        asked = [pool.submit(httpx.get, f"{path}/problems", timeout=WAIT_S)]
        body = {"problem": "0", "texts": ["a"]}
        asked.append(pool.submit(httpx.post, f"{path}/score", json=body, timeout=WAIT_S))
        for answer in asked:
            assert words in refused(answer.result(), status)
    with running(toy_lm, tasks=tasks) as server:
        assert score(server, "quick")[0]["correct"] is True


def test_a_scorer_ends_with_its_server(toy_lm, tmp_path):
    """This includes a busy scorer; the waiting request gets a 503."""
    with ThreadPoolExecutor(1) as pool, running(toy_lm, grace_s=0, **SLOW) as server:
        body = {"problem": "one", "texts": [f"waits {tmp_path}"]}
        asked = pool.submit(
            httpx.post, f"{server.url}/v1/tasks/slow/score", json=body, timeout=WAIT_S
        )
        wait_until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    assert "shutting down" in refused(asked.result(), 503)
    wait_gone(int((tmp_path / "begun").read_text()))


def test_killed_scorers_are_replaced(toy_lm):
    with running(toy_lm, **SLOW) as server:
        (first,) = score(server, "quick")
        os.kill(int(first["answer"]), signal.SIGKILL)
        wait_until(
            lambda: (
                Path(f"/proc/{first['answer']}/stat").read_text().split(")")[1].split()[0] == "Z"
            )
        )
        verdicts = [score(server, "quick")[0] for _ in range(3)]
        assert [one["correct"] for one in verdicts][1:] == [True, True]
