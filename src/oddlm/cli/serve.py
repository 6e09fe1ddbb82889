"""`oddlm serve`: a model behind an HTTP server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import DRAWING, app
from .options import MODEL, FixedSettings, Loaded, ModelName, grouped, listed, present

SERVER, ACCESS, THROUGHPUT = (f"{name} options" for name in ("Server", "Access", "Throughput"))
LIMITS, TIMEOUTS = "Limits", "Timeouts"


@dataclass(frozen=True)
class Access:
    """Which clients the server admits."""

    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="ODDLM_API_KEY",
            help="Key that clients must present. The variable keeps it out of `ps`.",
            rich_help_panel=ACCESS,
        ),
    ] = None
    open_to_all: Annotated[
        bool,
        typer.Option(
            "--open-to-all", help="Admit other machines WITHOUT a key.", rich_help_panel=ACCESS
        ),
    ] = False
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Another name that clients may use for this machine, such as that of a proxy. "
            "Repeatable.",
            rich_help_panel=ACCESS,
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin whose pages may use the server. Repeatable.",
            rich_help_panel=ACCESS,
        ),
    ] = None


@dataclass(frozen=True)
class RequestLimits:
    """What a request may ask for, and how many requests are accepted."""

    max_n: Annotated[
        int, typer.Option(help="Most samples per request.", min=1, rich_help_panel=LIMITS)
    ] = 64
    max_steps: Annotated[
        int,
        typer.Option(help="Most network evaluations per sample.", min=1, rich_help_panel=LIMITS),
    ] = 256
    max_length: Annotated[
        int, typer.Option(help="Most tokens per sample.", min=1, rich_help_panel=LIMITS)
    ] = 256
    max_prompt: Annotated[
        int, typer.Option(help="Most characters per prompt.", min=1, rich_help_panel=LIMITS)
    ] = 1 << 15
    max_body: Annotated[
        int, typer.Option(help="Most bytes per request.", min=1, rich_help_panel=LIMITS)
    ] = 1 << 20
    max_rows: Annotated[
        int,
        typer.Option(
            help="Most samples in flight, over all requests.", min=1, rich_help_panel=LIMITS
        ),
    ] = 64
    max_queue: Annotated[
        int,
        typer.Option(
            help="Most requests that wait; further ones are answered with 429.",
            min=1,
            rich_help_panel=LIMITS,
        ),
    ] = 64
    score_memory: Annotated[
        int,
        typer.Option(
            help="Most megabytes that a scored program may use.", min=1, rich_help_panel=LIMITS
        ),
    ] = 2048
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds a request may take, including waiting.",
            min=0.001,
            rich_help_panel=TIMEOUTS,
        ),
    ] = 120.0
    receive_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds a request may take to arrive; then it is answered with 408.",
            min=0.001,
            rich_help_panel=TIMEOUTS,
        ),
    ] = 30.0
    send_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds a client may leave its answer unread; then it is disconnected.",
            min=0.001,
            rich_help_panel=TIMEOUTS,
        ),
    ] = 10.0
    score_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that scoring one text may take.", min=0.001, rich_help_panel=TIMEOUTS
        ),
    ] = 30.0

    def fields(self) -> dict[str, Any]:
        """Return the fields of `serve.settings.Limits`."""
        return {
            "max_n": self.max_n,
            "max_steps": self.max_steps,
            "max_length": self.max_length,
            "max_prompt": self.max_prompt,
            "max_body": self.max_body,
            "max_rows": self.max_rows,
            "max_queue": self.max_queue,
            "timeout_s": self.timeout,
            "receive_timeout_s": self.receive_timeout,
            "send_timeout_s": self.send_timeout,
            "score_timeout_s": self.score_timeout,
            "score_memory_mb": self.score_memory,
        }


@app.command(rich_help_panel=DRAWING)
@grouped
def serve(
    *,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model for clients.",
            show_default="the value of --model",
            rich_help_panel=SERVER,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any but this machine's own needs an API key.",
            rich_help_panel=SERVER,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            help="Port to listen on; 0 picks a free port and prints it.",
            min=0,
            max=65535,
            rich_help_panel=SERVER,
        ),
    ] = 8000,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Task whose problems the explorer offers. Repeatable.",
            show_default="countdown and minicode",
            rich_help_panel=SERVER,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of runs to show at /runs.", rich_help_panel=SERVER),
    ] = None,
    access: Access,
    model: ModelName = MODEL,
    options: Loaded,
    settings: FixedSettings,
    limits: RequestLimits,
    grace: Annotated[
        float,
        typer.Option(
            help="Seconds for running requests to finish after SIGTERM or Ctrl-C. A second signal "
            "ends them at once.",
            min=0,
            rich_help_panel=TIMEOUTS,
        ),
    ] = 30.0,
    pass_rows: Annotated[
        str,
        typer.Option(
            help="Batch sizes of network passes, comma-separated. Sizes that would change the "
            "arithmetic are skipped.",
            rich_help_panel=THROUGHPUT,
        ),
    ] = "4,8,16",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Network passes that run side by side.",
            min=1,
            show_default="one per CPU thread, or one on a GPU",
            rich_help_panel=THROUGHPUT,
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN:MAX|JSON",
            help="Copies of the model on Ray Serve, one per GPU (or CPU): a number, a range to "
            "scale in with the load, or the fields of Ray Serve's autoscaling_config. Needs the "
            "extra 'replicas'. RAY_ADDRESS names a cluster to use.",
            rich_help_panel=THROUGHPUT,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP, to OpenAI clients and in the browser.

    The n samples of a request are drawn together and pushed apart. The sampling and diversity
    options are the defaults of requests. A request gets the same samples for the same seed,
    whatever other requests are running.

    The explorer is at /, stored runs are at /runs (with --store), completions, chat and streams at
    /v1, step-by-step denoising at /v1/denoise; there are also /health, /metrics and /openapi.json.

    Example: oddlm serve --model mini --port 8000 --eos late --length 48
    """
    from ..config import checked
    from ..params import SampleParams
    from ..serve.settings import LOOPBACK_NAMES, Limits, ServeSettings, check_binding, is_loopback
    from ..store import Store

    check_binding(host, access.api_key, open_to_all=access.open_to_all)
    if store is not None:
        Store(store).ids()  # raises ValueError if it is not a store
    given = settings.params()
    checked(SampleParams, given)
    host_names = (*LOOPBACK_NAMES, host, *(access.host_name or ()))
    content = {
        "model": name or model,
        "limits": checked(Limits, limits.fields()),
        "given": given,
        "api_key": access.api_key,
        "host_names": host_names if is_loopback(host) else None,
        "cors": access.cors or (),
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

    if replicas is not None:
        plan = {"model": model, "options": {**options.loading, **options.place}}
        _serve_replicas(
            replicas, {**plan, "settings": chosen, "workers": workers}, host, port, grace_s=grace
        )
        return
    leave_sigterm()
    with run.listen(host, port) as listening:
        lm = load(model, **options.loading, **options.place)
        chosen = chosen.model_copy(update={"workers": workers or run.workers_for(lm.info)})
        run.serve(lm, chosen, listening, grace_s=grace)


def _serve_replicas(
    text: str, plan: dict[str, Any], host: str, port: int, *, grace_s: float
) -> None:
    from ..prompts import check_prompts
    from ..serve import replicas
    from ..serve import server as run

    scaling = replicas.scaling_of(text)
    options = {name: value for name, value in plan["options"].items() if name != "max_batch"}
    check_prompts(plan["model"], (), 0, **options)  # so that a typo needs no replica to be noticed
    statuses: list[int] = []
    with run.listen(host, port) as listening:
        name = f"oddlm-{listening.getsockname()[1]}"
        with replicas.deployed(replicas.Plan(**plan), scaling, name, grace_s=grace_s) as handle:
            from ..serve.front import create_front

            app, chosen = create_front(handle, plan["settings"]), plan["settings"]
            leave = statuses.append  # Ray is to be shut down first
            run.run(run.gentle_server(app, chosen, grace_s=grace_s, leave=leave), listening)
    if any(statuses):
        raise typer.Exit(statuses[-1])
