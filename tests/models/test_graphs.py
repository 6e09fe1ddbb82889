"""Replayed steps: recorded once per shape, read anew from their inputs, equal to plain calls."""

import gc
import weakref
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import oddlm
from oddlm.core.run import advance
from oddlm.models.block_cache import BlockSession
from oddlm.models.cache import CachedSession
from oddlm.models.graphs import CudaRecorder, Replays
from oddlm.models.native import Native
from oddlm.sampler import begin

from . import test_block_cache as blocks
from .test_cache import PROMPTS, model, run, same


class Watching(TorchDispatchMode):
    """Notes the memory that operations use and did not make."""

    def __init__(self):
        super().__init__()
        self.found, self.made = {}, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for memory in storages((args, kwargs)):
            if memory._cdata not in self.made:
                self.found.setdefault(memory._cdata, StorageWeakRef(memory))
        result = function(*args, **(kwargs or {}))
        self.made |= {memory._cdata for memory in storages(result)} - self.found.keys()
        return result


def storages(tree):
    return [x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


class Counting:
    """A recorder that calls the function again, if all that it read is still what it reads.

    A graph would read the memory that it was recorded with, whatever is there by now.
    """

    def __init__(self):
        self.recorded = self.replayed = 0

    def record(self, function):
        self.recorded += 1
        function()
        with Watching() as then:
            result = function()

        def replay():
            self.replayed += 1
            assert not any(memory.expired() for memory in then.found.values())
            with Watching() as now:
                again = function()
            assert now.found.keys() <= then.found.keys()
            result.copy_(again)

        return replay, result


CACHED_RUNS = list(
    product(
        ["prefix", "dual"],
        PROMPTS,
        ["grouped", "shift"],
        ["low_confidence", {"name": "threshold", "threshold": 0.3}],
    )
)


class Recorded(Native):
    """A model whose cached steps are recorded, without a compiler."""

    def __init__(self, tiny, recorder=None):
        super().__init__(
            tiny.network,
            name="tiny",
            mask_id=tiny.mask_id,
            end_ids=tiny.end_ids,
            cache=None if tiny.cache == "exact" else tiny.cache,
            refresh=tiny.refresh,
        )
        self.recorder = recorder or Counting()

    def session(self, query):
        if self.cache == "exact":
            return BlockSession(self.network, query, self.recorder)
        return CachedSession(self.network, query, self.cache, self.refresh, self.recorder)


def test_a_recording_reads_its_inputs_anew():
    recorder = Counting()
    replays = partial(Replays(recorder), lambda x, y: x + 2 * y)
    for value in (1.0, 5.0, 7.0):
        x = torch.full((3,), value)
        assert replays(x, x).tolist() == [3 * value] * 3
        assert replays(x[:2], x[:2]).tolist() == [3 * value] * 2
    assert (recorder.recorded, recorder.replayed) == (2, 4)  # the first calls are plain ones
    replays.func.forget()
    replays(torch.zeros(3), torch.zeros(3))
    assert (recorder.recorded, recorder.replayed) == (3, 5)


@pytest.mark.parametrize(("cache", "prompts", "shape", "policy"), CACHED_RUNS)
def test_recorded_steps_say_what_calls_say(cache, prompts, shape, policy):
    settings = {"policy": policy, "steps": 12, "guide": oddlm.Repulsion(alpha=4)}
    recorded = Recorded(model(shape, cache=cache))
    same(
        run(recorded, prompts, **settings),
        run(model(shape, cache=cache), prompts, **settings),
    )
    assert recorder_worked(recorded.recorder)


def recorder_worked(recorder):
    return recorder.replayed >= recorder.recorded > 0


def test_a_dual_cache_records_twice_and_replays_the_rest():
    """Once for the keys that samples share in the first block, and once for their own."""
    recorded = Recorded(model("grouped", cache="dual"))
    run(recorded, "alike", steps=12)
    assert (recorded.recorder.recorded, recorded.recorder.replayed) == (2, 3 * 3 - 1)


def test_a_prefix_cache_keeps_the_recording_of_the_last_window_alone():
    """Those of earlier blocks are wider, and never come back."""
    sessions, tiny = [], Recorded(model("grouped", cache="prefix"))
    tiny.session = lambda query: sessions.append(Recorded.session(tiny, query)) or sessions[0]
    run(tiny, "alike", steps=12)
    assert tiny.recorder.recorded == 3
    assert len(sessions[0]._replays.recordings) == 1


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_recordings_of_all_samples_are_dropped_when_one_has_left(cache):
    tiny = Recorded(model("grouped", cache=cache))
    state = begin(tiny, [[5, 6, 7]], n=3, length=8, steps=8, block_length=4)
    session = tiny.session(state.query)
    for _ in range(3):
        state, _ = advance(state, session(state.query))
    assert session._replays.recordings
    live = torch.tensor([0, 2])
    session(replace(state.query.take(live), samples=live))
    assert not session._replays.recordings


BLOCK_RUNS = {
    "one prompt": {"prompts": [[5, 6, 7, 8, 9]], "n": 3},
    "in step": {"prompts": [[5, 6], [7] * 6, [8] * 10], "stop_at_end": True, "n": 4},
    "apart": {"policy": "threshold"},  # the windows of a step differ, so nothing is recorded
    "now and then apart": {
        "prompts": [[5, 6, 7, 8], [7, 8, 9, 5, 6, 7, 8, 9]],
        "policy": {"name": "threshold", "threshold": 0.05},
        "length": 64,
        "steps": 64,
    },
    "long": {"prompts": [[5, 6, 7]], "length": 140, "steps": 140},
}


@pytest.mark.parametrize("runs", BLOCK_RUNS)
@pytest.mark.parametrize("shape", blocks.SHAPES)
def test_recorded_blocks_say_what_calls_say(shape, runs):
    options = {"guide": oddlm.Repulsion(alpha=4), "fork": True, **BLOCK_RUNS[runs]}
    recorded = Recorded(blocks.model(shape))
    blocks.same(blocks.run(recorded, **options), blocks.run(blocks.model(shape), **options))
    assert runs == "apart" or recorder_worked(recorded.recorder)


def test_an_exact_cache_records_two_windows_until_it_grows():
    recorded = Recorded(blocks.model())
    blocks.run(recorded, [[5, 6, 7, 8]], length=16, steps=16)
    # the open block before anything is held; that and the one with a finished block before it
    assert recorded.recorder.recorded == 3
    # the others: one first call of each window
    assert recorded.recorder.replayed == 16 - 2


class Forgetful:
    """A recorder that, like that of a GPU, keeps nothing of the function."""

    def record(self, function):
        return lambda: None, function()


@pytest.mark.parametrize("tiny", [model(cache="dual"), blocks.model()], ids=lambda x: x.cache)
def test_a_session_that_is_dropped_is_freed_at_once(tiny):
    """And not by the garbage collector, which knows nothing of the memory of a GPU."""
    recorded = Recorded(tiny, Forgetful())
    state = begin(recorded, [[5, 6, 7, 8]], n=2, length=8, steps=8, block_length=4)
    session = recorded.session(state.query)
    gc.disable()
    try:
        for _ in range(3):
            state, _ = advance(state, session(state.query))
        assert session._replays.recordings
        seen = weakref.ref(session)
        del session
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", ["plain", "experts"])
def test_compiled_blocks_with_a_cache_say_the_same(shape):
    compiled = blocks.model(shape, compiled="any")
    options = {"guide": oddlm.Repulsion(alpha=4), "fork": True}
    blocks.same(blocks.run(compiled, **options), blocks.run(blocks.model(shape), **options))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_cached_run_says_the_same():
    compiled = Native(
        model("grouped").network,
        name="tiny",
        mask_id=49,
        end_ids=(1,),
        cache="dual",
        compiled="any",
    )
    same(run(compiled, steps=12), run(model("grouped", cache="dual"), steps=12))


def on_gpu(tiny, dtype=torch.float64, **options):
    tiny.network.to("cuda", dtype)
    return Native(
        tiny.network, name=tiny.name, mask_id=tiny.mask_id, end_ids=tiny.end_ids, **options
    )


def there(shape, cache, dtype=torch.float64):
    return on_gpu(model(shape), dtype, cache=cache)


@pytest.mark.gpu
def test_a_graph_reads_its_inputs_anew():
    weight = torch.randn(64, 64, device="cuda")
    replays = partial(Replays(CudaRecorder(torch.device("cuda"))), lambda x: (x @ weight).relu())
    for rows in (3, 5, 3, 5):
        x = torch.randn(rows, 64, device="cuda")
        assert torch.equal(replays(x), (x @ weight).relu())
    assert len(replays.func.recordings) == 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_graph_is_recorded_where_its_tensors_are():
    weight = torch.randn(64, 64, device="cuda:1")
    replays = partial(Replays(CudaRecorder(weight.device)), lambda x: (x @ weight).relu())
    for _ in range(3):
        x = torch.randn(3, 64, device="cuda:1")
        assert torch.equal(replays(x), (x @ weight).relu())


@pytest.mark.gpu
@pytest.mark.parametrize(("cache", "prompts", "shape", "policy"), CACHED_RUNS)
def test_graphs_say_what_calls_say(cache, prompts, shape, policy):
    settings = {"policy": policy, "steps": 12, "guide": oddlm.Repulsion(alpha=4)}
    graphs = Recorded(there(shape, cache), CudaRecorder(torch.device("cuda")))
    same(run(graphs, prompts, **settings), run(there(shape, cache), prompts, **settings))


@pytest.mark.gpu
@pytest.mark.parametrize("runs", BLOCK_RUNS)
@pytest.mark.parametrize("shape", ["plain", "shift", "causal context"])
def test_graphs_of_blocks_say_what_calls_say(shape, runs):
    options = {"guide": oddlm.Repulsion(alpha=4), "fork": True, **BLOCK_RUNS[runs]}
    eager = on_gpu(blocks.model(shape, dtype=torch.float64))
    graphs = Recorded(eager, CudaRecorder(torch.device("cuda")))
    blocks.same(blocks.run(graphs, **options), blocks.run(eager, **options))


@pytest.mark.gpu
@torch.no_grad()
def test_a_graph_of_experts_says_what_a_call_says():
    lone = on_gpu(blocks.model("experts", dtype=torch.bfloat16), torch.bfloat16)
    assert lone.network.replayable
    assert not on_gpu(blocks.model("experts")).network.replayable
    options = {"prompts": [[5, 6, 7, 8, 9]], "n": 3}
    graphs = Recorded(lone, CudaRecorder(torch.device("cuda")))
    blocks.same(blocks.run(graphs, **options), blocks.run(lone, **options))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("cache", ["prefix", "dual", "exact"])
def test_no_cached_step_waits_inside_a_block(cache, pushed, graphs):
    """In its last block, when all that repeats was recorded. (The first step of a block fills a
    cache that is not exact, and what the second one needs is compiled then.)
    """
    if cache == "exact":
        tiny, first = on_gpu(blocks.model(), torch.float32), 0
    else:
        tiny, first = there("grouped", cache, torch.float32), 2
    tiny, block = (
        Recorded(tiny, CudaRecorder(torch.device("cuda"))) if graphs else tiny,
        4 if first == 0 else 8,
    )
    steps = 4 * block
    state = begin(
        tiny,
        [[5, 6, 7, 8], [8, 9, 5, 6, 7, 8, 9, 5]],
        n=4,
        length=steps,
        steps=steps,
        block_length=block,
        temperature=1.0,
        guide=oddlm.Repulsion(alpha=4) if pushed else None,
    )
    session = tiny.session(state.query)
    for step in range(steps - 1):
        inside = first <= step % block < block - 1 and step >= 3 * block
        torch.cuda.set_sync_debug_mode("error" if inside else "default")
        try:
            state, _ = advance(state, session(state.query))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    state, _ = advance(state, session(state.query))  # the last one looks whether all was well
    assert (state.result.tokens != tiny.mask_id).all()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_compiled_cached_run_says_the_same_there(cache):
    eager = there("grouped", cache)
    # forked: a push of samples that are all alike is a matter of rounding
    settings = {"steps": 12, "guide": oddlm.Repulsion(alpha=4), "fork": True}
    wanted = run(eager, **settings)
    compiled = Native(
        eager.network, name="tiny", mask_id=49, end_ids=(1,), cache=cache, compiled="fixed"
    )
    same(run(compiled, **settings), wanted)
