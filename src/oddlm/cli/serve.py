"""`oddlm serve`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .options import MODEL, FixedSettings, Loaded, ModelName, grouped, listed, present

if TYPE_CHECKING:
    from ..core.model import ModelInfo


@app.command()
@grouped
def serve(
    *,
    options: Loaded,
    model: ModelName = MODEL,
    name: Annotated[
        str | None, typer.Option(help="What clients call the model; default: as --model says.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; other machines can only come in with an API key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="0 takes a free one and prints it.", min=0, max=65535)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="ODDLM_API_KEY",
            help="What clients must present. The variable keeps it out of `ps`.",
        ),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open-to-all", help="Let other machines in WITHOUT a key.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name clients may call this machine by, behind a proxy. Repeatable."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may use the server. Repeatable.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A task whose problems the explorer offers; default: countdown and minicode. Repeatable."
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="A folder of runs, to be shown at /runs.")
    ] = None,
    settings: FixedSettings,
    max_n: Annotated[int, typer.Option(help="Most samples of a request.", min=1)] = 64,
    max_steps: Annotated[
        int, typer.Option(help="Most network evaluations of a sample.", min=1)
    ] = 256,
    max_length: Annotated[int, typer.Option(help="Most tokens of a sample.", min=1)] = 256,
    max_prompt: Annotated[
        int, typer.Option(help="Most characters of a prompt, as it is before tokens.", min=1)
    ] = 1 << 15,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request.", min=1)] = 1 << 20,
    max_rows: Annotated[
        int, typer.Option(help="Samples in flight at a time, of all requests together.", min=1)
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(help="Requests that wait; more are answered with 429.", min=1)
    ] = 64,
    timeout: Annotated[
        float, typer.Option(help="Seconds a request may take, waiting included.", min=0.001)
    ] = 120.0,
    receive_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds in which a request must arrive whole; then it gets a 408.", min=0.001
        ),
    ] = 30.0,
    send_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds a client may leave its answer unread; then it is cut off.", min=0.001
        ),
    ] = 10.0,
    score_timeout: Annotated[
        float, typer.Option(help="Seconds that scoring one text may take.", min=0.001)
    ] = 30.0,
    score_memory: Annotated[
        int, typer.Option(help="Megabytes that the code of a task may take.", min=1)
    ] = 2048,
    grace: Annotated[
        float,
        typer.Option(
            help="Seconds that running requests have left at SIGTERM or Ctrl-C; a second one ends them.",
            min=0,
        ),
    ] = 30.0,
    pass_rows: Annotated[
        str,
        typer.Option(
            help="Rows of a network pass, parted by commas; sizes that change the arithmetic are not used."
        ),
    ] = "4,8,16",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Network passes side by side; default: one per CPU thread, or one on a GPU.", min=1
        ),
    ] = None,
) -> None:
    """Serve a model to OpenAI's clients: the n samples of a request are drawn together and pushed
    apart.

    The explorer is the page at /, stored runs are at /runs (--store). Completions, chat and streams
    at /v1; denoising step by step at /v1/denoise; /health, /metrics, /openapi.json. What other
    requests are running changes no answer: the same seed gives the same samples. The
    sampling and diversity options are the defaults of requests.

    Example: oddlm serve --model mini --port 8000 --eos late --length 48
    """
    from ..config import checked
    from ..params import SampleParams
    from ..serve.settings import LOOPBACK_NAMES, Limits, ServeSettings, check_binding, is_loopback
    from ..store import Store

    check_binding(host, api_key, open_to_all=open_to_all)
    if store is not None:
        Store(store).ids()  # a folder that is none is told at once
    limits: dict[str, Any] = {
        "max_n": max_n,
        "max_steps": max_steps,
        "max_length": max_length,
        "max_prompt": max_prompt,
    }
    limits |= {
        "max_body": max_body,
        "max_rows": max_rows,
        "max_queue": max_queue,
        "timeout_s": timeout,
    }
    limits |= {"receive_timeout_s": receive_timeout, "send_timeout_s": send_timeout}
    limits |= {"score_timeout_s": score_timeout, "score_memory_mb": score_memory}
    given = settings.params()
    checked(SampleParams, given)
    content = {
        "model": name or model,
        "limits": checked(Limits, limits),
        "given": given,
        "api_key": api_key,
        "host_names": (*LOOPBACK_NAMES, host, *(host_name or ())) if is_loopback(host) else None,
        "cors": cors or (),
        **present(tasks=task, store=store),
        "pass_rows": listed("pass-rows", pass_rows, int),
    }
    chosen = checked(ServeSettings, content)
    try:
        from ..serve import server as run
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'oddlm[serve]'") from None

    from ..lm import load
    from ..signals import leave_sigterm

    leave_sigterm()
    with run.listen(host, port) as listening:
        lm = load(model, **options.loading, **options.place)
        chosen = chosen.model_copy(update={"workers": workers or _workers(lm.info)})
        run.serve(lm, chosen, listening, grace_s=grace)


def _workers(info: "ModelInfo") -> int:
    """As many as there are threads, each then left with one of its own: passes of a few rows gain
    little from more.
    """
    import torch

    if info.device.type != "cpu":
        return 1
    workers = torch.get_num_threads()
    torch.set_num_threads(1)
    return workers
