"""The FastAPI application: its routes and their OpenAPI description."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from .. import __version__
from ..lm import LM
from ..pieces import PIECES
from ..presets import ABOUT, PRESETS, expanded
from ..store import Store
from . import errors
from .bodies import BoundedRoute
from .engine import Engine
from .errors import ApiError
from .guard import Count, Guard
from .pages import add_pages
from .prometheus import Meters
from .request import sample_params
from .schema import (
    EVENTS,
    ChatAnswer,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    DenoiseRequest,
    ErrorAnswer,
    Health,
    ModelCard,
    ModelList,
    NamedSettings,
)
from .scoring import Scorers
from .service import Service
from .settings import ServeSettings
from .stored_runs import RunDesk, add_runs
from .tasks import TaskDesk, add_tasks

STREAM = "text/event-stream"
PAGE_PATHS = frozenset({"/", "/runs", "/v1/tasks", "/v1/runs", "/v1/curves"})
PATHS = PAGE_PATHS | {
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/denoise",
    "/v1/models",
    "/health",
    "/metrics",
}
DESCRIPTION = """Many different answers from a diffusion language model. OpenAI clients work
unchanged. The sampler's own settings (alpha, objective, steps, ...) are fields of the same request
body; pass them in `extra_body` with the `openai` package."""
DENOISE = """Stream a run step by step as server-sent events: `start` (Start), one `step` per
denoising step (StepFrame), then `end` (End). `error` (ErrorAnswer) ends the stream early. The
schemas of all four events are listed under components."""


def create_app(lm: LM, settings: ServeSettings) -> FastAPI:
    """Return the application that serves one model; its engine runs as long as the application."""
    try:
        sample_params(settings, {}, lm.info)
    except ApiError as error:
        raise ValueError(f"the server's default settings are invalid: {error.detail}") from None
    limits = settings.limits
    engine = Engine(
        lm,
        max_rows=limits.max_rows,
        max_queue=limits.max_queue,
        timeout_s=limits.timeout_s,
        sizes=settings.pass_rows,
        workers=settings.workers,
        max_width=limits.max_prompt + limits.max_length,
    )
    meters = Meters(engine, PATHS)
    desk = TaskDesk(settings.tasks, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.gather(asyncio.to_thread(engine.close), desk.scorers.close())

    app = FastAPI(
        title="oddlm",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": ErrorAnswer}},
    )
    app.state.engine, app.state.scorers = engine, desk.scorers
    app.state.meters = meters
    app.state.halt = partial(_halt, engine, desk.scorers)
    app.router.route_class = BoundedRoute
    errors.install(app)
    _add_routes(app, Service(lm, settings, engine, meters))
    add_tasks(app, desk)
    add_runs(app, None if settings.store is None else RunDesk(Store(settings.store)))
    add_pages(app)
    guard(app, settings, meters.count)
    app.openapi = lambda: _described(app, settings)  # type: ignore[method-assign]
    return app


def _halt(engine: Engine, scorers: Scorers, number: int) -> None:
    """End all requests, and send a signal to what scores answers."""
    engine.stop()
    scorers.stop(number)


def guard(app: FastAPI, settings: ServeSettings, count: Count) -> None:
    """Check host names, keys and sizes of requests, and admit pages of other origins."""
    app.add_middleware(Guard, settings=settings, count=count)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )


def _add_routes(app: FastAPI, service: Service) -> None:
    settings, engine = service.settings, service.engine
    card = ModelCard(
        id=settings.model,
        created=settings.created,
        version=__version__,
        context=service.lm.info.context,
        limits=settings.limits,
        defaults=settings.defaults,
        given=expanded(settings.given),
        names={kind: registry.names for kind, registry in PIECES.items()},
        presets={
            name: NamedSettings(about=ABOUT[name], settings=dict(preset))
            for name, preset in PRESETS.items()
        },
    )

    @app.post(
        "/v1/completions", responses={200: {"model": CompletionAnswer, "content": {STREAM: {}}}}
    )
    async def completions(http: Request, request: CompletionRequest) -> Response:
        """Draw n samples for every prompt."""
        return await service.complete(http, request)

    @app.post(
        "/v1/chat/completions", responses={200: {"model": ChatAnswer, "content": {STREAM: {}}}}
    )
    async def chat(http: Request, request: ChatRequest) -> Response:
        """Draw n answers to a conversation.

        If the model has no chat template, it reads the messages as plain text, each followed by a
        line break.
        """
        return await service.complete(http, request)

    @app.post(
        "/v1/denoise",
        description=DENOISE,
        responses={200: {"content": {STREAM: {}}}},
        response_class=Response,
    )
    async def denoise(request: DenoiseRequest) -> Response:
        return await service.denoise(request)

    @app.get("/v1/models")
    async def models() -> ModelList:
        """List the served model."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> ModelCard:
        """Describe the served model: its limits, defaults and presets."""
        if name != card.id:
            raise ApiError(
                404,
                f"the model {name!r:.200} does not exist; this server serves {card.id!r}",
                code="model_not_found",
            )
        return card

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Report whether the engine is running, and how busy it is."""
        response.status_code = 200 if engine.alive else 503
        return health_of(engine, card.id)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return metrics in the Prometheus text format."""
        return Response(service.meters.text(), media_type="text/plain; version=0.0.4")


def health_of(engine: Engine, model: str) -> Health:
    return Health(
        status="ok" if engine.alive else "down",
        model=model,
        queued=engine.queued,
        rows=engine.rows,
        replicas=1,
    )


def _described(app: FastAPI, settings: ServeSettings) -> dict[str, Any]:
    """Return the OpenAPI description, with this server's limits and the events of `/v1/denoise`."""
    if app.openapi_schema:
        return app.openapi_schema
    description = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = description["components"]["schemas"]
    _, events = models_json_schema(
        [(kind, "serialization") for kind in EVENTS.values()],
        ref_template="#/components/schemas/{model}",
    )
    for name, schema in events["$defs"].items():
        schemas.setdefault(name, schema)
    limits = settings.limits
    for request in (CompletionRequest, ChatRequest, DenoiseRequest):
        fields = schemas[request.__name__]["properties"]
        fields["model"]["enum"] = [settings.model]
        fields["n"]["maximum"] = min(limits.max_n, limits.max_rows)
        for name, most in (("max_tokens", limits.max_length), ("steps", limits.max_steps)):
            fields[name]["anyOf"][0]["maximum"] = most
    content = description["paths"]["/v1/denoise"]["post"]["responses"]["200"]["content"]
    content[STREAM] = {
        "schema": {"oneOf": [_event(name, kind.__name__) for name, kind in EVENTS.items()]}
    }
    app.openapi_schema = description
    return description


def _event(name: str, schema: str) -> dict[str, Any]:
    """Return the OpenAPI schema of a server-sent event whose data is JSON."""
    data = {
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{schema}"},
    }
    properties = {"event": {"const": name}, "data": {"type": "string", **data}}
    return {"type": "object", "properties": properties, "required": ["event", "data"]}
