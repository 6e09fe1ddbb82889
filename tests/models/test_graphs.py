"""Replayed steps: recorded once per shape, read anew from their inputs, equal to plain calls."""

import pytest
import torch

import oddlm
from oddlm.core.run import advance
from oddlm.models.cache import CachedSession
from oddlm.models.graphs import CallRecorder, CudaRecorder, Replays
from oddlm.models.native import Native
from oddlm.sampler import begin

from .test_cache import PROMPTS, model, run, same


class Counting(CallRecorder):
    def __init__(self):
        self.recorded = self.replayed = 0

    def record(self, function):
        self.recorded += 1
        replay, result = super().record(function)

        def counted():
            self.replayed += 1
            replay()

        return counted, result


class Recorded(Native):
    """A model whose cached steps are recorded, without a compiler."""

    def __init__(self, tiny, recorder=None):
        super().__init__(
            tiny.network,
            name="tiny",
            mask_id=tiny.mask_id,
            end_ids=tiny.end_ids,
            cache=tiny.cache,
            refresh=tiny.refresh,
        )
        self.recorder = recorder or Counting()

    def session(self, query):
        return CachedSession(self.network, query, self.cache, self.refresh, self.recorder)


def test_a_recording_reads_its_inputs_anew():
    recorder = Counting()
    replays = Replays(lambda x, y: x + 2 * y, recorder)
    for value in (1.0, 5.0):
        x = torch.full((3,), value)
        assert replays(x, x).tolist() == [3 * value] * 3
        assert replays(x[:2], x[:2]).tolist() == [3 * value] * 2
    assert (recorder.recorded, recorder.replayed) == (2, 4)
    replays.forget()
    replays(torch.zeros(3), torch.zeros(3))
    assert recorder.recorded == 3


@pytest.mark.parametrize("policy", ["low_confidence", {"name": "threshold", "threshold": 0.3}])
@pytest.mark.parametrize("shape", ["grouped", "shift"])
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("cache", ["prefix", "dual"])
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
    assert (recorded.recorder.recorded, recorded.recorder.replayed) == (2, 3 * 3)


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


def there(shape, cache, dtype=torch.float64):
    tiny = model(shape, cache=cache)
    tiny.network.to("cuda", dtype)
    return Native(tiny.network, name="tiny", mask_id=tiny.mask_id, end_ids=(1,), cache=cache)


@pytest.mark.gpu
def test_a_graph_reads_its_inputs_anew():
    weight = torch.randn(64, 64, device="cuda")
    replays = Replays(lambda x: (x @ weight).relu(), CudaRecorder())
    for rows in (3, 5, 3, 5):
        x = torch.randn(rows, 64, device="cuda")
        assert torch.equal(replays(x), (x @ weight).relu())
    assert len(replays.recordings) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["low_confidence", {"name": "threshold", "threshold": 0.3}])
@pytest.mark.parametrize("shape", ["grouped", "shift"])
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_graphs_say_what_calls_say(cache, prompts, shape, policy):
    settings = {"policy": policy, "steps": 12, "guide": oddlm.Repulsion(alpha=4)}
    graphs = Recorded(there(shape, cache), CudaRecorder())
    same(run(graphs, prompts, **settings), run(there(shape, cache), prompts, **settings))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_no_cached_step_waits_inside_a_block(cache, pushed, graphs):
    """The first step of a block fills the cache; what the second one needs is compiled then."""
    tiny, steps, block = there("grouped", cache, torch.float32), 24, 8
    tiny = Recorded(tiny, CudaRecorder()) if graphs else tiny
    state = begin(
        tiny,
        [[5, 6, 7], [8, 9]],
        n=4,
        length=steps,
        steps=steps,
        block_length=block,
        temperature=1.0,
        guide=oddlm.Repulsion(alpha=4) if pushed else None,
    )
    session = tiny.session(state.query)
    for step in range(steps):
        inside = 2 <= step % block < block - 1
        torch.cuda.set_sync_debug_mode("error" if inside else "default")
        try:
            state, _ = advance(state, session(state.query))
        finally:
            torch.cuda.set_sync_debug_mode("default")
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
