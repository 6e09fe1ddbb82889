"""The algorithm for SGLang, in the loop that its release 0.5.23 gives to algorithms."""

import sys
import tomllib
from pathlib import Path

import pytest
import torch

from oddlm.integrations import entry

from . import sglang_engine as engine

ROOT = Path(__file__).parents[2]
S, PROMPT, OTHER = 8, [5, 6, 7, 8, 9], [9, 4, 6, 3, 2]
LONG = [5, 6, 7, 8, 9, 10, 11, 12]  # fills its block


@pytest.fixture(scope="module")
def odd():
    """The module under test, beside stand-ins for the package."""
    name = "oddlm.integrations.sglang"
    with pytest.MonkeyPatch.context() as patch:
        for path, module in engine.modules().items():
            patch.setitem(sys.modules, path, module)
        patch.delitem(sys.modules, name, raising=False)
        with pytest.MonkeyPatch.context() as asking:
            asking.setenv(entry.SGLANG, "1")
            entry.sglang()
        yield sys.modules[name]
        del sys.modules[name]
        engine.HookRegistry.hooks.clear()


@pytest.fixture
def write(odd, toy):
    @torch.no_grad()
    def network(tokens):
        return toy(tokens, 0, torch.zeros(len(tokens), dtype=torch.long)).float()

    def run(requests, length=S, cls=odd.Odd, **settings):
        found = engine.config(S, toy.mask_id, **settings)
        return engine.Engine(network, cls(found), found).generate(requests, length)

    return run


def group(n, prompt=PROMPT, **options):
    return [engine.request(prompt, **options) for _ in range(n)]


def test_it_is_registered_with_its_hook(odd):
    assert sys.modules["sglang.srt.dllm.algorithm"].algo_name_to_cls["Odd"] is odd.Odd
    assert engine.HookRegistry.hooks == {odd.HOOKED: odd.note_requests}


def test_the_samples_of_a_prompt_differ(write):
    assert len({tuple(row) for row in write(group(6), alpha=8.0)}) == 6
    assert len({tuple(row) for row in write(group(6), cls=engine.LowConfidence)}) == 1


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["tail", "full block"])
def test_a_single_request_is_written_as_by_low_confidence(write, prompt):
    own = write(group(1, prompt), 3 * S, alpha=8.0)
    assert own == write(group(1, prompt), 3 * S, cls=engine.LowConfidence)
    assert write(group(3, prompt), 3 * S, alpha=0.0, fork=False) == 3 * own


def test_neither_mask_nor_prompt_is_written(write, toy):
    for row in write(group(4), 3 * S, alpha=8.0):
        assert len(row) == S - len(PROMPT) + 3 * S
        assert toy.mask_id not in row


def test_requests_of_another_prompt_change_nothing(write):
    alone = write(group(3), 2 * S, alpha=8.0)
    mine, others = group(3), group(3, OTHER)
    mixed = [one for pair in zip(mine, others, strict=True) for one in pair]
    write(mixed, 2 * S, alpha=8.0)
    assert [one.output_ids for one in mine] == alone


def test_later_blocks_are_pushed_apart_too(write):
    rows = write(group(4), 2 * S, alpha=16.0, alpha_end=1.0, fork=False)
    assert len({tuple(row[-S:]) for row in rows}) == 4


def test_temperature_and_seed_are_honoured(write):
    plain = {"alpha": 0.0, "fork": False}
    first = write(group(4, temperature=1.0, seed=1), **plain)
    assert first == write(group(4, temperature=1.0, seed=1), **plain)
    assert first != write(group(4, temperature=1.0, seed=2), **plain)
    assert len({tuple(row) for row in first}) > 1
    assert first[:2] == write(group(2, temperature=1.0, seed=1), **plain)
    assert len({tuple(row) for row in write(group(4), **plain)}) == 1  # temperature 0


def test_a_pushed_step_commits_one_token(write, odd, monkeypatch):
    committed, step = [], odd.Odd.step

    def watched(self, batch, logits, states):
        before = (batch.input_ids == self.mask_id).sum()
        done = step(self, batch, logits, states)
        committed.append(int(before - (batch.input_ids == self.mask_id).sum()))
        return done

    monkeypatch.setattr(odd.Odd, "step", watched)
    write(group(2, LONG), threshold=0.0, alpha=8.0, alpha_end=0.25)  # 2 of the 8 steps
    assert committed == [2, 2, 2 * (S - 2), 0]


def test_ends_are_not_pushed(odd):
    llada2 = odd.Odd(engine.config(32, 156895))
    assert tuple(llada2.guide.protected) == (156892,)
    assert tuple(odd.Odd(engine.config(4, 3, end_ids=[7])).guide.protected) == (7,)


def test_the_hook_leaves_other_algorithms_alone(odd):
    batch = engine.SimpleNamespace()
    for settings in (None, engine.SimpleNamespace(algorithm="LowConfidence")):
        odd.note_requests(batch, None, engine.SimpleNamespace(dllm_config=settings, reqs=[]))
    assert not vars(batch)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"first_done_first_out_mode": True}, "--dllm-fdfo"), ({"algorithm_config": {"a": 1}}, "'a'")],
)
def test_settings_that_cannot_work_are_refused(odd, change, said):
    settings = engine.config(S, 3)
    vars(settings).update(change)
    with pytest.raises((ValueError, TypeError), match=said):
        odd.Odd(settings)


def test_a_server_that_did_not_ask_imports_nothing(monkeypatch):
    name = "oddlm.integrations.sglang"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "sglang.srt.dllm.algorithm", None)  # not installed
    monkeypatch.delenv(entry.SGLANG, raising=False)
    entry.sglang()
    assert name not in sys.modules
    monkeypatch.setenv(entry.SGLANG, "1")
    with pytest.raises(ImportError, match=engine.VERSION):
        entry.sglang()


def test_the_package_declares_the_entry_point():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = declared["sglang.srt.plugins"]["oddlm"].partition(":")
    assert getattr(sys.modules[module], name) is entry.sglang
