"""Loading from the hub: the real client library against a local server, in a fresh process."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import published_layout as layout
from .hub_server import COMMIT, Hub, serving

NAME = "GSAI-ML/LLaDA-tiny"
ROOT = Path(__file__).parents[2]

# A process that has imported the slow parts, but not the client library, which reads its settings
# when it is imported. For every request (settings, code, arguments) it forks a child, which runs
# the code and returns its output.
FORK_SERVER = """
import io, os, sys, traceback
import oddlm, oddlm.store, oddlm.experiments.run
oddlm.load(sys.argv[1], device="cpu")
assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    settings, code, arguments = eval(line)
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.environ.update(settings)
    sys.argv, real, sys.stdout = ["-", *arguments], sys.stdout, io.StringIO()
    try:
        exec(code, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc(file=sys.stdout)
    print(repr(sys.stdout.getvalue()), file=real, flush=True)
    os._exit(0)
"""
LOAD = """
import sys, oddlm
try:
    print(oddlm.load(sys.argv[1], device="cpu", **eval(sys.argv[2])).model.name)
except ValueError as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def fork_server(checkpoint):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env = {**clean, "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", FORK_SERVER, str(checkpoint)]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def request(*values):
            process.stdin.write(f"{values!r}\n")
            process.stdin.flush()
            return ast.literal_eval(process.stdout.readline())

        yield request
        process.stdin.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return layout.write_llada(tmp_path_factory.mktemp("llada"), shards=2)


@pytest.fixture
def hub(checkpoint):
    with serving(Hub({NAME: checkpoint})) as hub:
        yield hub


@pytest.fixture
def load(fork_server, hub, tmp_path):
    """Run `oddlm.load` in a fresh process with a new cache, and return its output."""

    def call(name=NAME, code=LOAD, env=None, **options):
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **(env or {})}
        return fork_server(settings, code, [name, repr(options)]).strip()

    return call


def fetched(hub):
    return [
        path.rpartition("/")[2]
        for method, path, _ in hub.requests
        if method == "GET" and "/resolve/" in path
    ]


def test_download_then_the_cache_then_offline(hub, load, tmp_path):
    assert load() == f"{NAME}@{COMMIT}, fp32"
    assert sum(name.endswith(".safetensors") for name in fetched(hub)) == 2
    assert fetched(hub)[-1].endswith(".safetensors"), "config and tokenizer come first"
    assert not any(name.endswith((".py", ".bin")) for name in fetched(hub))
    hub.requests.clear()
    assert load(revision="v1") == f"{NAME}@{COMMIT}, fp32"
    assert fetched(hub) == [], "all in the cache"
    for way in (
        {"env": {"HF_HUB_OFFLINE": "1"}},
        {"local_files_only": True},
        {"env": {"HF_ENDPOINT": "http://127.0.0.1:9"}},
    ):
        hub.requests.clear()
        assert load(**way) == f"{NAME}@{COMMIT}, fp32"
        assert hub.requests == []


@pytest.mark.parametrize("env", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_offline_and_not_in_the_cache(load, tmp_path, env):
    words = load(env=env)
    assert words.startswith(
        f"refused: {NAME} is not complete in the cache, and the hub cannot be reached ("
    )
    missing = "config.json, tokenizer.json, tokenizer_config.json, model.safetensors (or"
    assert f"Missing: {missing} model.safetensors.index.json" in words
    assert f"`hf download {NAME}`" in words
    assert f"copy the files to {tmp_path}/home/hub/models--GSAI-ML--LLaDA-tiny/snapshots/" in words


def test_offline_and_half_in_the_cache(load, tmp_path):
    load()
    (lost,) = (tmp_path / "home").rglob("snapshots/*/model-00002*")
    lost.unlink()
    words = load(env={"HF_HUB_OFFLINE": "1"})
    assert "Missing: model-00002-of-00002.safetensors. With" in words
    assert f"copy the files to {lost.parent}, or" in words
    assert "Missing: model-00002-of-00002.safetensors. With" in load(local_files_only=True)


# The client waits a second before it retries, and writes ten megabytes at a time.
NO_WAITING = """
import time
from huggingface_hub import constants
time.sleep, constants.DOWNLOAD_CHUNK_SIZE = lambda seconds: None, 10_000
"""
SECOND = "model-00002-of-00002.safetensors"


def test_a_dropped_connection_is_taken_up_where_it_was(hub, load):
    hub.drops = {SECOND: [20_000, 30_000]}
    assert load(code=NO_WAITING + LOAD) == f"{NAME}@{COMMIT}, fp32"
    assert [
        wanted for method, path, wanted in hub.requests if method == "GET" and path.endswith(SECOND)
    ] == [
        None,
        "bytes=20000-",
        "bytes=50000-",
    ]


def test_an_interrupted_download_goes_on(hub, load):
    hub.drops = {SECOND: [0] * 100}
    words = load(code=NO_WAITING + LOAD)
    assert words.startswith(f"refused: the download of {NAME} failed (RemoteProtocolError")
    hub.drops = {}
    hub.requests.clear()
    assert load() == f"{NAME}@{COMMIT}, fp32"
    assert fetched(hub) == [SECOND]


def test_a_disk_too_small_is_seen_before_the_download(hub, load, tmp_path):
    hub.sizes = {"model-00001-of-00002.safetensors": 10**18}
    words = load()
    assert words.startswith(f"refused: {NAME} needs 1000000000.")
    assert f"Make room in {tmp_path}/home/hub, or set HF_HUB_CACHE" in words
    assert not any(name.endswith(".safetensors") for name in fetched(hub))


def test_what_the_hub_refuses(hub, load):
    hub.gated.add(NAME)
    page = f"{hub.url}/{NAME}"
    words = load()
    assert words.startswith(f"refused: {NAME} is gated: accept its terms at {page}, then")
    assert "HF_TOKEN" in words
    words = load("GSAI-ML/LLaDA-tyny")
    assert words.startswith("refused: the hub has no model GSAI-ML/LLaDA-tyny; ")
    assert "HF_TOKEN" in words
    assert load(revision="v9") == f"refused: {NAME} has no revision 'v9' on the hub"
    assert load("a/..b").startswith("refused: 'a/..b' is not a model on the hub: ")


def test_other_models_are_refused_before_their_weights_are_fetched(hub, load, tmp_path, checkpoint):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    layout.write_json(
        other / "config.json", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    )
    hub.repos["meta/Llama"] = other
    assert "describes LlamaForCausalLM, an autoregressive model" in load("meta/Llama")
    pickled = shutil.copytree(checkpoint, tmp_path / "pickled")
    (pickled / "model.safetensors.index.json").unlink()
    for file in pickled.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    hub.repos["old/pickled"] = pickled
    words = load("old/pickled")
    assert words.startswith("refused: old/pickled has no model.safetensors on the hub")
    assert not any(name.endswith((".safetensors", ".bin")) for name in fetched(hub))


CLI = """
import sys
from oddlm.cli import main
store = eval(sys.argv[2])["store"]
line = ["sample", "the " * 300, "--model", sys.argv[1], "--length", "8", "--store", store]
sys.argv = ["oddlm", *line]
try:
    main()
except SystemExit:
    pass
sys.stderr.flush()
"""


def test_prompts_that_do_not_fit_are_refused_before_the_download(hub, load, tmp_path):
    code = "import contextlib, io, sys\nsys.stderr = sys.stdout\n" + CLI
    words = load(code=code, store=str(tmp_path / "runs"))
    assert "prompts[0] has" in words
    assert "length 8 that exceeds the model's context of 256" in words
    assert not any(name.endswith(".safetensors") for name in fetched(hub))


def test_without_the_client_library(load):
    code = "import sys\nsys.modules['huggingface_hub'] = None\n" + LOAD
    words = load(code=code)
    assert words.startswith(f"refused: loading {NAME}")
    assert "pip install 'oddlm[hub]'" in words


DIGEST = """
import sys
from oddlm.models import model_digest
try:
    print(model_digest(sys.argv[1], **eval(sys.argv[2])))
except ValueError as error:
    print("refused:", error)
"""
SPEC = """
import sys
from oddlm.experiments.identity import identified
from oddlm.spec import RunSpec
print(identified(RunSpec(model=sys.argv[1])).model_dump_json())
"""
WORKER = """
import sys
from oddlm.experiments.work import Bench, Options
from oddlm.spec import RunSpec
spec = RunSpec.model_validate_json(eval(sys.argv[2])["spec"])
lm, about = Bench(Options(device="cpu"))._lm(spec)
print(lm.model.name, about["model_digest"] == spec.model_digest)
"""
UNREACHABLE = {"HF_ENDPOINT": "http://127.0.0.1:9"}
LATER = "0123456789abcdef0123456789abcdef01234567"


def test_weights_are_known_by_their_commit_before_they_are_fetched(hub, load):
    assert load(code=DIGEST) == load(code=DIGEST, revision="v1") == f"commit:{COMMIT}"
    assert not any(name.endswith(".safetensors") for name in fetched(hub))
    assert load(code=DIGEST, env=UNREACHABLE) == f"commit:{COMMIT}", "as the cache knows it"
    hub.requests.clear()
    assert (
        load("somebody/else", code=DIGEST, env=UNREACHABLE, revision=COMMIT) == f"commit:{COMMIT}"
    )
    assert load("somebody/else", code=DIGEST, env=UNREACHABLE).startswith(
        "refused: somebody/else is not complete in the cache"
    )
    assert hub.requests == []


def test_a_branch_that_has_moved_on_is_another_run_and_workers_keep_to_theirs(hub, load):
    before = load(code=SPEC)
    hub.commit = LATER
    assert load(code=DIGEST) == f"commit:{LATER}"
    assert f"commit:{COMMIT}" in before
    assert load(code=WORKER, spec=before) == f"{NAME}@{COMMIT}, fp32 True"


SWEEP = """
import sys
from pathlib import Path
from oddlm.cli import main
options = eval(sys.argv[2])
folder = Path(options["folder"])
task = '{ name = "countdown", limit = 2, params = { length = 8 } }'
grid = f'model = "{sys.argv[1]}"\\ntask = {task}\\nn = 2\\n[params]\\nalpha = [0, 8]\\n'
(folder / "grid.toml").write_text(grid)
sys.stderr = sys.stdout
line = ["sweep", str(folder / "grid.toml"), "--store", str(folder / "runs"), *options["words"]]
sys.argv = ["oddlm", *line]
main()
"""


def test_a_dry_run_needs_no_model_within_reach(load, tmp_path):
    printed = load(
        code=SWEEP, env=UNREACHABLE, folder=str(tmp_path), words=["--dry-run", "--no-calibration"]
    )
    assert "2 runs on 2 problems (countdown): 4 groups, 8 samples" in printed
    assert "not counted" in printed
    assert f"{NAME} is not complete in the cache" in printed
    refused = load(code=SWEEP, env=UNREACHABLE, folder=str(tmp_path), words=[])
    assert f"oddlm: {NAME} is not complete in the cache" in refused
    assert not (tmp_path / "runs").exists()
