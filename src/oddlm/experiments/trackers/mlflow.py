"""The tracker for MLflow."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .pages import PROJECT, Numbers, Page, Pages


def mlflow(folder: Path) -> Pages:
    """Log to MLFLOW_TRACKING_URI (default: an SQLite file in the working folder).

    MLFLOW_EXPERIMENT_NAME names the experiment.
    """
    import mlflow

    # By default, a server that does not answer holds up a run for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    client = mlflow.MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id

    def open_page(run_id: str, settings: Mapping[str, Any]) -> Page:
        earlier = client.search_runs(
            [experiment], f"tags.`{PROJECT}.run` = '{run_id}'", max_results=1
        )
        if earlier:
            client.update_run(earlier[0].info.run_id, status="RUNNING")
            return _Page(client, earlier[0].info.run_id)
        run = client.create_run(experiment, tags={f"{PROJECT}.run": run_id}, run_name=run_id)
        params = [mlflow.entities.Param(key, str(value)) for key, value in settings.items()]
        client.log_batch(run.info.run_id, params=params)
        return _Page(client, run.info.run_id)

    return Pages(open_page)


@dataclass(frozen=True)
class _Page:
    client: Any
    run: str

    def log(self, numbers: Numbers, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name.replace("@", "_at_"), value, now, step) for name, value in numbers.items()
        ]
        self.client.log_batch(self.run, metrics=metrics)

    def end(self, numbers: Numbers | None) -> None:
        if numbers is not None:
            self.log({f"run/{name}": value for name, value in numbers.items()}, 0)
        self.client.set_terminated(self.run, "KILLED" if numbers is None else "FINISHED")
