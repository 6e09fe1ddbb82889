"""`oddlm record`: recordings, and a copy of the explorer that opens from disk."""

import json

import pytest
from typer.testing import CliRunner

from oddlm import load
from oddlm.cli import app
from oddlm.explorer.assets import asset
from oddlm.explorer.recording import REGISTER, Recording, record
from oddlm.presets import ALPHA

SETTINGS = [
    "--n",
    "8",
    "--length",
    "24",
    "--steps",
    "12",
    "--temperature",
    "0",
    "--eos",
    "late",
]
ODD = [
    "--objective",
    "odd",
    "--alpha",
    "8",
    "--fork",
    "false",
]  # does not solve the first problem


def run(*arguments: str):
    return CliRunner().invoke(app, ["record", *arguments])


def test_a_contrast_is_found_and_opens_from_disk(tmp_path, browse):
    problems = [
        part
        for numbers in ("73,32,7,19,28", "4,9,68,38,34")
        for part in ("--problem", f"countdown/{numbers}")
    ]
    done = run(
        "countdown", *problems, *SETTINGS, *ODD, "--contrast", "1", "--out", str(tmp_path / "copy")
    )
    assert done.exit_code == 0, done.output
    recording = Recording.model_validate_json((tmp_path / "copy" / "recording-1.json").read_text())
    assert recording.contrast
    assert len({sample.text for sample in recording.plain.end.samples}) == 1
    assert recording.task.problem == "countdown/4,9,68,38,34"
    assert not any(verdict.correct for verdict in recording.plain.verdicts)
    page = browse((tmp_path / "copy" / "index.html").as_uri(), width=390, dark=True)
    page.wait_for_selector("#diverse .verdict.right")
    assert "pip install" in page.inner_text("#controls")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#scrub").fill("4")
    assert page.inner_text("#step") == "step 4 of 12"
    assert all(url.startswith(("file:", "data:")) for url in browse.requests)


def test_a_prompt_of_ones_own_and_hostile_text(tmp_path, browse):
    prompt = "</script><script>document.title='run'</script>"
    done = run(
        "--prompt", prompt, "--n", "2", "--length", "8", "--steps", "2", "--out", str(tmp_path)
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "recording-1.json").read_text())["diverse"]["verdicts"] is None
    page = browse((tmp_path / "index.html").as_uri())
    page.wait_for_selector("#diverse .sample")
    assert page.text_content("h1") == prompt
    assert "run" not in page.title().split()


@pytest.mark.parametrize("fork", [[], ["--fork", "true"]])
def test_the_plain_twin_is_plain(tmp_path, fork):
    done = run(
        "--model",
        "toy",
        "--prompt",
        "t5",
        "--n",
        "3",
        "--length",
        "8",
        "--out",
        str(tmp_path),
        *fork,
    )
    assert done.exit_code == 0, done.output
    recording = Recording.model_validate_json((tmp_path / "recording-1.json").read_text())
    plain, diverse = (one.start.params for one in (recording.plain, recording.diverse))
    assert (plain.alpha, plain.fork, diverse.alpha, diverse.fork) == (0, False, ALPHA, True)
    direct = load("toy").generate("t5", 3, length=8, alpha=0, progress=False)[0]
    assert [sample.text for sample in recording.plain.end.samples] == [
        sample.text for sample in direct
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a task or --prompt"),
        (("countdown", "--prompt", "x"), "a task or --prompt"),
        (("--prompt", "x", "--contrast", "1"), "go with a task"),
        (("countdown", "--alpha", "0"), "nothing to compare"),
        (("countdown", "--problem", "x"), "has no problem 'x'"),
        (
            ("countdown", *SETTINGS, *ODD, "--contrast", "1"),
            "none of 1 problem shows such a contrast",
        ),
        (("nothing",), "unknown task 'nothing'"),
    ],
)
def test_what_is_refused(tmp_path, arguments, words):
    done = run(*arguments, "--out", str(tmp_path / "out"))
    assert done.exit_code != 0
    assert words in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    for out, words in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "no" / "where", "its parent folder does not exist"),
    ):
        assert words in str(run("countdown", "--out", str(out)).exception)


def test_ctrl_c_keeps_what_is_recorded(tmp_path, monkeypatch):
    done: list[Recording] = []

    def first_only(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(record(*arguments))
        return done[0]

    monkeypatch.setattr("oddlm.explorer.recording.record", first_only)
    stopped = run(
        "countdown",
        "--n",
        "2",
        "--length",
        "8",
        "--steps",
        "2",
        "--limit",
        "3",
        "--out",
        str(tmp_path),
    )
    assert stopped.exit_code == 130
    assert "stopped; 1 recording" in stopped.output
    assert [path.name for path in tmp_path.glob("*.json")] == ["recording-1.json"]


@pytest.mark.soak
def test_the_recordings_in_the_package_are_those_of_the_stated_rule(tmp_path):
    done = run("countdown", *SETTINGS, "--limit", "40", "--contrast", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    for i, shipped in enumerate(asset("recordings.js").decode().splitlines()):
        recording = Recording.model_validate_json(
            shipped.removeprefix(f"{REGISTER}(").removesuffix(");")
        )
        again = Recording.model_validate_json((tmp_path / f"recording-{i + 1}.json").read_text())
        assert recording.task == again.task
        for name in ("plain", "diverse"):
            texts = [
                [sample.text for sample in getattr(one, name).end.samples]
                for one in (recording, again)
            ]
            assert texts[0] == texts[1]
