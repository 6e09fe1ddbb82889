"""Answers requests with the engine's results: complete, or streamed in blocks or frames."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from ..drawing import Samples
from ..explorer.frames import end_of, frames_of, start_of
from ..explorer.messages import StepFrame, Usage, Vote
from ..explorer.usage import extra, final_text, usage
from ..lm import LM
from ..voting import Answer, Ballot, Read, vote
from .connection import while_there
from .engine import Engine, Finished, Job, Work
from .errors import ApiError, as_api_error
from .openai_format import Chat, Completions, SampleText
from .prometheus import Meters
from .request import check_answer, check_stops, prepare
from .schema import ChatRequest, CompletionRequest, DenoiseRequest
from .settings import ServeSettings
from .text import Growth, TextStream, grown_blocks, pieces


class Service:
    def __init__(self, lm: LM, settings: ServeSettings, engine: Engine, meters: Meters) -> None:
        self.lm, self.settings, self.engine, self.meters = lm, settings, engine, meters

    async def complete(self, http: Request, request: CompletionRequest | ChatRequest) -> Response:
        self._check_model(request.model)
        check_stops(request.stops)
        read = await asyncio.to_thread(check_answer, request)
        logprobs = request.logprobs is not None and request.logprobs is not False  # 0 counts, too
        if logprobs and request.stream:
            raise ApiError(
                400,
                "logprobs is not supported in a stream: leave out stream or logprobs",
                param="logprobs",
            )
        watch = grown_blocks if request.stream else None
        work = await asyncio.to_thread(prepare, self.lm, self.settings, request, watch)
        dialect = (Chat if isinstance(request, ChatRequest) else Completions)(self.settings.model)
        job = self._submit(work)
        if request.stream:
            return _events(self._stream(job, request, dialect))
        samples = self._samples(await while_there(http, _last(job)))
        spent = self._usage(work, samples)
        more = extra(samples, work.params.seed, request.stops)
        if request.answer is not None:
            found = await asyncio.to_thread(self._vote, work, samples, request.answer, read)
            more = more.model_copy(update={"votes": [_votes(one) for one in found]})
            samples = [Samples([one.candidates[0].sample]) for one in found]
        texts = await asyncio.to_thread(
            self._texts, work, samples, request.stops, logprobs=logprobs
        )
        return JSONResponse(dialect.answer(texts, spent, more).model_dump())

    def _vote(
        self, work: Work, samples: Sequence[Samples], by: str, read: Read | None
    ) -> list[Answer]:
        pairs = zip(work.prompts, samples, strict=True)
        return [vote(Ballot(self.lm.model, ids, some), by=by, read=read) for ids, some in pairs]

    def _texts(
        self, work: Work, samples: list[Samples], stops: Sequence[str], *, logprobs: bool
    ) -> list[SampleText]:
        decode, ends = self.lm.tokenizer.decode, self.lm.info.end_ids
        form = next(iter(work.forms), None)  # the same for every prompt
        every = [sample for group in samples for sample in group]
        return [
            (*final_text(one, stops), pieces(one, stops, decode, ends, form) if logprobs else None)
            for one in every
        ]

    async def denoise(self, request: DenoiseRequest) -> Response:
        self._check_model(request.model)
        frames = frames_of(self.lm, positions=request.positions)
        work = await asyncio.to_thread(prepare, self.lm, self.settings, request, frames)
        return _events(self._frames(self._submit(work), request))

    def _check_model(self, name: str) -> None:
        if name != self.settings.model:
            served = self.settings.model
            message = f"the model {name!r:.200} does not exist; this server serves {served!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _submit(self, work: Work) -> Job:
        try:
            return self.engine.submit(work)
        except Exception as error:
            raise as_api_error(error) from error

    async def _stream(
        self, job: Job, request: CompletionRequest | ChatRequest, dialect: Completions
    ) -> AsyncIterator[str]:
        ends = self.lm.info.end_ids
        streams = [
            TextStream(self.lm.tokenizer.decode, ends, request.stops)
            for _ in range(job.work.n * len(job.work.prompts))
        ]
        try:
            yield "".join(map(sse, dialect.opening(len(streams))))
            while isinstance(message := await job.receive(), Growth):
                grown = ((i, streams[i].grow(tokens)) for i, tokens in message.samples.items())
                yield "".join(sse(dialect.chunk(i, text, None)) for i, text in grown if text)
            samples = self._samples(message)
            every = enumerate(sample for group in samples for sample in group)
            yield "".join(sse(dialect.chunk(i, *streams[i].finish(sample))) for i, sample in every)
            wanted = request.stream_options is not None and request.stream_options.include_usage
            spent = self._usage(job.work, samples)
            yield sse(
                dialect.closing(
                    spent if wanted else None, extra(samples, job.work.params.seed, request.stops)
                )
            )
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield sse(error.answer)
        finally:
            job.cancel()

    async def _frames(self, job: Job, request: DenoiseRequest) -> AsyncIterator[str]:
        work = job.work
        try:
            start = start_of(
                self.settings.model,
                self.lm.info,
                request.prompt,
                work.prompts[0],
                work.n,
                work.params,
            )
            yield sse(start, "start")
            while isinstance(message := await job.receive(), StepFrame):
                yield sse(message, "step")
            samples = self._samples(message)
            yield sse(end_of(samples[0], self._usage(work, samples), work.params.seed), "end")
        except ApiError as error:
            yield sse(error.answer, "error")
        finally:
            job.cancel()

    def _samples(self, finished: Finished) -> list[Samples]:
        if finished.error is not None:
            raise as_api_error(finished.error) from finished.error
        assert finished.samples is not None
        return finished.samples

    def _usage(self, work: Work, samples: list[Samples]) -> Usage:
        found = usage(work.prompts, samples, self.lm.info.end_ids, work.forms)
        self.meters.tokens(found.prompt_tokens, found.completion_tokens)
        return found


def _votes(answer: Answer) -> list[Vote]:
    return [
        Vote(
            text=one.text,
            reading=one.reading,
            votes=one.votes,
            weight=one.weight,
            sample=one.sample.index,
        )
        for one in answer.candidates
    ]


async def _last(job: Job) -> Finished:
    """Return the last message of a request, dropping all others."""
    try:
        while not isinstance(message := await job.receive(), Finished):
            pass
        return message
    finally:
        job.cancel()


def sse(message: BaseModel, event: str | None = None) -> str:
    """Encode a server-sent event."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {message.model_dump_json()}\n\n"


def _events(content: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(content, media_type="text/event-stream", headers=headers)
