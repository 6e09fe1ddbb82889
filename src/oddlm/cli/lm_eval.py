"""`oddlm lm-eval`: the lm-evaluation-harness, with our model among its models."""

from typing import Annotated

import typer

from .app import MEASURING, app


@app.command(
    "lm-eval",
    rich_help_panel=MEASURING,
    # Everything belongs to the harness, but a --help that comes first.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments of lm-eval; `oddlm lm-eval run --help` lists them.",
            show_default="its help",
        ),
    ] = None,
) -> None:
    """Run lm-evaluation-harness: its own command line, with a model that draws diverse samples.

    The model is named oddlm. A task's repeats of a document are the samples of one diverse group,
    so choose tasks with repeats, such as humaneval_64.

    --model_args takes pretrained=..., any setting of `oddlm sample` (alpha=8, steps=64,
    preset=paper, seed=1) and any option of a model (revision, device, dtype, quantize). length is
    at most the task's max_gen_toks, and the task's temperature wins, so change that with
    --gen_kwargs do_sample=true,temperature=0.5. bound_draws=128 answers likelihood tasks with a
    Monte-Carlo lower bound; they are refused without it.

    It needs the extra lm-eval.

    Example: oddlm lm-eval --model oddlm --model_args pretrained=smol,alpha=8 --tasks
    gsm8k_cot_self_consistency --limit 20 --batch_size auto
    """
    try:
        from ..integrations.lm_eval import run
    except ImportError as error:
        raise ValueError(error) from None
    run(arguments or ["--help"])
