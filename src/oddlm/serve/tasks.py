"""Problems to pick from and verdicts on answers: `/v1/tasks`."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from ..explorer.recording import Verdict
from ..tasks import Task, find_task
from .connection import while_there
from .engine import ClosedError, QueueFullError, TimedOutError
from .errors import ApiError, as_api_error
from .schema import Text
from .scoring import WORKERS, Scorers, ScoringError
from .scoring_process import MOST_PROBLEMS
from .settings import Limits

LONGEST_TEXT = 1 << 15  # characters of an answer


class TaskCard(BaseModel):
    name: str
    length: int = Field(description="Tokens of an answer.")
    steps: int | None = Field(description="Network evaluations, where the task fixes them.")
    code: bool = Field(description="Answers are programs.")


class TaskList(BaseModel):
    data: list[TaskCard]


class ProblemCard(BaseModel):
    id: str
    prompt: str = Field(description="What the model is shown.")
    question: str = Field(description="The problem in words.")


class ProblemList(BaseModel):
    total: int
    data: list[ProblemCard]


class ScoreRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    problem: Text = Field(description="Its id.")
    texts: list[Annotated[Text, Field(max_length=LONGEST_TEXT)]] = Field(min_length=1)


class ScoreAnswer(BaseModel):
    data: list[Verdict] = Field(description="In the order of the texts.")


class TaskDesk:
    """The tasks that the operator offers; their problems are read when first asked for."""

    def __init__(self, names: Sequence[str], limits: Limits) -> None:
        self.tasks: dict[str, Task] = {}
        self._paths: dict[str, str] = {}  # by which a process finds them
        for path in names:
            task = find_task(path)
            self.tasks[task.name], self._paths[task.name] = task, path
        self.limits, self.scorers = limits, Scorers(limits)
        self._problems: dict[str, dict[str, ProblemCard]] = {}
        self._reading = {name: asyncio.Lock() for name in self.tasks}
        self._waiting = 0

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            raise ApiError(
                404,
                f"there is no task {name!r:.100} here; known: {', '.join(self.tasks) or 'none'}",
                param="name",
            )
        return self.tasks[name]

    async def problems(self, task: Task) -> dict[str, ProblemCard]:
        """By id. What it lacks to have them (data, a sandbox) is told as the task tells it."""
        try:
            async with asyncio.timeout(self.limits.timeout_s), self._reading[task.name]:
                if task.name not in self._problems:
                    found = await self.scorers.load(self._paths[task.name])
                    self._problems[task.name] = {
                        card["id"]: ProblemCard.model_validate(card) for card in found
                    }
        except TimeoutError:
            raise as_api_error(TimedOutError()) from None
        except ClosedError as error:
            raise as_api_error(error) from None
        except ScoringError as error:
            if error.kind == "failed":
                raise as_api_error(error) from None
            raise ApiError(
                409, f"task {task.name} has no problems here: {error}", code="task_unavailable"
            ) from None
        return self._problems[task.name]

    async def score(self, task: Task, request: ScoreRequest) -> list[Verdict]:
        """Every different text once; code runs in the sandbox."""
        if len(request.texts) > self.limits.max_n:
            raise ApiError(
                400,
                f"{len(request.texts)} texts; this server scores at most {self.limits.max_n}",
                param="texts",
            )
        if self._waiting >= self.limits.max_queue:
            raise as_api_error(QueueFullError())
        self._waiting += 1
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                if request.problem not in await self.problems(task):
                    raise ApiError(
                        404,
                        f"task {task.name} has no problem {request.problem!r:.200}",
                        param="problem",
                    )
                found = await self._verdicts(task, request.problem, dict.fromkeys(request.texts))
        except TimeoutError:
            raise as_api_error(TimedOutError()) from None
        finally:
            self._waiting -= 1
        return [found[text] for text in request.texts]

    async def _verdicts(self, task: Task, problem: str, texts: Iterable[str]) -> dict[str, Verdict]:
        """A few at a time, so that requests with few texts need not wait for those with many."""
        left, found = iter(texts), {}

        async def judge() -> None:
            for text in left:
                found[text] = await self._verdict(task, problem, text)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(judge())
        except* (ApiError, ClosedError) as errors:
            raise as_api_error(errors.exceptions[0]) from None
        return found

    async def _verdict(self, task: Task, problem: str, text: str) -> Verdict:
        try:
            return Verdict.model_validate(
                await self.scorers.score(self._paths[task.name], problem, text)
            )
        except ScoringError as error:
            if error.kind == "unavailable":
                raise ApiError(409, str(error), code="task_unavailable") from None
            told = f"the task raised {error}" if error.kind == "failed" else str(error)
            return Verdict(correct=None, answer=None, detail=f"not scored: {told}")


def add_tasks(app: FastAPI, desk: TaskDesk) -> None:
    Name = Annotated[str, Path(max_length=200)]

    @app.get("/v1/tasks")
    async def tasks() -> TaskList:
        """The tasks whose problems can be picked and whose answers can be scored."""
        cards = [
            TaskCard(name=t.name, length=t.length, steps=t.steps, code=t.code)
            for t in desk.tasks.values()
        ]
        return TaskList(data=cards)

    @app.get("/v1/tasks/{name}/problems")
    async def problems(
        name: Name,
        offset: Annotated[int, Query(ge=0, le=10**6)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_PROBLEMS)] = 50,
    ) -> ProblemList:
        """Problems of a task, in its order."""
        found = list((await desk.problems(desk.task(name))).values())
        return ProblemList(total=len(found), data=found[offset : offset + limit])

    @app.post("/v1/tasks/{name}/score")
    async def score(http: Request, name: Name, request: ScoreRequest) -> ScoreAnswer:
        """Verdicts on answers."""
        return ScoreAnswer(data=await while_there(http, desk.score(desk.task(name), request)))
