"""A tiny masked diffusion network of transformers, with a tokenizer that has a mask token."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, EOS, MASK = range(3)
VOCABULARY = 24


class Bidirectional(LlamaForCausalLM):
    def forward(
        self, input_ids, attention_mask=None, position_ids=None, logits_to_keep=0, **options
    ):
        B, T = input_ids.shape
        seen = torch.ones(B, T) if attention_mask is None else attention_mask
        bias = torch.zeros(B, 1, T, T).masked_fill(~seen.bool()[:, None, None], -1e9)
        return super().forward(
            input_ids=input_ids,
            attention_mask=bias,
            position_ids=position_ids,
            logits_to_keep=logits_to_keep,
            **options,
        )


def network(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        attention_dropout=0.2,
    )
    one = Bidirectional(config)
    with torch.no_grad():
        one.lm_head.weight.mul_(40)  # as initialised, all logits are nearly alike
    return one


def tokenizer():
    words = ["<pad>", "<eos>", "<mask>", *(f"w{i}" for i in range(3, VOCABULARY))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        mask_token="<mask>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        chat_template="{% for message in messages %}{{ message['content'] }} w3{% endfor %}",
    )
