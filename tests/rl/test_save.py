"""A trained checkpoint is written in the layout it came in."""

import pytest
import torch

import oddlm
from oddlm.models.native import Native
from oddlm.rl.save import save_model

from ..models import published_layout as layout


@pytest.mark.parametrize("write", [layout.write_llada, layout.write_dream, layout.write_qwen3])
def test_a_checkpoint_keeps_its_layout(tmp_path, write):
    write(tmp_path / "before")
    lm = oddlm.load(str(tmp_path / "before"), device="cpu", dtype="fp32")
    assert isinstance(lm.model, Native)
    with torch.no_grad():
        for parameter in lm.model.network.parameters():
            parameter.copy_((2 * parameter).bfloat16())
    save_model(str(tmp_path / "before"), lm.model.network, tmp_path / "after")
    again = oddlm.load(str(tmp_path / "after"), device="cpu", dtype="fp32")
    state = again.model.network.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in lm.model.network.state_dict().items())
    settings = {"n": 2, "length": 4, "seed": 1}
    ids = [[5, 6, 7]]
    first, second = (one.generate(ids, **settings)[0] for one in (lm, again))
    assert [s.tokens for s in first] == [s.tokens for s in second]
    assert again.tokenizer.encode("abc") == lm.tokenizer.encode("abc")
