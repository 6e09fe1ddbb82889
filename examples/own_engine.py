"""Drive two runs with your own inference engine, and move one of them to another process.

The core never calls a network. It describes the logits it needs (`state.query`), and you pass them
to `oddlm.advance`. Here the engine is a thread that takes queries from a queue and answers all that
are waiting in one pass. Halfway, one of the runs is pickled and finished in another process.

    python examples/own_engine.py
"""

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from queue import Empty, SimpleQueue
from threading import Thread

import torch
from torch import Tensor

import oddlm
from oddlm.models.toy import Toy

WAIT = 0.005  # seconds that a pass waits for more queries

PROMPTS = [[5, 6, 7], [8, 9]]
RUNS = {
    "diverse": {"n": 8, "length": 24, "steps": 12, "guide": oddlm.Repulsion(alpha=8)},
    "blocks": {"n": 4, "length": 32, "steps": 32, "block_length": 8}
    | {"policy": "threshold", "temperature": 0},
}


class Engine:
    """Answers the queries of any number of runs, of any lengths, in shared passes."""

    def __init__(self, network: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.network = network  # tokens [R, T], padding [R] -> logits [R, T, V]
        self.passes = 0
        self._waiting: SimpleQueue[tuple[oddlm.Query, Future[Tensor]]] = SimpleQueue()
        Thread(target=self._work, daemon=True).start()

    def ask(self, query: oddlm.Query) -> "Future[Tensor]":
        answer: Future[Tensor] = Future()
        self._waiting.put((query, answer))
        return answer

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            try:
                while True:
                    batch.append(self._waiting.get(timeout=WAIT))
            except Empty:
                pass
            try:
                logits = self._answer([query for query, _ in batch])
            except Exception as error:  # raised in the threads that wait for these answers
                for _, answer in batch:
                    answer.set_exception(error)
            else:
                for (_, answer), part in zip(batch, logits, strict=True):
                    answer.set_result(part)

    @torch.no_grad()
    def _answer(self, queries: list[oddlm.Query]) -> list[Tensor]:
        """Compute the logits of several queries in one pass.

        Canvases are aligned on the right, so runs of different lengths differ only in padding.
        """
        width = max(query.tokens.shape[1] for query in queries)
        tokens, padding = [], []
        for query in queries:
            more = width - query.tokens.shape[1]
            tokens.append(torch.nn.functional.pad(query.tokens, (more, 0)))
            padding.append(more + query.start - query.prompt_lengths)
        logits = self.network(torch.cat(tokens), torch.cat(padding))
        self.passes += 1
        parts = logits.split([len(query.tokens) for query in queries])
        return [
            part[:, width - query.tokens.shape[1] + query.start :]
            for part, query in zip(parts, queries, strict=True)
        ]


def toy_engine() -> tuple[Engine, oddlm.ModelInfo]:
    toy = Toy()
    return Engine(lambda tokens, padding: toy(tokens, 0, -padding)), toy.info


def finish(parcel: bytes) -> list[list[int]]:
    """Finish a run in a process that knows nothing but its state."""
    state, (engine, _) = pickle.loads(parcel), toy_engine()
    while (query := state.query) is not None:
        state, _ = oddlm.advance(state, engine.ask(query).result(), query=query)
    return state.result.tokens.tolist()


def main() -> None:
    engine, info = toy_engine()
    states = {name: oddlm.begin(info, PROMPTS, **settings) for name, settings in RUNS.items()}
    done, moved = {}, None
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        while states:
            # Submit the queries of all runs before waiting for any answer.
            answers = {name: engine.ask(state.query) for name, state in states.items()}
            for name, answer in answers.items():
                state = states[name]
                states[name], event = oddlm.advance(state, answer.result(), query=state.query)
                print(f"{name}: step {event.step.index} wrote {int(event.commit.sum())} tokens")
            if moved is None and states["blocks"].index == 6:
                moved = pool.submit(finish, pickle.dumps(states.pop("blocks")))
            for name in [name for name, state in states.items() if state.query is None]:
                done[name] = states.pop(name).result.tokens.tolist()
        assert moved is not None
        done["blocks"] = moved.result()
    print(f"{engine.passes} passes in this process")
    for name, settings in RUNS.items():
        assert done[name] == oddlm.denoise(Toy(), PROMPTS, **settings).tokens.tolist()
        print(f"{name}: the same tokens as from oddlm.denoise")


if __name__ == "__main__":
    main()
