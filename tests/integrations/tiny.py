"""A tiny random DiffusionGemma, and a tokenizer for it."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    PreTrainedTokenizerFast,
)

from ..models.gemma_layout import VISION

PAD, EOS, BOS, TURN = range(4)
VOCABULARY, CANVAS = 60, 6
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "layer_types": ["full_attention"],
    "num_experts": 2,
    "top_k_experts": 1,
    "moe_intermediate_size": 32,
}


def network(canvas: int = CANVAS, scale: float = 30.0) -> DiffusionGemmaForBlockDiffusion:
    """Its logits differ by a few units, so that some tokens are likelier than others."""
    torch.manual_seed(0)
    text = DiffusionGemmaTextConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        pad_token_id=PAD,
        eos_token_id=[EOS, TURN],
        bos_token_id=BOS,
        **SIZES,
    )
    config = DiffusionGemmaConfig(
        text_config=text,
        vision_config=VISION,
        canvas_length=canvas,
        image_token_id=VOCABULARY - 1,
        boi_token_id=VOCABULARY - 2,
        eoi_token_id=VOCABULARY - 3,
    )
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    model.generation_config.update(eos_token_id=[EOS, TURN], pad_token_id=PAD)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<bos>", "<turn|>", *(f"w{i}" for i in range(4, VOCABULARY))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "w4"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        additional_special_tokens=["<turn|>"],
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        chat_template=CHAT,
    )


def write_gemma(folder: Path) -> None:
    """Write both as a checkpoint, with a canvas of the published size."""
    network(canvas=256).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
