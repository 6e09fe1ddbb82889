"""Problems to pick from and verdicts on answers: `/v1/tasks`."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from ..sandbox import SandboxError
from ..tasks import Problem, Score, Task, find_task
from .engine import QueueFullError, TimedOutError
from .errors import ApiError, as_api_error
from .recording import Verdict, problem_of
from .schema import Text
from .settings import Limits

MOST_PROBLEMS = 200  # of a task, to pick from
LONGEST_TEXT = 1 << 15  # characters of an answer
WORKERS = 2  # answers scored at a time


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
        self.tasks: dict[str, Task] = {task.name: task for task in map(find_task, names)}
        self.limits = limits
        self._problems: dict[str, dict[str, Problem]] = {}
        self._reading = threading.Lock()
        self._pool = ThreadPoolExecutor(WORKERS, "oddlm-score")
        self._waiting = 0  # touched by the event loop alone

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def task(self, name: str) -> Task:
        if name not in self.tasks:
            raise ApiError(404, f"there is no task {name!r:.100} here; known: {', '.join(self.tasks) or 'none'}", param="name")
        return self.tasks[name]

    def problems(self, task: Task) -> dict[str, Problem]:
        """By id. What it lacks to have them (data, a sandbox) is told as the task tells it."""
        with self._reading:
            if task.name not in self._problems:
                try:
                    found = task.problems(limit=MOST_PROBLEMS)
                except (ValueError, OSError, ImportError, SandboxError) as error:
                    raise ApiError(409, f"task {task.name} has no problems here: {error}", code="task_unavailable") from None
                self._problems[task.name] = {problem.id: problem for problem in found}
            return self._problems[task.name]

    async def score(self, task: Task, request: ScoreRequest) -> list[Score]:
        """Every different text once; code runs in the sandbox."""
        if len(request.texts) > self.limits.max_n:
            raise ApiError(400, f"{len(request.texts)} texts; this server scores at most {self.limits.max_n}", param="texts")
        problems = await asyncio.to_thread(self.problems, task)
        if request.problem not in problems:
            raise ApiError(404, f"task {task.name} has no problem {request.problem!r:.200}", param="problem")
        if self._waiting >= self.limits.max_queue:
            raise as_api_error(QueueFullError())
        different = list(dict.fromkeys(request.texts))
        judge = partial(task.score, problems[request.problem])
        self._waiting += 1
        verdicts = [asyncio.wrap_future(self._pool.submit(judge, text)) for text in different]
        try:
            scores = await asyncio.wait_for(asyncio.gather(*verdicts), self.limits.timeout_s)
        except TimeoutError:
            raise as_api_error(TimedOutError()) from None
        except SandboxError as error:
            raise ApiError(409, str(error), code="task_unavailable") from None
        finally:
            self._waiting -= 1
            for verdict in verdicts:
                verdict.cancel()
        found = dict(zip(different, scores, strict=True))
        return [found[text] for text in request.texts]


def add_tasks(app: FastAPI, desk: TaskDesk) -> None:
    Name = Annotated[str, Path(max_length=200)]

    @app.get("/v1/tasks")
    async def tasks() -> TaskList:
        """The tasks whose problems can be picked and whose answers can be scored."""
        cards = [TaskCard(name=t.name, length=t.length, steps=t.steps, code=t.code) for t in desk.tasks.values()]
        return TaskList(data=cards)

    @app.get("/v1/tasks/{name}/problems")
    async def problems(
        name: Name, offset: Annotated[int, Query(ge=0, le=10**6)] = 0, limit: Annotated[int, Query(ge=1, le=MOST_PROBLEMS)] = 50
    ) -> ProblemList:
        """Problems of a task, in its order."""
        task = desk.task(name)
        found = list((await asyncio.to_thread(desk.problems, task)).values())
        cards = [
            ProblemCard(id=problem.id, prompt=task.prompt(problem), question=problem_of(task, problem).question)
            for problem in found[offset : offset + limit]
        ]
        return ProblemList(total=len(found), data=cards)

    @app.post("/v1/tasks/{name}/score")
    async def score(name: Name, request: ScoreRequest) -> ScoreAnswer:
        """Verdicts on answers."""
        scores = await desk.score(desk.task(name), request)
        return ScoreAnswer(data=[Verdict.model_validate(one, from_attributes=True) for one in scores])
