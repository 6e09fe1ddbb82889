"""Replayed steps: recorded once per shape, read anew from their inputs, equal to plain calls."""

import pytest
import torch

import oddlm
from oddlm.models.cache import CachedSession
from oddlm.models.graphs import CallRecorder, Replays
from oddlm.models.native import Native

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

    def __init__(self, tiny):
        super().__init__(
            tiny.network,
            name="tiny",
            mask_id=tiny.mask_id,
            end_ids=tiny.end_ids,
            cache=tiny.cache,
            refresh=tiny.refresh,
        )
        self.recorder = Counting()

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
