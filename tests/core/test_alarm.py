"""Trouble on a device that nobody wants to wait for, and too little memory."""

import pytest
import torch

from oddlm import Repulsion, denoise
from oddlm.core.alarm import PATIENCE, Alarm, Check
from oddlm.models.native import Native
from oddlm.models.toy import Toy
from oddlm.models.transformer import Transformer, TransformerConfig
from oddlm.models.wrappers import MicroBatch


def describe(row: int, position: int, value: float) -> str:
    return f"row {row}, position {position}: {value}"


def test_at_once_or_later():
    bad, value = torch.zeros(2, 3, dtype=torch.bool), torch.arange(6.0).view(2, 3)
    one = bad.clone()
    one[1, 2] = True
    checks = [
        Check(value, where, torch.isfinite, describe)
        for value, where in ((value, bad), (value, one), (value + 1, one))
    ]
    Alarm(patient=False).check(checks[0])
    with pytest.raises(ValueError, match=r"row 1, position 2: 5\.0"):
        Alarm(patient=False).check(checks[1])
    patient = Alarm(patient=True)
    for check in checks:
        patient.check(check)
    with pytest.raises(ValueError, match=r"row 1, position 2: 5\.0"):
        patient.sound()
    patient.sound()


def test_patience_has_an_end():
    patient, here = Alarm(patient=True), torch.ones(1, 1, dtype=torch.bool)
    check = Check(torch.zeros(1, 1), here, torch.isfinite, describe)
    for _ in range(PATIENCE - 1):
        patient.check(check)
    with pytest.raises(ValueError, match="row 0, position 0"):
        patient.check(check)


def test_the_first_of_several_kinds_of_trouble_is_named():
    here, patient = torch.ones(2, 3, dtype=torch.bool), Alarm(patient=True)
    value = torch.tensor([[0.0, 0.0, torch.nan], [torch.inf, 0.0, 0.0]])
    patient.check(Check(torch.zeros(2, 3), here, torch.isnan, describe))
    patient.check(Check(value, here, torch.isinf, describe))
    patient.check(Check(value.double(), here, torch.isnan, describe))
    patient.check(Check(value, here, torch.isnan, describe))
    with pytest.raises(ValueError, match="row 1, position 0: inf"):
        patient.sound()


@pytest.mark.parametrize("guide", [None, Repulsion(alpha=4)], ids=["plain", "guided"])
def test_out_of_memory_says_what_to_lower(guide):
    class Full(Toy):
        def __call__(self, *args):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(
        ValueError, match="out of memory with 6 samples of 1024 positions over 2048 tokens"
    ) as error:
        denoise(Full(vocab_size=2048), [[5], [6]], n=3, length=1024, steps=2, guide=guide)
    said = str(error.value)
    assert "Lower n" in said
    assert "each sample takes 8.0 MiB of logits and 0.0 MiB of guidance" in said
    assert "lower length: each position takes 0.0 MiB" in said
    assert "lower max_batch" in said
    assert said.endswith("6 samples it sees at a time")


def test_out_of_memory_knows_what_a_row_of_our_networks_takes():
    class Full(Native):
        def session(self, query):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    class Later(MicroBatch):
        def session(self, query):
            return self.model.session

    network = Transformer(
        TransformerConfig(vocab_size=64, width=128, layers=1, heads=2, hidden=1024)
    )
    model = Later(Full(network, name="full", mask_id=0, end_ids=()), 2)
    with pytest.raises(ValueError, match=r"the 2 samples it sees at a time, each about 1\.3 MiB$"):
        denoise(model, [[5] * 35], n=3, length=64, steps=2)
