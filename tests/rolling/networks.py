"""Tiny random networks of torch modules."""

import torch

from oddlm.models.native import Native
from oddlm.models.toy import ToyTokenizer
from oddlm.models.transformer import Transformer, TransformerConfig

VOCAB, MASK, ENDS = 40, 39, (1, 2)


def native(seed=0, **config):
    torch.manual_seed(seed)
    network = Transformer(
        TransformerConfig(VOCAB, width=16, layers=2, heads=2, hidden=24, **config)
    )
    for parameter in network.parameters():  # as initialised, all logits are nearly alike
        torch.nn.init.normal_(parameter, std=0.4)
    return Native(
        network, name="tiny", mask_id=MASK, end_ids=ENDS, tokenizer=ToyTokenizer(VOCAB), context=64
    )
